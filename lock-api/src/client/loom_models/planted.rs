//! Planted faults that take threads, each of which a model must find.

use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::mutants::Mutant;

/// The environment variable that names what a model's process plants.
const PLANT: &str = "LEASEHOLD_MUTANT";
/// How often, and for how long each time, a model is looked at before it counts as hanging.
const LOOKS: u32 = 1_200;
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What is planted, and the model that must fail then.
const FOUND_BY: &[(Mutant, &str)] = &[
    (
        Mutant::RenewsAfterRelease,
        "clients::loom_a_release_beside_a_renewal_stops_it",
    ),
    (
        Mutant::RenewsAfterRelease,
        "cells::loom_nothing_is_renewed_after_its_end_began",
    ),
    (
        Mutant::ReleaseBeforeRenewalStops,
        "clients::loom_a_release_beside_a_renewal_stops_it",
    ),
    (
        Mutant::CancelBeforeSchedule,
        "clients::loom_a_release_beside_a_renewal_stops_it",
    ),
    (
        Mutant::ListenerChecksFirst,
        "cells::loom_a_change_between_look_and_wait_wakes",
    ),
    (
        Mutant::ListenerChecksFirst,
        "clients::loom_who_awaits_a_loss_is_told",
    ),
    (
        Mutant::RouterForgetsTooSoon,
        "clients::loom_an_attempt_that_is_dropped_leaves_nothing",
    ),
    (
        Mutant::BatchThatNobodySends,
        "batcher::loom_two_that_come_together_are_both_sent",
    ),
    (
        Mutant::TwoTakersOfAGrant,
        "cells::loom_a_pushed_grant_has_one_taker",
    ),
];

/// Plants what this process is to look for.
pub(super) fn plant() {
    if let Ok(name) = std::env::var(PLANT) {
        let mutant = Mutant::from_name(&name);
        mutant
            .unwrap_or_else(|| panic!("no fault {name:?}"))
            .plant();
    }
}

/// Waits for a model, for two minutes at most.
#[expect(clippy::disallowed_methods, reason = "another process takes real time")]
fn wait(model: &mut Child) -> io::Result<Option<ExitStatus>> {
    for _ in 0..LOOKS {
        if let Some(status) = model.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    model.kill()?;
    model.wait()?;
    Ok(None)
}

/// Runs a model with a fault planted: how it ended, `None` if it did not.
fn run(mutant: Mutant, model: &str) -> io::Result<Option<ExitStatus>> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--exact", &format!("client::loom_models::{model}")])
        .env(PLANT, mutant.name())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    wait(&mut child)
}

#[test]
fn planted_faults_among_threads_are_found() {
    for mutant in Mutant::ALL.iter().filter(|mutant| mutant.needs_threads()) {
        let found = FOUND_BY.iter().any(|(planted, _)| planted == mutant);
        assert!(found, "no model for {}", mutant.name());
    }
    println!("{:<50} model that fails", "mutant");
    let mut missed = Vec::new();
    for (mutant, model) in FOUND_BY {
        match run(*mutant, model).expect("this program runs") {
            // A model of no such name passes, too.
            Some(status) if !status.success() => println!("{:<50} {model}", mutant.name()),
            Some(_) => missed.push(format!("{}: {model} passes", mutant.name())),
            None => missed.push(format!("{}: {model} hangs", mutant.name())),
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
