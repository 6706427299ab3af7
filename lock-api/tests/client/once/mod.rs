//! Jobs that run once, with exact times.

mod clocks;
mod loops;
mod outages;

use std::cell::{Cell, RefCell};
use std::time::Duration;

use leasehold_api::{
    Error, FireTime, ForceMode, JobFailure, JobOutcome, JobReset, JobState, LockClient, Loss,
    Occurrence, Once, ServerTime, set_exit_status,
};
use leasehold_sim::{Call, Data, Fault, SimServer};

use crate::support::{assert_error, assert_is, client, clients, connected, held, ms, secs, server};

const HOUR: Duration = Duration::from_secs(3_600);

type Ran = Result<JobOutcome<(), &'static str>, Error>;

fn once(locks: &LockClient) -> Once {
    locks.once("job").expect("valid")
}

/// A fire time that is now, on the server's clock, in whole milliseconds.
fn now(server: &SimServer) -> FireTime {
    FireTime::from_millis(server.server_time().as_micros() / 1_000)
}

fn missed(error: Option<&'static str>) -> JobOutcome<(), &'static str> {
    JobOutcome::Missed {
        last_done: None,
        failure: error.map(JobFailure::Error),
    }
}

async fn count(occurrence: &Occurrence, runs: &Cell<u32>) -> Ran {
    let body = async |_job| {
        runs.set(runs.get() + 1);
        Ok(())
    };
    occurrence.run(body).await
}

fn gave_up<E>(error: Option<E>) -> JobOutcome<(), E> {
    JobOutcome::GaveUp {
        attempts: 3,
        failure: error.map(JobFailure::Error),
    }
}

/// A body that hangs ends with the lock, and the next attempt follows.
#[tokio::test(start_paused = true)]
async fn body_runs_no_longer_than_max_hold() {
    let (server, [a]) = clients();
    let (fire, runs) = (now(&server), Cell::new(0));
    let begun = server.elapsed();
    let job = once(&a).max_hold(secs(100)).at(fire);
    let outcome = job.run(async |job| {
        runs.set(runs.get() + 1);
        if job.attempt() == 1 {
            std::future::pending::<()>().await;
        }
        Ok::<_, Error>(job.attempt())
    });
    assert_is!(outcome.await => Ok(JobOutcome::Done(2)));
    let took = server.elapsed().saturating_sub(begun);
    assert_eq!(runs.get(), 2);
    assert!((secs(99)..secs(131)).contains(&took), "{took:?}");
}

/// The caller gets to know that it hung, not only that it has failed.
#[tokio::test(start_paused = true)]
async fn job_that_hangs_is_given_up_with_the_reason() {
    let (server, [a]) = clients();
    let hangs = async |_job| std::future::pending::<Result<(), &str>>().await;
    let job = once(&a).max_hold(secs(100)).at(now(&server));
    let outcome = job.run(hangs).await;
    let attempts = 3;
    let failure = Some(JobFailure::Lost(Loss::MaxHold));
    let hung = JobOutcome::GaveUp { attempts, failure };
    assert_eq!(outcome.expect("answered"), hung);
    // Also if it is too late for another attempt.
    let job = once(&a).max_hold(secs(100)).at(now(&server));
    let outcome = job.start_before(secs(60)).run(hangs).await;
    let failure = Some(JobFailure::Lost(Loss::MaxHold));
    assert_is!(outcome => Ok(JobOutcome::Missed { failure: told, .. }) if *told == failure);
}

/// A task that the body has spawned may keep the job.
#[tokio::test(start_paused = true)]
async fn dropped_run_releases_its_lock_whoever_keeps_the_job() {
    let (server, [a, b]) = clients();
    let (job, kept) = (once(&a).at(now(&server)), Cell::new(None));
    let running = job.run(async |job| {
        kept.set(Some(job));
        std::future::pending::<Result<(), Error>>().await
    });
    assert!(tokio::time::timeout(secs(1), running).await.is_err());
    let kept = kept.take().expect("it has begun");
    assert!(!kept.guard().is_valid());
    server.advance(ms(10)).await;
    drop(held(b.mutex("job").expect("valid").try_lock().await));
}

/// Each machine that looks after a failed attempt needs the lock for that. The others must not wait for it as for
/// a running attempt, or they never stop looking.
#[tokio::test(start_paused = true)]
async fn many_machines_give_a_failing_job_up() {
    let server = server();
    let (fire, runs) = (now(&server), Cell::new(0));
    let begun = server.elapsed();
    let machines: Vec<_> = (0..5)
        .map(|n| client(&server, &format!("m{n}")).0)
        .collect();
    let jobs = machines.iter().map(async |locks| {
        let job = once(locks).at(fire);
        let ran = job.run(async |_job| {
            runs.set(runs.get() + 1);
            tokio::time::sleep(ms(20)).await;
            Err::<(), _>("no")
        });
        ran.await
    });
    let outcomes = futures_util::future::join_all(jobs).await;
    let all_failed = |it: &Result<_, _>| matches!(it, Ok(JobOutcome::GaveUp { attempts: 3, .. }));
    assert!(outcomes.iter().all(all_failed), "{outcomes:?}");
    let told = Some(JobFailure::Error("no"));
    let last = |it: &Ran| matches!(it, Ok(JobOutcome::GaveUp { failure, .. }) if *failure == told);
    assert!(outcomes.iter().any(last), "{outcomes:?}");
    assert_eq!(runs.get(), 3);
    let took = server.elapsed().saturating_sub(begun);
    assert!((secs(90)..secs(92)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn another_machine_runs_it_if_the_winner_dies() {
    let (server, [(a, network), (b, _)]) = connected();
    let fire = now(&server);
    let first = once(&a).at(fire);
    let dying = first.run(async |_job| std::future::pending::<Result<(), Error>>().await);
    let runs = Cell::new(0);
    let attempt = Cell::new(0);
    let waits = async {
        server.advance(secs(1)).await;
        let second = once(&b).at(fire);
        let waiting = second.run(async |job| {
            attempt.set(job.attempt());
            runs.set(runs.get() + 1);
            Ok::<_, Error>(())
        });
        let kills = async {
            server.advance(secs(1)).await;
            network.kill();
        };
        futures_util::future::join(waiting, kills).await.0
    };
    let outcome = tokio::select! {
        biased;
        outcome = waits => outcome,
        _ = dying => panic!("it was killed"),
    };
    assert_is!(outcome => Ok(JobOutcome::Done(())));
    assert_eq!((runs.get(), attempt.get()), (1, 2));
    assert!(server.elapsed() < secs(70), "{:?}", server.elapsed());
}

#[tokio::test(start_paused = true)]
async fn failed_attempts_are_repeated_with_pauses_and_then_given_up() {
    let (server, [a, b]) = clients();
    let fire = now(&server);
    let starts = RefCell::new(Vec::new());
    let job = once(&a).at(fire);
    let outcome = job.run(async |job| {
        starts.borrow_mut().push((job.attempt(), server.elapsed()));
        Err::<(), _>(job.attempt())
    });
    assert_eq!(outcome.await.expect("answered"), gave_up(Some(3)));
    let starts = starts.into_inner();
    let attempts: Vec<_> = starts.iter().map(|(attempt, _)| *attempt).collect();
    assert_eq!(attempts, [1, 2, 3]);
    for (pair, pause) in starts.windows(2).zip([secs(30), secs(60)]) {
        let waited = pair[1].1 - pair[0].1;
        assert!(waited >= pause && waited < pause + ms(200), "{waited:?}");
    }
    // Neither here nor elsewhere does it run again, until an operator resets it.
    let runs = Cell::new(0);
    let other = count(&once(&b).at(fire), &runs).await.expect("answered");
    assert_eq!(other, gave_up(None));
    assert_eq!(once(&b).reset().await.expect("answered"), JobReset::Reset);
    let again = count(&once(&b).at(fire), &runs).await.expect("answered");
    assert_eq!((again, runs.get()), (JobOutcome::Done(()), 1));
}

#[tokio::test(start_paused = true)]
async fn job_that_kills_its_machine_does_not_kill_them_all() {
    let server = server();
    let fire = now(&server);
    let mut killed = 0;
    for n in 0..6 {
        let (locks, network) = client(&server, &format!("m{n}"));
        let job = once(&locks).at(fire);
        let body = async |_job: leasehold_api::Job| {
            network.kill();
            std::future::pending::<Result<(), Error>>().await
        };
        let outcome = tokio::select! {
            outcome = job.run(body) => Some(outcome.expect("answered")),
            () = server.advance(secs(400)) => None,
        };
        killed += usize::from(outcome.is_none());
    }
    assert_eq!(killed, 3);
}

/// A job whose body takes longer than its window, and fails or kills its machine.
#[tokio::test(start_paused = true)]
async fn call_begins_no_second_occurrence() {
    let (server, [(a, network), (b, _)]) = connected();
    let window = secs(600);
    let runs = Cell::new(0);
    let fails = async |_job| {
        runs.set(runs.get() + 1);
        server.advance(secs(900)).await;
        Err::<(), _>("broken")
    };
    let told = missed(Some("broken"));
    let ran = once(&a).not_within(window).run(fails).await;
    assert_eq!((ran.expect("told"), runs.get()), (told.clone(), 1));
    let ran = once(&a).not_within(window).try_run(fails).await;
    assert_eq!((ran.expect("told"), runs.get()), (told, 2));

    let (first, second) = (once(&a).not_within(window), once(&b).not_within(window));
    let dying = first.run(async |_job| {
        server.advance(secs(900)).await;
        network.kill();
        std::future::pending::<Result<(), Error>>().await
    });
    let waits = async {
        server.advance(secs(1)).await;
        count(&second, &runs).await
    };
    let waited = tokio::select! {
        biased;
        waited = waits => waited,
        _ = dying => panic!("it was killed"),
    };
    assert_is!(waited => Ok(JobOutcome::Missed { .. }));
    assert_eq!(runs.get(), 2);
}

/// The body failed here, so the call says that, whoever goes on.
#[tokio::test(start_paused = true)]
async fn try_run_tells_its_failure_although_another_machine_waits() {
    let (server, [a, b]) = clients();
    let fire = now(&server);
    let first = once(&a).at(fire);
    let failing = first.try_run(async |_job| {
        server.advance(secs(5)).await;
        Err::<(), _>("broken")
    });
    let waiting = async {
        server.advance(secs(1)).await;
        let guard = b.mutex("job").expect("valid").lock().await;
        server.advance(secs(1)).await;
        drop(guard);
    };
    let (failed, ()) = tokio::join!(failing, waiting);
    let told = Some(JobFailure::Error("broken"));
    assert_is!(failed => Ok(JobOutcome::Failed { failure, .. }) if *failure == told);
}

#[tokio::test(start_paused = true)]
async fn running_job_is_not_reset_and_its_status_is_shown() {
    let (server, [a, b]) = clients();
    let fire = now(&server);
    let job = once(&a).at(fire);
    let ran = job.run(async |_job| {
        assert_is!(once(&b).reset().await.expect("answered") => JobReset::Running { by: Some(_) });
        let status = once(&b).status().await.expect("answered");
        assert_eq!((status.done, status.tried), (None, Some(fire)));
        assert_eq!(status.attempts, 1);
        assert_eq!(status.state, JobState::Running);
        assert_eq!(status.running.expect("it runs").as_str(), "a");
        let elsewhere = once(&b).at(fire);
        let tried = elsewhere.try_run(async |_job| Ok::<_, Error>(())).await;
        assert_is!(tried => Ok(JobOutcome::Running { by: Some(by) }) if by.as_str() == "a");
        Ok::<_, Error>(())
    });
    drop(ran.await);
    let status = once(&b).status().await.expect("answered");
    assert_eq!((status.done, status.running), (Some(fire), None));
    assert_eq!((status.state, status.next), (JobState::Done, None));
    assert_eq!(status.tried_by.expect("it ran").as_str(), "a");
    assert!(status.done_at.is_some());
}

#[tokio::test(start_paused = true)]
async fn status_tells_what_follows_an_attempt() {
    let (server, [a, b]) = clients();
    let status = async || once(&b).status().await.expect("answered");
    assert_eq!(
        (status().await.state, status().await.next),
        (JobState::NoRecord, None)
    );
    let job = a.once("job").expect("valid").attempts(2);
    let hourly = job.not_within(HOUR);

    // The call is dropped while its body runs.
    let hangs = hourly.run(async |_job| std::future::pending::<Result<(), Error>>().await);
    let ended = tokio::time::timeout(secs(5), hangs).await;
    assert!(ended.is_err());
    server.advance(secs(1)).await;
    let seen = status().await;
    assert_eq!((seen.state, seen.attempts), (JobState::Interrupted, 1));
    let began = seen.tried_at.expect("it was tried");
    assert_eq!(seen.next, Some(began.saturating_add(secs(30))));

    server.advance(secs(30)).await;
    let last = hourly.try_run(async |job| {
        set_exit_status(&job, 3);
        Err::<(), _>("broken")
    });
    assert_is!(last.await => Ok(JobOutcome::GaveUp { attempts: 2, .. }));
    let seen = status().await;
    assert_eq!((seen.state, seen.attempts), (JobState::GaveUp, 2));
    assert_eq!(seen.exit_status, Some(3));
    let again = began.saturating_add(HOUR);
    assert!(seen.next.expect("another one") <= again);

    // Another occurrence may follow, which has attempts left.
    server.advance(HOUR).await;
    let failed = hourly.try_run(async |_job| Err::<(), _>("broken")).await;
    assert_is!(failed => Ok(JobOutcome::Failed { .. }));
    let seen = status().await;
    assert_eq!((seen.state, seen.exit_status), (JobState::Failed, None));
    server.advance(HOUR * 2).await;
    let seen = status().await;
    assert_eq!(seen.state, JobState::Missed);
    assert_eq!(seen.done_at, None);
}

#[tokio::test(start_paused = true)]
async fn bad_input_is_refused_before_any_io() {
    let (server, [(a, network)]) = connected();
    network.isolate();
    let runs = Cell::new(0);
    for window in [Duration::ZERO, secs(9), HOUR * 48] {
        let begun = server.elapsed();
        let job = once(&a).at(now(&server)).start_before(window);
        let refused = count(&job, &runs).await;
        assert_error!(refused, InvalidInput);
        let refused = count(&once(&a).not_within(window), &runs).await;
        assert_error!(refused, InvalidInput);
        let mut every = once(&a).every(window);
        let refused = every.run_next(async |_job| Ok::<_, Error>(())).await;
        assert_error!(refused, InvalidInput);
        assert_eq!(server.elapsed(), begun);
    }
    let never = once(&a).attempts(0).at(now(&server));
    assert_error!(count(&never, &runs).await, InvalidInput);
    assert!(a.once("").is_err());
}

#[tokio::test(start_paused = true)]
async fn note_of_something_else_is_foreign() {
    let (server, [a]) = clients();
    let election = a.election("job").expect("valid").info(b"here".to_vec());
    let term = election.expect("short").campaign().await.expect("free");
    let runs = Cell::new(0);
    assert_error!(count(&once(&a).at(now(&server)), &runs).await, ForeignValue);
    drop(term);
    assert_eq!(runs.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_a_waiting_run() {
    let (server, [a]) = clients();
    let fire = FireTime::from_millis(now(&server).as_millis() + 1_000_000);
    let (job, runs) = (once(&a).at(fire), Cell::new(0));
    let shuts = async {
        server.advance(secs(1)).await;
        a.shutdown().await.expect("nothing held");
    };
    let (outcome, ()) = tokio::join!(count(&job, &runs), shuts);
    assert_error!(outcome, Closed);
}

#[tokio::test(start_paused = true)]
async fn last_attempt_that_runs_is_not_given_up_yet() {
    let (server, [a, b]) = clients();
    let fire = now(&server);
    let first = once(&a).attempts(1).at(fire);
    let runs = first.run(async |_job| {
        server.advance(secs(50)).await;
        Ok::<_, &str>(())
    });
    let second = once(&b).attempts(1).at(fire);
    let waits = async {
        server.advance(secs(1)).await;
        second.run(async |_job| Ok::<_, &str>(())).await
    };
    let (first, second) = tokio::join!(runs, waits);
    assert_eq!(first.expect("answered"), JobOutcome::Done(()));
    assert_eq!(second.expect("answered"), JobOutcome::AlreadyDone { fire });
}
