//! The two drivers and the schedulings: the same tape gives the same run.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::ops::ControlFlow;
use std::time::Duration;

use leasehold_api::{LockBackend as _, LockClient, Outcome};
use leasehold_sim::tools::{Scheduling, Site};
use leasehold_sim::{
    Data, Ending, Fault, Latency, RunReport, SimBackend, SimOptions, SimServer, Simulation,
};

use crate::support::{ms, paused, secs};

/// A scenario whose tasks all belong to the simulation.
pub(crate) async fn scenario(sim: SimServer) -> (u32, u64) {
    let backends = ["a", "b", "c"].map(|name| sim.client(name));
    let workers = backends
        .clone()
        .map(|backend| sim.spawn(worker(sim.clone(), backend)));
    let chaos = sim.spawn(chaos(sim.clone(), backends));
    let mut acquired = 0;
    for worker in workers {
        acquired += worker.await;
    }
    chaos.await;
    (acquired, sim.trace())
}

async fn worker(sim: SimServer, backend: SimBackend) -> u32 {
    let locks = LockClient::new(backend.clone());
    let mut acquired = 0;
    for _ in 0..3 {
        let mutex = locks.mutex("job").expect("a valid name").lease(secs(3));
        let wait_limit = ms(u64::from(sim.draw(4_000)));
        if let Ok(Outcome::Acquired(guard)) = mutex.try_lock_for(wait_limit).await {
            acquired += 1;
            sim.sleep(ms(u64::from(sim.draw(2_000)))).await;
            // The result doesn't matter: the release continues in the background.
            drop(guard.release().await);
        }
    }
    acquired
}

async fn chaos(sim: SimServer, clients: [SimBackend; 3]) {
    for _ in 0..8 {
        sim.sleep(ms(u64::from(sim.draw(400)))).await;
        let victim = &clients[sim.draw(3) as usize];
        let late = ms(u64::from(sim.draw(2_000)));
        match sim.draw(12) {
            0 | 1 => victim.inject(Fault::LoseReply),
            2 => victim.inject(Fault::LoseRequest),
            3 => victim.inject(Fault::DelayRequest(late)),
            4 => victim.inject(Fault::DelayReply(late)),
            5 => victim.inject(Fault::DuplicateRequest(late)),
            6 => victim.inject(Fault::LosePush),
            7 => victim.inject(Fault::DelayPush(late)),
            8 => victim.drop_connection(),
            9 => {
                victim.pause();
                sim.sleep(late).await;
                victim.resume();
            }
            10 => {
                victim.isolate();
                sim.sleep(late).await;
                victim.rejoin();
            }
            _ => sim.restart(Data::Kept),
        }
    }
}

pub(crate) fn options(seed: u64) -> SimOptions {
    SimOptions::new(seed).latency(Latency::between(ms(0), ms(3)))
}

fn run(seed: u64, scheduling: Scheduling) -> RunReport<(u32, u64)> {
    Simulation::new(options(seed))
        .scheduling(scheduling)
        .run(scenario)
}

fn completed<T: Debug>(report: &RunReport<T>) -> &T {
    match &report.ending {
        Ending::Completed(output) => output,
        other => panic!("{other:?}\n{}", report.timeline()),
    }
}

/// Runs the scenario in a tokio runtime. Returns its output and its timeline.
fn run_on_tokio(seed: u64) -> ((u32, u64), String) {
    paused().block_on(async {
        let sim = SimServer::with_options(options(seed));
        let task = sim.spawn(scenario(sim.clone()));
        let output = task.await;
        (output, sim.timeline())
    })
}

#[test]
fn both_drivers_give_the_same_run() {
    let mut acquired = 0;
    for seed in 0..300 {
        let own = run(seed, Scheduling::Random);
        let (output, timeline) = run_on_tokio(seed);
        let own_timeline = own.timeline();
        assert!(
            timeline.starts_with(&own_timeline),
            "seed {seed}\n{own_timeline}\n\n{timeline}"
        );
        assert_eq!(*completed(&own), output, "seed {seed}");
        acquired += output.0;
    }
    assert!(acquired > 1_500, "{acquired} acquisitions in 300 runs");
}

#[test]
fn tape_repeats_a_run_under_any_scheduling() {
    let pct = Scheduling::Pct {
        depth: 3,
        length: 500,
    };
    for seed in 0..30 {
        for scheduling in [Scheduling::Random, pct.clone()] {
            let first = run(seed, scheduling);
            let text = first.tape.to_string();
            let tape = text.parse().expect("a tape");
            let again = run(0, Scheduling::Replay(tape));
            assert_eq!(completed(&again), completed(&first));
            assert_eq!(again.trace, first.trace);
            assert_eq!(again.timeline(), first.timeline());
        }
    }
}

#[test]
fn seeds_and_schedulings_give_different_runs() {
    let pct = Scheduling::Pct {
        depth: 2,
        length: 500,
    };
    let mut traces: Vec<u64> = (0..20)
        .flat_map(|seed| [run(seed, Scheduling::Random), run(seed, pct.clone())])
        .map(|report| report.trace)
        .collect();
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), 40);
}

#[test]
fn diverging_replay_names_the_draw() {
    let mut tape = run(7, Scheduling::Random).tape;
    tape.draws[20].bound += 1;
    let recorded = tape.draws[20];
    match run(7, Scheduling::Replay(tape)).ending {
        Ending::Diverged(divergence) => {
            assert_eq!((divergence.draw, divergence.recorded), (20, recorded));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn changed_tape_is_followed_as_far_as_it_fits() {
    let mut tape = run(7, Scheduling::Random).tape;
    for draw in tape.draws.iter_mut().step_by(3) {
        draw.value = 0;
    }
    let changed = run(7, Scheduling::Guided(tape));
    completed(&changed);
    let again = run(7, Scheduling::Replay(changed.tape.clone()));
    assert_eq!(again.trace, changed.trace);
}

#[test]
#[should_panic(expected = "the replay diverges at draw 0")]
fn diverging_replay_fails_a_tokio_test() {
    paused().block_on(async {
        let tape = "7.o5:3.A".parse().expect("a tape");
        let sim = SimServer::with_scheduling(options(7), Scheduling::Replay(tape));
        sim.draw(9);
        sim.sleep(ms(1)).await;
    });
}

#[test]
fn deadlock_ends_the_run() {
    let report = Simulation::new(options(1)).run(|sim| async move {
        sim.sleep(secs(5)).await;
        std::future::pending::<()>().await;
    });
    assert_eq!(report.ending, Ending::Deadlock);
    assert_eq!(report.elapsed, secs(5));
}

#[test]
fn limits_end_the_run() {
    let endless = |sim: SimServer| async move {
        loop {
            sim.sleep(secs(1)).await;
        }
    };
    let simulation = Simulation::new(options(1));
    let report: RunReport<()> = simulation.clone().time_limit(secs(60)).run(endless);
    assert_eq!(report.ending, Ending::TimeLimit);
    assert_eq!(report.elapsed, secs(60));
    let report: RunReport<()> = simulation.step_limit(100).run(endless);
    assert_eq!((report.ending, report.steps), (Ending::StepLimit, 100));
}

#[test]
fn panic_of_a_task_ends_the_run() {
    let report = Simulation::new(options(1)).run(|sim| async move {
        drop(sim.spawn(async { panic!("of a task") }));
        sim.sleep(secs(1)).await;
    });
    assert_eq!(report.ending, Ending::Panicked("of a task".into()));
    let report = Simulation::new(options(1)).run(|_| async { panic!("of the scenario") });
    let ending: Ending<()> = report.ending;
    assert_eq!(ending, Ending::Panicked("of the scenario".into()));
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "a task of the simulation panicked: of a task")]
async fn panic_of_a_task_fails_a_tokio_test() {
    let sim = SimServer::new(1);
    drop(sim.spawn(async { panic!("of a task") }));
    sim.sleep(secs(1)).await;
    sim.sleep(secs(1)).await;
}

#[test]
fn timeouts_and_tasks_end_in_time() {
    let report = Simulation::new(options(1)).run(|sim| async move {
        let in_time = sim.timeout(secs(2), sim.sleep(secs(1))).await;
        let too_late = sim.timeout(secs(2), sim.sleep(secs(3))).await;
        sim.yield_now().await;
        let elsewhere = sim.clone();
        let task = sim.spawn(async move {
            elsewhere.sleep(Duration::from_nanos(1)).await;
            elsewhere.elapsed()
        });
        (in_time, too_late, task.await)
    });
    assert_eq!(*completed(&report), (Some(()), None, ms(3_001)));
}

#[test]
fn depth_first_reaches_every_order_of_tasks() {
    // Three tasks with two steps each have 6! / 2!^3 orders.
    let (mut seen, mut choices) = (BTreeSet::new(), BTreeSet::new());
    let runs = Simulation::new(options(1)).run_all(&[Site::Task], three_tasks, |report| {
        seen.insert(completed(report).clone());
        let first = choices.insert(report.tape.draws.clone());
        assert!(first, "the same choices again: {}", report.tape);
        ControlFlow::Continue(())
    });
    assert_eq!(seen.len(), 90);
    // The awaiting task runs sometimes too, which is not a step of the three tasks.
    assert!(runs >= 90, "{runs}");
}

async fn three_tasks(sim: SimServer) -> Vec<usize> {
    let steps = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let tasks = [0, 1, 2].map(|task| {
        let (sim, steps) = (sim.clone(), std::sync::Arc::clone(&steps));
        sim.clone().spawn(async move {
            steps.lock().expect("no panic").push(task);
            sim.yield_now().await;
            steps.lock().expect("no panic").push(task);
        })
    });
    for task in tasks {
        task.await;
    }
    std::mem::take(&mut *steps.lock().expect("no panic"))
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "a task of the simulation panicked: nobody awaits this")]
async fn panic_that_nobody_awaits_fails_the_test() {
    let server = SimServer::new(1);
    drop(server.spawn(async { panic!("nobody awaits this") }));
    server.advance(ms(1)).await;
}

/// The depth may be larger than the number of turns.
#[test]
fn pct_accepts_any_depth() {
    let scheduling = Scheduling::Pct {
        depth: u32::MAX,
        length: 10,
    };
    let simulation = Simulation::new(SimOptions::new(1)).scheduling(scheduling);
    let report = simulation.run(|sim| async move {
        let hello = |name| {
            let client = sim.client(name);
            sim.spawn(async move { client.hello().await.is_ok() })
        };
        let (a, b) = (hello("a"), hello("b"));
        a.await && b.await
    });
    assert_eq!(report.ending, Ending::Completed(true));
}
