//! Jobs that run once, and elections, through the client.

use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{join, join_all};
use leasehold_api::{
    Election, Error, FireTime, JobFailure, JobOutcome, JobReset, Leader, LockClient, Occurrence,
};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, ensure, want, want_eq};
use crate::world::World;

pub(super) const CASES: &[Case] = cases!("client_jobs";
    late_timer_finds_it_done: ["rule 16"], [Notes, Inspect, TimeOfDay, FencingTokens];
    one_of_many_machines_runs_it: ["rule 16", "S1"], [Notes, Inspect, TimeOfDay, FencingTokens];
    it_waits_for_its_fire_time: ["rule 1", "rule 16"], [Notes, Inspect, TimeOfDay, FencingTokens];
    last_success_is_remembered: ["rule 16"], [Notes, Inspect, TimeOfDay, FencingTokens];
    failed_attempts_count_everywhere: ["rule 16"], [Notes, Inspect, TimeOfDay, FencingTokens];
    dropped_attempt_counts: ["rule 16", "L1"], [Notes, Inspect, TimeOfDay, FencingTokens];
    running_job_is_told_and_not_reset: ["rule 16", "S1"], [Notes, Inspect, TimeOfDay, FencingTokens];
    followers_find_the_leader: ["rule 16", "S4"], [Notes, Inspect, Queue, FencingTokens];
    observers_see_each_term: ["rule 16"], [Notes, Inspect, FencingTokens];
    stopped_leader_lets_the_next_one_lead: ["rule 16", "S1", "L1"], [Notes, Inspect, FencingTokens];
);

/// How often a body has begun.
#[derive(Debug, Default)]
struct Runs(AtomicU32);

impl Runs {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

type Ran = Result<JobOutcome<(), &'static str>, Error>;

/// A fire time that is now, on the server's clock.
async fn now(world: &World) -> Result<FireTime, Failure> {
    let at = world.session().await?.now().await?;
    Ok(FireTime::from_millis(at.as_micros() / 1_000))
}

fn after(fire: FireTime, time: Duration) -> FireTime {
    let millis = u64::try_from(time.as_millis()).expect("a short time");
    FireTime::from_millis(fire.as_millis() + millis)
}

async fn succeed(occurrence: &Occurrence, runs: &Runs) -> Ran {
    let body = async |_job| {
        runs.add();
        Ok(())
    };
    occurrence.try_run(body).await
}

async fn fail(occurrence: &Occurrence) -> Ran {
    occurrence.try_run(async |_job| Err("broken")).await
}

async fn late_timer_finds_it_done(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let (fire, runs) = (now(world).await?, Runs::default());
    let first = succeed(&a.once("k")?.at(fire), &runs).await?;
    want_eq!(first, JobOutcome::Done(())).promised("rule 16: a free job runs")?;
    world.pass(2).await;
    for late in [fire, FireTime::from_millis(fire.as_millis() - 1)] {
        let again = b.once("k")?.at(late);
        let again = again.run(async |_job| Ok::<_, Error>(())).await?;
        want!(again, JobOutcome::AlreadyDone { fire: done } if done == fire)
            .promised("rule 16: an occurrence is done with every earlier one")?;
    }
    let next = b.once("k")?.at(after(fire, Duration::from_millis(1)));
    let next = succeed(&next, &runs).await?;
    want_eq!(next, JobOutcome::Done(())).promised("rule 16: a later one isn't")?;
    want_eq!(runs.count(), 2).promised("rule 16: each occurrence runs once")
}

async fn one_of_many_machines_runs_it(world: &World) -> Verdict {
    let (fire, runs) = (now(world).await?, &Runs::default());
    let machines = world.clients::<4>().await?;
    let outcomes = join_all(machines.iter().map(async |locks| {
        let job = locks.once("k")?.at(fire);
        let ran = job.run(async |_job| {
            runs.add();
            world.pass(1).await;
            Ok::<_, &str>(())
        });
        ran.await
    }));
    let outcomes = outcomes.await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let done = outcomes.iter().filter(|it| **it == JobOutcome::Done(()));
    want_eq!((runs.count(), done.count()), (1, 1)).promised("S1: one machine runs")?;
    ensure!(outcomes.iter().all(JobOutcome::is_done), outcomes)
        .promised("rule 16: the others learn that it is done")
}

async fn it_waits_for_its_fire_time(world: &World) -> Verdict {
    let a = world.client().await?;
    let fire = after(now(world).await?, world.units(3));
    let job = a.once("k")?.at(fire);
    let started = job.run(async |_job| now(world).await).await?.into_output();
    let started = want!(started, Some(at) => at).promised("rule 1: it runs when it is due")?;
    ensure!(started >= fire, started).promised(format!(
        "rule 1: by the backend's clock, it doesn't run before {fire}"
    ))
}

async fn last_success_is_remembered(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let runs = Runs::default();
    let nightly = |locks: &LockClient| -> Result<Occurrence, Error> {
        Ok(locks.once("k")?.not_within(Duration::from_secs(72_000)))
    };
    let first = succeed(&nightly(&a)?, &runs).await?;
    want_eq!(first, JobOutcome::Done(())).promised("rule 16: a free job runs")?;
    world.pass(2).await;
    let second = succeed(&nightly(&b)?, &runs).await?;
    want!(second, JobOutcome::AlreadyDone { .. })
        .promised("rule 16: it doesn't run again within the window")?;
    want_eq!(runs.count(), 1).promised("rule 16: it ran once")
}

async fn failed_attempts_count_everywhere(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let (fire, runs) = (now(world).await?, Runs::default());
    let first = fail(&a.once("k")?.at(fire)).await?;
    let pause = want!(
        first,
        JobOutcome::Failed { failure: Some(JobFailure::Error("broken")), retry_after } => retry_after
    )
    .promised("rule 16: the first attempt fails")?;
    let limits = Duration::from_secs(20)..=Duration::from_secs(30);
    ensure!(limits.contains(&pause), pause).promised("rule 16: the next one has to wait")?;
    let early = succeed(&b.once("k")?.at(fire), &runs).await?;
    want!(early, JobOutcome::Failed { failure: None, .. }).promised("rule 16: also elsewhere")?;
    let job = b.once("k")?.attempts(1);
    let last = succeed(&job.at(fire), &runs).await?;
    let gave_up = JobOutcome::GaveUp {
        attempts: 1,
        failure: None,
    };
    want_eq!(last, gave_up).promised("rule 16: one attempt was made")?;
    want_eq!(job.status().await?.attempts, 1).promised("rule 16: and is shown")?;
    want_eq!(job.reset().await?, JobReset::Reset).promised("rule 16: nobody runs it")?;
    let again = succeed(&job.at(fire), &runs).await?;
    want_eq!(again, JobOutcome::Done(())).promised("rule 16: a reset forgets")?;
    want_eq!(runs.count(), 1).promised("rule 16: no other body ran")
}

async fn dropped_attempt_counts(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let fire = now(world).await?;
    let (job, begun) = (a.once("k")?.at(fire), Runs::default());
    let hangs = job.run(async |_job| {
        begun.add();
        std::future::pending::<Result<(), Error>>().await
    });
    let ended = world.within_time(world.units_and_a_poll(10), hangs).await;
    ensure!(ended.is_none() && begun.count() == 1, ended)
        .promised("rule 16: the body runs until it is dropped")?;
    world.pass(5).await;
    let status = b.once("k")?.status().await?;
    want_eq!(
        (status.tried, status.attempts, status.done, status.running),
        (Some(fire), 1, None, None)
    )
    .promised("L1: the attempt counts, and the lock is released")
}

async fn running_job_is_told_and_not_reset(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let (fire, runs) = (now(world).await?, Runs::default());
    let job = a.once("k")?.at(fire);
    let begun = Runs::default();
    let running = job.run(async |_job| {
        begun.add();
        world.pass(10).await;
        Ok::<_, &str>(())
    });
    let meanwhile = async {
        while begun.count() == 0 {
            world.pass_for(Duration::from_millis(1)).await;
        }
        let other = succeed(&b.once("k")?.at(fire), &runs).await?;
        let reset = b.once("k")?.reset().await?;
        Ok::<_, Error>((other, reset))
    };
    let (ran, meanwhile) = join(running, meanwhile).await;
    let (other, reset) = meanwhile?;
    want!(other, JobOutcome::Running { by: Some(_) }).promised("S1: another machine runs it")?;
    want!(reset, JobReset::Running { by: Some(_) }).promised("S1: a running job is not reset")?;
    want_eq!(ran?, JobOutcome::Done(())).promised("rule 16: the first one goes on")?;
    want_eq!(runs.count(), 0).promised("S1: no other body ran")
}

fn election(world: &World, locks: &LockClient, info: &str) -> Result<Election, Error> {
    locks.election("k")?.lease(world.units(60)).info(info)
}

fn info(leader: Option<Leader>) -> Option<String> {
    leader.map(|leader| String::from_utf8_lossy(&leader.info).into_owned())
}

async fn followers_find_the_leader(world: &World) -> Verdict {
    let [a, b, c] = world.clients().await?;
    let follower = c.election("k")?;
    want_eq!(follower.leader().await?, None).promised("rule 16: nobody leads")?;
    let term = election(world, &a, "a:80")?.campaign().await?;
    want_eq!(info(follower.leader().await?), Some("a:80".to_owned()))
        .promised("rule 16: a leads")?;
    term.set_info("a:81").await?;
    want_eq!(info(follower.leader().await?), Some("a:81".to_owned()))
        .promised("rule 16: the info changes")?;
    let standing = election(world, &b, "b:80")?;
    let resigns = async {
        world.pass(5).await;
        let seen = follower.look().await?;
        let number = term.number();
        term.resign().await?;
        Ok::<_, Error>((seen.candidates.len(), number))
    };
    let (next, resigned) = join(standing.campaign(), resigns).await;
    let (candidates, first) = resigned?;
    want_eq!(candidates, 1).promised("rule 16: the candidate is shown")?;
    let next = next?;
    ensure!(next.number() > first, next.number()).promised("S4: terms are numbered")?;
    let leader = follower.leader().await?;
    want_eq!(info(leader.clone()), Some("b:80".to_owned()))
        .promised("rule 16: the next one leads")?;
    let number = leader.map(|leader| leader.term);
    want_eq!(number, Some(next.number())).promised("S4: its term is shown")
}

async fn observers_see_each_term(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let mut leaders = pin!(b.election("k")?.observe());
    let limit = Duration::from_secs(5);
    let seen = world.within_time(limit, leaders.next()).await;
    want_eq!(seen, Some(Some(None))).promised("rule 16: nobody leads")?;
    let term = election(world, &a, "a:80")?.campaign().await?;
    let seen = world.within_time(limit, leaders.next()).await.flatten();
    want_eq!(info(seen.flatten()), Some("a:80".to_owned())).promised("rule 16: a leads")?;
    term.resign().await?;
    let seen = world.within_time(limit, leaders.next()).await;
    want_eq!(seen, Some(Some(None))).promised("rule 16: nobody leads again")
}

/// A body that is dropped, as when the task of the leader is aborted.
async fn stopped_leader_lets_the_next_one_lead(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let standing = election(world, &a, "a")?;
    let leads = standing.run(async |_term| std::future::pending::<()>().await);
    let ended = world.within_time(world.units_and_a_poll(10), leads).await;
    ensure!(ended.is_none(), ended).promised("S1: it leads until it is dropped")?;
    let second = election(world, &b, "b")?;
    let next = second.run(async |term| term.is_leader());
    let next = world.within_time(world.units_and_a_poll(20), next).await;
    let leads = want!(next, Some(led) => led?).promised("L1: the next one leads soon")?;
    ensure!(leads, leads).promised("S1: it leads while its body runs")
}
