//! The same version and the same seed give the same run, in every process and every build: `./test full` compares
//! what debug and release builds print.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::process::Command;
use std::time::Duration;

use leasehold_api::{LockClient, Outcome};
use leasehold_sim::tools::Site;
use leasehold_sim::{Ending, Fault, Latency, RunReport, SimOptions, SimServer, Simulation};
use leasehold_verifier::try_only;

fn options(seed: u64) -> SimOptions {
    let latency = Latency::between(Duration::ZERO, Duration::from_millis(3));
    SimOptions::new(seed).latency(latency)
}

fn completed<T>(report: &RunReport<T>) -> bool {
    matches!(report.ending, Ending::Completed(_))
}

/// Returns the hash of a run without a lock client.
fn bare(seed: u64) -> u64 {
    let report = Simulation::new(options(seed)).run(|sim| try_only(sim, 4, 6));
    assert!(completed(&report), "{}", report.timeline());
    report.trace
}

/// Returns the hash of a run with lock clients and faults.
fn locks(seed: u64) -> u64 {
    let report = Simulation::new(options(seed)).run(|sim| async move {
        let tasks: Vec<_> = ["a", "b", "c"]
            .map(|name| sim.spawn(worker(sim.clone(), name)))
            .into();
        for task in tasks {
            task.await;
        }
    });
    assert!(completed(&report), "{}", report.timeline());
    report.trace
}

async fn worker(sim: SimServer, name: &'static str) {
    let backend = sim.client(name);
    let locks = LockClient::new(backend.clone());
    let mutex = locks.mutex("job").expect("a valid name");
    for _ in 0..4 {
        match sim.draw(6) {
            0 => backend.inject(Fault::LoseReply),
            1 => backend.inject(Fault::LosePush),
            2 => backend.inject(Fault::DelayRequest(Duration::from_millis(700))),
            _ => {}
        }
        let outcome = mutex.try_lock_for(Duration::from_secs(20)).await;
        if let Ok(Outcome::Acquired(guard)) = outcome {
            let work = Duration::from_millis(u64::from(sim.draw(3_000)));
            sim.sleep(work).await;
            // The result doesn't matter: the release continues in the background.
            drop(guard.release().await);
        }
    }
}

#[test]
fn a_seed_gives_the_same_run_100_times() {
    let first = locks(3);
    assert!((0..100).all(|_| locks(3) == first));
    assert_ne!(locks(4), first);
}

/// With this variable, the test is a child process, and prints its hashes.
const PRINT: &str = "LEASEHOLD_PRINT_TRACES";

fn traces() -> String {
    let mut text = String::from("traces");
    for seed in 0..10 {
        let _ = write!(text, " {:016x} {:016x}", bare(seed), locks(seed));
    }
    text
}

#[test]
fn three_processes_give_the_same_runs() {
    let traces = traces();
    if std::env::var_os(PRINT).is_some() {
        println!("\n{traces}");
        return;
    }
    for _ in 0..3 {
        let program = std::env::current_exe().expect("this program");
        let output = Command::new(program)
            .args([
                "--exact",
                "same_runs::three_processes_give_the_same_runs",
                "--nocapture",
            ])
            .env(PRINT, "1")
            .output()
            .expect("this program runs");
        let output = String::from_utf8_lossy(&output.stdout);
        let printed = output.lines().find(|line| line.starts_with("traces"));
        assert_eq!(printed, Some(&*traces));
    }
}

#[test]
fn every_order_of_a_small_scope_is_run_once() {
    // (clients × calls)! / calls!^clients
    for (clients, calls, orders) in [(3, 2, 90), (2, 4, 70), (3, 3, 1_680)] {
        assert_eq!(run_all(clients, calls), orders);
    }
}

fn run_all(clients: usize, calls: usize) -> u64 {
    let options = SimOptions::new(1).atomic_calls(true).log_limit(0);
    let mut traces = Vec::new();
    let runs = Simulation::new(options).run_all(
        &[Site::Order],
        |sim| try_only(sim, clients, calls),
        |report| {
            assert!(completed(report));
            traces.push(report.trace);
            ControlFlow::Continue(())
        },
    );
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len() as u64, runs, "two runs are the same");
    runs
}
