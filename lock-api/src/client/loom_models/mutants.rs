//! Mutants that need threads: for each one, a model that must fail with it.
//!
//! The test starts this program again for each pair of mutant and model, with the mutant in an
//! environment variable. A model that passes or hangs has missed its mutant.

use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::mutants::Mutant;

/// The environment variable that names the mutant of a model's process.
const MUTANT: &str = "LEASEHOLD_MUTANT";
/// A model hangs if it has not returned after this many checks.
const MAX_CHECKS: u32 = 1_200;
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Each mutant, and the models that must fail with it.
const FOUND_BY: &[(Mutant, &str)] = &[
    (
        Mutant::RenewsAfterRelease,
        "clients::loom_release_stops_a_concurrent_renewal",
    ),
    (
        Mutant::RenewsAfterRelease,
        "cells::loom_nothing_is_renewed_after_its_release_began",
    ),
    (
        Mutant::ReleaseBeforeRenewalStops,
        "clients::loom_release_stops_a_concurrent_renewal",
    ),
    (
        Mutant::CancelBeforeSchedule,
        "clients::loom_release_stops_a_concurrent_renewal",
    ),
    (
        Mutant::ListenerChecksFirst,
        "cells::loom_change_between_check_and_wait_wakes",
    ),
    (
        Mutant::ListenerChecksFirst,
        "clients::loom_loss_wakes_its_waiter",
    ),
    (
        Mutant::RouterForgetsTooSoon,
        "clients::loom_dropped_attempt_leaves_nothing",
    ),
    (
        Mutant::BatchThatNobodySends,
        "batches::loom_concurrent_requests_are_both_sent",
    ),
    (
        Mutant::TwoTakersOfAGrant,
        "cells::loom_pushed_grant_is_taken_once",
    ),
];

/// Enables the mutant that the environment names.
pub(super) fn plant() {
    if let Ok(name) = std::env::var(MUTANT) {
        let mutant = Mutant::from_name(&name);
        mutant
            .unwrap_or_else(|| panic!("no mutant {name:?}"))
            .plant();
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
fn run(mutant: Mutant, model: &str) -> io::Result<Option<ExitStatus>> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--exact", &format!("client::loom_models::{model}")])
        .env(MUTANT, mutant.name())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    wait(&mut child)
}

#[test]
fn mutants_among_threads_are_found() {
    for mutant in Mutant::ALL.iter().filter(|mutant| mutant.needs_threads()) {
        let found = FOUND_BY.iter().any(|(covered, _)| covered == mutant);
        assert!(found, "no model for {}", mutant.name());
    }
    println!("{:<50} model that fails", "mutant");
    let mut missed = Vec::new();
    for (mutant, model) in FOUND_BY {
        match run(*mutant, model).expect("this program runs") {
            // The run also succeeds if no model has that name.
            Some(status) if !status.success() => println!("{:<50} {model}", mutant.name()),
            Some(_) => missed.push(format!("{}: {model} passes", mutant.name())),
            None => missed.push(format!("{}: {model} hangs", mutant.name())),
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
