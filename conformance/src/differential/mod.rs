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
/// A run goes on until every outcome was seen often enough, up to so many times the commands asked
/// for, or the usual number of them: a short run must not fail because what is rare did not come.
const TIMEOUT: u64 = 6;
/// Sequences tried while shrinking one that fails, and the longest time for it, in ms: a notification
/// that does not come is waited for each time.
const SHRINK: u32 = 500;
const SHRINK_TIME: u32 = 60_000;

/// How many commands [`check`] is to compare: [`COMMANDS_VARIABLE`], or 10,000.
///
/// # Panics
/// If the variable is set and is not a number.
#[must_use]
pub fn commands() -> u64 {
    env::var(COMMANDS_VARIABLE).map_or(COMMANDS, |text| {
        let number = text.parse();
        number.unwrap_or_else(|_| panic!("{COMMANDS_VARIABLE} is no number: {text}"))
    })
}

/// Plays random sequences to `backend`, on `runtime`, until at least that many commands are
/// compared and every outcome was seen, or six times as many commands, 60,000 at least, are
/// compared.
///
/// # Errors
/// The shrunk sequence with the replies of both sides, or the outcomes that came too seldom.
///
/// # Panics
/// Inside another tokio runtime.
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
    let most = commands.max(COMMANDS).saturating_mul(TIMEOUT);
    let goes_on = |counts: &Counts| {
        let done = counts.commands();
        done < commands || (done < most && !counts.gaps().is_empty())
    };
    while goes_on(&fixture.borrow().counts) {
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
