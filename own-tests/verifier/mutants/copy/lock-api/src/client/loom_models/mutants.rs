//! Mutants that need threads: for each one, a model that must fail with it.
//!
//! The test starts this program again for each pair of mutant and model, with the mutant in an
//! environment variable. A model that passes or hangs has missed its mutant.

use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::mutants;

/// The environment variable that names the mutant of a model's process.
const MUTANT: &str = "LEASEHOLD_MUTANT";
/// A model hangs if it has not returned after this many checks.
const MAX_CHECKS: u32 = 1_200;
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Each mutant, and the models that must fail with it.
const FOUND_BY: &[(&str, &str)] = &[
    (
        "watchdog-renews-after-release",
        "clients::loom_release_stops_a_concurrent_renewal",
    ),
    (
        "watchdog-renews-after-release",
        "cells::loom_nothing_is_renewed_after_its_release_began",
    ),
    (
        "release-acknowledged-before-the-renewal-is-stopped",
        "clients::loom_release_stops_a_concurrent_renewal",
    ),
    (
        "cancel-before-schedule-race-of-the-watchdog",
        "clients::loom_release_stops_a_concurrent_renewal",
    ),
    (
        "listener-that-checks-before-it-registers",
        "cells::loom_change_between_check_and_wait_wakes",
    ),
    (
        "listener-that-checks-before-it-registers",
        "clients::loom_loss_wakes_its_waiter",
    ),
    (
        "router-entry-removed-before-its-release",
        "clients::loom_dropped_attempt_leaves_nothing",
    ),
    (
        "batch-that-nobody-sends",
        "batches::loom_concurrent_requests_are_both_sent",
    ),
    (
        "two-takers-of-one-pushed-grant",
        "cells::loom_pushed_grant_is_taken_once",
    ),
];

/// Enables the mutant that the environment names.
pub(super) fn plant() {
    if let Ok(name) = std::env::var(MUTANT) {
        assert!(mutants::plant(&name), "no mutant {name:?}");
    }
}

/// Waits for a model, for two minutes at most. `None` if it hangs.
#[expect(clippy::disallowed_methods, reason = "another process takes real time")]
fn wait(model: &mut Child) -> io::Result<Option<ExitStatus>> {
    for _ in 0..MAX_CHECKS {
        if let Some(status) = model.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
    model.kill()?;
    model.wait()?;
    Ok(None)
}

/// Runs a model with a mutant. `None` if it hangs.
fn run(mutant: &str, model: &str) -> io::Result<Option<ExitStatus>> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--exact", &format!("client::loom_models::{model}")])
        .env(MUTANT, mutant)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    wait(&mut child)
}

#[test]
fn mutants_among_threads_are_found() {
    for mutant in mutants::NEED_THREADS {
        let found = FOUND_BY.iter().any(|(covered, _)| covered == mutant);
        assert!(found, "no model for {mutant}");
    }
    println!("{:<50} model that fails", "mutant");
    let mut missed = Vec::new();
    for (mutant, model) in FOUND_BY {
        match run(mutant, model).expect("this program runs") {
            // The run also succeeds if no model has that name.
            Some(status) if !status.success() => println!("{mutant:<50} {model}"),
            Some(_) => missed.push(format!("{mutant}: {model} passes")),
            None => missed.push(format!("{mutant}: {model} hangs")),
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
