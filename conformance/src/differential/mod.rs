//! The differential test: a backend against the state machine.
//!
//! The test sends random sequences of commands to a backend and to `leasehold_api::machine`. The
//! machine executes each command at the time that the backend's reply reports, and with the same
//! sessions listening. So both must give the same replies, and every session must receive exactly
//! the machine's notifications, in order. Commands are also repeated, immediately or later, and
//! real sleeps let leases of milliseconds expire.
//!
//! The test first measures how long two commands take: the *unit*, at least 1 ms. Leases and sleeps
//! are multiples of it, so that on a slow backend, too, they end between two commands.
//!
//! The test counts every pair of command and outcome, for first and repeated commands. Each pair has
//! a *quota*: it must occur that often, or the test fails, because a run that never reached an outcome
//! says nothing about it. The quota is 20, and less if the unit is 20 ms or more. If quotas are
//! missing at the end, the run goes on for a while.
//!
//! Proptest shrinks a failed sequence. Time is real, so a failure that depends on microseconds may
//! not shrink fully.
//!
//! A backend without [`push`](leasehold_api::Capabilities::push) or
//! [`reachability`](leasehold_api::Capabilities::reachability) is compared with a machine that can't
//! tell who listens. All other capabilities are required, except for `independent_renewal` and
//! `batches`.

mod describe;
mod estimates;
mod moves;
mod outcomes;
mod play;
mod subscribers;

use std::cell::RefCell;
use std::env;
use std::sync::Arc;

use leasehold_api::LockBackend;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use tokio::runtime::Runtime;

pub use outcomes::Counts;

/// The variable with the number of commands to compare.
pub const COMMANDS_VARIABLE: &str = "LEASEHOLD_DIFFERENTIAL_COMMANDS";
const COMMANDS: u64 = 10_000;
/// A run continues until every quota is reached. It stops at this multiple of the
/// requested commands, or of [`COMMANDS`] if that is more, so that a short run doesn't miss rare
/// outcomes.
const MAX_FACTOR: u64 = 6;
/// The maximum number of sequences tried while shrinking a failed one.
const SHRINK: u32 = 500;
/// The maximum time for shrinking, in ms. A sequence with a missing notification takes seconds.
const SHRINK_TIME: u32 = 60_000;

/// The number of commands for [`check`]: the value of [`COMMANDS_VARIABLE`], or 10,000.
///
/// # Panics
/// If the variable is set and is not a number.
#[must_use]
pub fn commands() -> u64 {
    env::var(COMMANDS_VARIABLE).map_or(COMMANDS, |text| {
        let number = text.parse();
        number.unwrap_or_else(|_| panic!("{COMMANDS_VARIABLE} is not a number: {text}"))
    })
}

/// Plays random sequences to `backend` on `runtime`.
///
/// The run ends when at least `commands` commands were compared and every outcome was seen. It also
/// ends after six times as many commands, but not before 60,000, or fewer on a slow backend.
///
/// # Errors
/// Returns the shrunk sequence with the replies of both sides, or the outcomes that missed their quota.
///
/// # Panics
/// Panics inside another tokio runtime.
pub fn check(
    runtime: &Runtime,
    backend: Arc<dyn LockBackend>,
    commands: u64,
) -> Result<Counts, String> {
    run(runtime, backend, commands, false)
}

/// As [`check`], for a backend that executes some acquires at an estimate of its clock.
///
/// Such a step is before the stamp of its reply, by at most a second. The remaining time or the token in the reply to
/// an acquire tells when. The machine then executes the acquire at that time.
///
/// # Errors
/// Those of [`check`].
///
/// # Panics
/// Panics inside another tokio runtime.
pub fn check_with_estimates(
    runtime: &Runtime,
    backend: Arc<dyn LockBackend>,
    commands: u64,
) -> Result<Counts, String> {
    run(runtime, backend, commands, true)
}

fn run(
    runtime: &Runtime,
    backend: Arc<dyn LockBackend>,
    commands: u64,
    estimates: bool,
) -> Result<Counts, String> {
    let fixture = RefCell::new(runtime.block_on(play::Fixture::new(backend, estimates))?);
    let config = Config {
        failure_persistence: None,
        max_shrink_iters: SHRINK,
        max_shrink_time: SHRINK_TIME,
        ..Config::default()
    };
    let mut runner = TestRunner::new(config);
    let scripts = moves::scripts();
    let least = COMMANDS / fixture.borrow().slowness;
    let max = commands.max(least).saturating_mul(MAX_FACTOR);
    let unfinished = |fixture: &play::Fixture| {
        let done = fixture.counts.commands();
        done < commands || (done < max && !fixture.missed_quotas().is_empty())
    };
    while unfinished(&fixture.borrow()) {
        let tree = scripts.new_tree(&mut runner);
        let tree = tree.map_err(|reason| reason.to_string())?;
        let played = runner.run_one(tree, |script| {
            let mut fixture = fixture.borrow_mut();
            let played = runtime.block_on(fixture.play(&script));
            played.map_err(TestCaseError::fail)
        });
        match played {
            Ok(_) => {}
            Err(TestError::Fail(reason, _)) => return Err(reason.to_string()),
            Err(TestError::Abort(reason)) => return Err(reason.to_string()),
        }
    }
    let fixture = fixture.into_inner();
    let (missed, counts) = (fixture.missed_quotas(), fixture.counts);
    if missed.is_empty() {
        return Ok(counts);
    }
    Err(format!(
        "{}\nA quota is the number of times that an outcome must occur in a run. A longer run may reach it: \
         set {COMMANDS_VARIABLE}.\n{counts}",
        missed.join("\n")
    ))
}
