//! The determinism check: a run must depend only on its seed.

use std::fmt::Debug;
use std::future::Future;

use crate::handle::SimServer;
use crate::simulation::{RunReport, Simulation};

/// Runs a tokio test twice and asserts that the events and the results are equal.
///
/// `run` creates a runtime and a server, runs the test, and returns the server and a result to
/// compare. For a scenario on the simulation's own executor, use
/// [`Simulation::assert_deterministic`].
///
/// # Examples
/// ```
/// use leasehold_api::LockClient;
/// use leasehold_sim::{SimServer, assert_deterministic};
///
/// # fn paused() -> tokio::runtime::Runtime {
/// #     let mut builder = tokio::runtime::Builder::new_current_thread();
/// #     builder.enable_time().start_paused(true).build().unwrap()
/// # }
/// assert_deterministic(|| {
///     paused().block_on(async {
///         let server = SimServer::new(1);
///         let locks = LockClient::new(server.client("a"));
///         let guard = locks.mutex("job").unwrap().lock().await.unwrap();
///         let token = guard.fencing_token();
///         (server, token)
///     })
/// });
/// ```
///
/// # Panics
/// Panics if the runs differ. The message shows the first difference.
#[track_caller]
pub fn assert_deterministic<T: PartialEq + Debug>(mut run: impl FnMut() -> (SimServer, T)) {
    let mut record = || {
        let (server, result) = run();
        (server.trace(), server.timeline(), result)
    };
    let (first, second) = (record(), record());
    compare(&first, &second);
}

impl Simulation {
    /// Runs a scenario twice and asserts that the events and the endings are equal. Returns the
    /// report of the first run.
    ///
    /// Two runs differ if something in them does not come from the tape: the order of a `HashMap`,
    /// `tokio::select!` without `biased;`, a real clock, another thread.
    ///
    /// # Panics
    /// Panics if the runs differ. The message shows the first difference.
    #[track_caller]
    pub fn assert_deterministic<F>(self, scenario: impl Fn(SimServer) -> F) -> RunReport<F::Output>
    where
        F: Future,
        F::Output: PartialEq + Debug,
    {
        let first = self.clone().run(&scenario);
        let second = self.run(&scenario);
        compare(
            &(first.trace, first.timeline(), &first.ending),
            &(second.trace, second.timeline(), &second.ending),
        );
        first
    }
}

/// Returns the first lines that differ between two timelines.
pub(crate) fn first_difference<'a>(first: &'a str, second: &'a str) -> Option<(&'a str, &'a str)> {
    let (mut left, mut right) = (first.lines(), second.lines());
    let end = "(the end)";
    loop {
        match (left.next(), right.next()) {
            (None, None) => return None,
            (one, other) if one == other => {}
            (one, other) => return Some((one.unwrap_or(end), other.unwrap_or(end))),
        }
    }
}

#[track_caller]
fn compare<T: PartialEq + Debug>(first: &(u64, String, T), second: &(u64, String, T)) {
    if let Some((one, other)) = first_difference(&first.1, &second.1) {
        panic!("the same seed gave two different runs; the first difference is\n{one}\n{other}");
    }
    assert!(
        first.2 == second.2,
        "the same seed gave two different results\n{:?}\n{:?}",
        first.2,
        second.2,
    );
    assert!(
        first.0 == second.0,
        "the same seed gave two runs with equal logs but different choices",
    );
}
