//! One run of a scenario on the simulation's own executor, and what builds on it.

mod all_orders;
mod determinism;
mod report;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::driver::clock::Clock;
use crate::driver::executor::execute;
use crate::driver::world::{Course, World};
use crate::engine::choices::Scheduling;
use crate::engine::event_queue::nanos;
use crate::handle::SimServer;
use crate::network::Network;
use crate::network::options::SimOptions;
use crate::simulation::report::report;

pub use crate::driver::executor::Ending;
pub use determinism::assert_deterministic;
pub use report::RunReport;

pub(crate) use determinism::first_difference;

/// Runs a scenario once, on the simulation's own executor.
///
/// This is several times faster than a tokio test. The [`Scheduling`] decides the order of all
/// tasks and events, and the result is a report instead of a panic.
///
/// A scenario is a function from a [`SimServer`] to a future. It creates clients, spawns tasks with
/// [`SimServer::spawn`], and sleeps with [`SimServer::sleep`] or the
/// [`Runtime`](leasehold_api::Runtime) of a client.
///
/// **Nothing in a scenario may need a tokio runtime.** `tokio::time` and `tokio::spawn` panic
/// there; `tokio::select!` and `tokio::sync` work. Code that needs tokio runs in a tokio test, with
/// [`SimServer::new`].
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use leasehold_api::LockClient;
/// use leasehold_sim::{Ending, SimOptions, Simulation};
///
/// for seed in 0..100 {
///     let report = Simulation::new(SimOptions::new(seed)).run(|sim| async move {
///         let tasks = ["a", "b"].map(|name| {
///             let locks = LockClient::new(sim.client(name));
///             let sim = sim.clone();
///             sim.clone().spawn(async move {
///                 let guard = locks.mutex("job").unwrap().lock().await.unwrap();
///                 sim.sleep(Duration::from_secs(1)).await;
///                 guard.release().await.unwrap();
///             })
///         });
///         for task in tasks {
///             task.await;
///         }
///         sim.assert_idle();
///     });
///     assert!(matches!(report.ending, Ending::Completed(())), "{}", report.timeline());
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Simulation {
    options: SimOptions,
    scheduling: Scheduling,
    time_limit: Duration,
    step_limit: u64,
    decided: Option<Arc<AtomicBool>>,
}

impl Simulation {
    /// Creates a simulation with [`Scheduling::Random`]. It may take a day of virtual time and 10
    /// million steps.
    pub const fn new(options: SimOptions) -> Self {
        Self {
            options,
            scheduling: Scheduling::Random,
            time_limit: Duration::from_secs(24 * 3_600),
            step_limit: 10_000_000,
            decided: None,
        }
    }

    pub(crate) const fn seed(&self) -> u64 {
        self.options.seed
    }

    /// Sets how the run makes its choices. The default is [`Scheduling::Random`].
    #[must_use]
    pub fn scheduling(mut self, scheduling: Scheduling) -> Self {
        self.scheduling = scheduling;
        self
    }

    /// Sets the maximum virtual time. The default is one day. A run that exceeds it ends with
    /// [`Ending::TimeLimit`].
    #[must_use]
    pub const fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Sets the maximum number of steps. The default is 10 million. A run that exceeds it ends with
    /// [`Ending::StepLimit`].
    ///
    /// A step is one poll of a task, one event, or one movement of the clock.
    #[must_use]
    pub const fn step_limit(mut self, steps: u64) -> Self {
        self.step_limit = steps;
        self
    }

    /// Ends the run with [`Ending::Stopped`] before the next step once `decided` is true.
    ///
    /// Set it when the rest of the run no longer matters, for example in an
    /// [`Observer`](crate::tools::Observer) that has found an error.
    #[must_use]
    pub fn stop_flag(mut self, decided: Arc<AtomicBool>) -> Self {
        self.decided = Some(decided);
        self
    }

    /// Runs a scenario until its future completes. Tasks that still run are then dropped.
    ///
    /// A panic of the scenario or of a task is reported as [`Ending::Panicked`].
    ///
    /// # Panics
    /// Panics if a destructor panics after the end of the run.
    ///
    /// # Examples
    /// ```
    /// use leasehold_sim::{Ending, SimOptions, Simulation};
    ///
    /// let report = Simulation::new(SimOptions::new(1))
    ///     .run(|_| async { std::future::pending::<()>().await });
    /// assert_eq!(report.ending, Ending::Deadlock);
    /// ```
    pub fn run<F, S>(self, scenario: S) -> RunReport<F::Output>
    where
        S: FnOnce(SimServer) -> F,
        F: Future,
    {
        let network = Network::new(self.options, self.scheduling);
        let world = World::new(Clock::own(), network, None);
        let server = SimServer::in_world(&world);
        let course = Course::new(self.step_limit, nanos(self.time_limit));
        let stop = self.decided.as_deref();
        let root = async move { scenario(server).await };
        // The report comes before the destructors, which are not part of the run.
        let report = |ending, steps| report(&world, ending, steps);
        execute(&world, root, course, stop, report)
    }
}
