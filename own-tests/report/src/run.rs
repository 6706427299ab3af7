//! Runs the cases.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use leasehold_conformance::{Case, Harness, cases, run_case};

use crate::Problem;
use crate::report::{Outcome, Report, Result as CaseResult};
use crate::server::{OnServer, Server};

/// Selects the cases whose name contains a text.
pub(crate) fn select(only: Option<&str>) -> Result<Vec<&'static Case>, Problem> {
    let only = only.unwrap_or_default();
    let selected: Vec<_> = cases().filter(|case| case.name().contains(only)).collect();
    match selected.is_empty() {
        true => Err(format!("no case has {only:?} in its name").into()),
        false => Ok(selected),
    }
}

/// Runs cases, some at the same time. The results have the order of the cases.
pub(crate) fn run(server: &Arc<Server>, cases: &[&'static Case], threads: u8) -> Report {
    let harness: Arc<dyn Harness> = Arc::new(OnServer(Arc::clone(server)));
    let (next, began) = (AtomicUsize::new(0), Instant::now());
    let next_result = || {
        let number = next.fetch_add(1, Ordering::Relaxed);
        Some((number, one(&harness, cases.get(number)?)))
    };
    let mut results: Vec<_> = thread::scope(|scope| {
        let work = || iter::from_fn(next_result).collect::<Vec<_>>();
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let done = workers
            .into_iter()
            .map(|it| it.join().expect("no case panics"));
        done.flatten().collect()
    });
    results.sort_by_key(|(number, _)| *number);
    Report {
        backend: harness.name().to_string(),
        server: server.address(),
        results: results.into_iter().map(|(_, result)| result).collect(),
        took: began.elapsed(),
    }
}

fn one(harness: &Arc<dyn Harness>, case: &Case) -> CaseResult {
    let began = Instant::now();
    let outcome = match case.ignored_because(&**harness) {
        Some(reason) => Outcome::Ignored(reason),
        None => match run_case(harness, case) {
            Ok(()) => Outcome::Passed,
            Err(failure) => Outcome::Failed(failure.to_string()),
        },
    };
    CaseResult {
        name: case.name(),
        rules: case.rules(),
        outcome,
        took: began.elapsed(),
    }
}
