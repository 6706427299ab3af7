//! The differential test: a backend against the state machine.
//!
//! The test sends random sequences of commands to a backend and to `leasehold_api::machine`. The
//! machine executes each command at the time that the backend's reply reports, and with the same
//! sessions listening. So both must give the same replies, and every session must receive exactly
//! the machine's notifications, in order. Commands are also repeated, immediately or later, and
//! real sleeps let leases of milliseconds expire.
//!
//! The test counts every pair of command and outcome, for first and repeated commands, and fails if
//! a pair was too rare. Proptest shrinks a failed sequence. Time is real, so a failure that depends
//! on microseconds may not shrink fully.

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
/// A run continues until every outcome was seen often enough. It stops at this multiple of the
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
/// ends after six times as many commands, but not before 60,000.
///
/// # Errors
/// Returns the shrunk sequence with the replies of both sides, or the outcomes that were too rare.
///
/// # Panics
/// Panics inside another tokio runtime.
pub fn check(
    runtime: &Runtime,
    backend: Arc<dyn LockBackend>,
    commands: u64,
) -> Result<Counts, String> {
    let fixture = RefCell::new(runtime.block_on(play::Fixture::new(backend))?);
    let config = Config {
        failure_persistence: None,
        max_shrink_iters: SHRINK,
        max_shrink_time: SHRINK_TIME,
        ..Config::default()
    };
    let mut runner = TestRunner::new(config);
    let scripts = moves::scripts();
    let max = commands.max(COMMANDS).saturating_mul(MAX_FACTOR);
    let unfinished = |counts: &Counts| {
        let done = counts.commands();
        done < commands || (done < max && !counts.gaps().is_empty())
    };
    while unfinished(&fixture.borrow().counts) {
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
    let counts = fixture.into_inner().counts;
    let gaps = counts.gaps();
    if gaps.is_empty() {
        Ok(counts)
    } else {
        Err(format!("{}\n{counts}", gaps.join("\n")))
    }
}
