//! Runs the cases: one thread and one environment each, under a watchdog.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::thread;

use leasehold_api::BoxFuture;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::case::Case;
use crate::failure::{Failure, Verdict};
use crate::families;
use crate::harness::Harness;
use crate::world::World;

/// Cases run at a time unless `--test-threads` says otherwise: most only wait.
const THREADS: usize = 8;

/// Runs the suite with the arguments of the command line, which are those of every Rust test.
///
/// `expected_ignored` names the cases that this backend cannot run. It is compared with those
/// that really were ignored, so that nothing is left out unseen; a difference is a failure.
/// Ends with the line `conformance BACKEND: N passed, N failed, N ignored`.
pub fn run(harness: impl Harness, expected_ignored: &[&str]) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(THREADS));
    let harness: Arc<dyn Harness> = Arc::new(harness);
    let mut trials: Vec<_> = families::all()
        .map(|case| trial(Arc::clone(&harness), *case))
        .collect();
    trials.push(compare_ignored(&*harness, expected_ignored));

    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        println!(
            "conformance {}: {} passed, {} failed, {} ignored",
            harness.name(),
            conclusion.num_passed,
            conclusion.num_failed,
            conclusion.num_ignored
        );
    }
    conclusion.exit_code()
}

/// Runs one case, whatever the harness can do.
///
/// # Errors
/// Why it failed. A case that hangs longer than the harness's watchdog fails; its thread is left
/// behind.
pub fn run_case(harness: &Arc<dyn Harness>, case: &Case) -> Result<(), Failure> {
    let (result, ended) = mpsc::channel();
    let limit = harness.timing().watchdog;
    let (harness, case) = (Arc::clone(harness), *case);
    thread::spawn(move || {
        let verdict = on_this_thread(&harness, case);
        // Nobody waits any more if the watchdog was faster.
        let _ = result.send(verdict);
    });
    ended
        .recv_timeout(limit)
        .unwrap_or_else(|_| Err(Failure::hung(limit)))
}

fn trial(harness: Arc<dyn Harness>, case: Case) -> Trial {
    let reason = case.ignored_because(&*harness);
    Trial::ignorable_test(case.name(), move || match reason {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None => run_case(&harness, &case)
            .map(|()| Completion::Completed)
            .map_err(Failed::from),
    })
}

fn on_this_thread(harness: &Arc<dyn Harness>, case: Case) -> Verdict {
    let (result, verdict) = mpsc::channel();
    let inner = Arc::clone(harness);
    let body: BoxFuture<'static, ()> = Box::pin(async move {
        let verdict = in_environment(&*inner, case).await;
        let _ = result.send(verdict);
    });
    let ran = catch_unwind(AssertUnwindSafe(|| harness.block_on(body)));
    match ran {
        Err(panic) => Err(Failure::panicked(&message(&*panic))),
        Ok(()) => verdict
            .try_recv()
            .unwrap_or_else(|_| Err(Failure::panicked("block_on returned before the case ended"))),
    }
}

async fn in_environment(harness: &dyn Harness, case: Case) -> Verdict {
    let world = World::new(harness, case).await?;
    let verdict = (case.run)(&world).await;
    world.close().await;
    verdict
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into())
}

/// The case that compares what is ignored with what the backend's author wrote down.
fn compare_ignored(harness: &dyn Harness, expected: &[&str]) -> Trial {
    let mut expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
    let mut ignored: Vec<String> = families::all()
        .filter(|case| case.ignored_because(harness).is_some())
        .map(Case::name)
        .collect();
    expected.sort();
    ignored.sort();
    Trial::test("suite::ignored_cases_are_as_listed", move || {
        if ignored == expected {
            return Ok(());
        }
        let only = |a: &[String], b: &[String]| -> Vec<String> {
            a.iter().filter(|name| !b.contains(name)).cloned().collect()
        };
        Err(Failed::from(format!(
            "what is ignored differs from `expected_ignored`\n  ignored, but not listed: {:?}\n  \
             listed, but not ignored: {:?}",
            only(&ignored, &expected),
            only(&expected, &ignored)
        )))
    })
}
