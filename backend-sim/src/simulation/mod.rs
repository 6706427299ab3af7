//! A run of one scenario on the simulation's own executor, and what is done with such runs.

mod all_orders;
mod determinism;
mod report;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::driver::clock::Clock;
use crate::driver::executor::{Limits, execute};
use crate::driver::world::World;
use crate::engine::choices::Scheduling;
use crate::handle::SimServer;
use crate::network::Network;
use crate::network::options::SimOptions;
use crate::simulation::report::report;

pub use crate::driver::executor::Ending;
pub use determinism::assert_deterministic;
pub use report::RunReport;

pub(crate) use determinism::parting;

/// A scenario to be run on an executor of the simulation's own: many times faster than in a tokio
/// runtime, under any [`Scheduling`], and with every task of it under that scheduling.
///
/// The scenario gets a [`SimServer`], makes clients, and starts tasks with
/// [`SimServer::spawn`]; it sleeps with [`SimServer::sleep`] or the
/// [`Runtime`](leasehold_api::Runtime) of a client. **Nothing in it may need a tokio runtime**:
/// `tokio::time` and `tokio::spawn` panic there. Code that does runs in a tokio test, with
/// [`SimServer::new`].
///
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
    /// A run under [`Scheduling::Random`], of at most a day of virtual time and 10 million steps.
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

    /// The same with its choices made in another way.
    #[must_use]
    pub fn with_scheduling(mut self, scheduling: Scheduling) -> Self {
        self.scheduling = scheduling;
        self
    }

    /// The same with another limit to its virtual time.
    #[must_use]
    pub const fn with_time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// The same with another limit to its steps: a step is a task that runs until it waits, or an
    /// event.
    #[must_use]
    pub const fn with_step_limit(mut self, steps: u64) -> Self {
        self.step_limit = steps;
        self
    }

    /// Ends the run with [`Ending::Stopped`] before the next step once `decided` is true.
    ///
    /// Set it when the rest of the run no longer matters, for example at the first broken promise.
    #[must_use]
    pub fn with_stop(mut self, decided: Arc<AtomicBool>) -> Self {
        self.decided = Some(decided);
        self
    }

    /// Runs a scenario until its future completes; tasks that it left running are dropped then.
    ///
    /// # Panics
    /// Not when the scenario does: that is an [`Ending`].
    pub fn run<F, S>(self, scenario: S) -> RunReport<F::Output>
    where
        S: FnOnce(SimServer) -> F,
        F: Future,
    {
        let network = Network::new(self.options, self.scheduling);
        let world = World::new(Clock::own(), network, None);
        let server = SimServer::in_world(&world);
        let limits = Limits {
            time: self.time_limit,
            steps: self.step_limit,
            stop: self.decided,
        };
        let root = async move { scenario(server).await };
        // Reported before the destructors, which are no part of the run.
        execute(&world, root, &limits, |ending, steps| {
            report(&world, ending, steps)
        })
    }
}
