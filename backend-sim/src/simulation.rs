//! The driver that runs a whole scenario on an executor of its own.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::choices::{Divergence, Policy};
use crate::clock::{Clock, nanos};
use crate::history::History;
use crate::log::{Entry, Log, Message};
use crate::options::SimOptions;
use crate::server::SimServer;
use crate::tape::Tape;
use crate::tasks::{self, Course, Panic, Tasks, Turn};
use crate::world::World;

/// A scenario to be run on an executor of the simulation's own: many times faster than in a tokio
/// runtime, under any [`Policy`], and with every task of it under that policy.
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
    policy: Policy,
    time_limit: Duration,
    step_limit: u64,
    decided: Option<Arc<AtomicBool>>,
}

impl Simulation {
    /// A run under [`Policy::Random`], of at most a day of virtual time and 10 million steps.
    pub const fn new(options: SimOptions) -> Self {
        Self {
            options,
            policy: Policy::Random,
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
    pub fn with_policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
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
        let world = World::new(Clock::own(), self.options, self.policy);
        let mut tasks = Tasks::new(&world.ready);
        let waker = tasks.add_root(&world);
        let server = SimServer::in_world(&world);
        let mut root = pin!(async move { scenario(server).await });
        let mut cx = Context::from_waker(&waker);
        let mut course = Course {
            steps: 0,
            step_limit: self.step_limit,
            until: nanos(self.time_limit),
        };
        let decided = self.decided.as_deref();
        let ending = loop {
            match next_root_turn(&world, &mut tasks, &mut course, decided) {
                Ok(()) => {}
                Err(Stop::Panic(panic)) => break Ending::Panicked(tasks::message(&panic)),
                Err(Stop::Deadlock) => break Ending::Deadlock,
                Err(Stop::TimeLimit) => break Ending::TimeLimit,
                Err(Stop::StepLimit) => break Ending::StepLimit,
                Err(Stop::Decided) => break Ending::Stopped,
            }
            match catch_unwind(AssertUnwindSafe(|| root.as_mut().poll(&mut cx))) {
                Ok(Poll::Ready(output)) => break Ending::Completed(output),
                Ok(Poll::Pending) => {}
                Err(panic) => break Ending::Panicked(tasks::message(&panic)),
            }
        };
        // What follows are destructors: no part of the run.
        report(&world, ending, course.steps)
    }
}

enum Stop {
    Panic(Panic),
    Deadlock,
    TimeLimit,
    StepLimit,
    Decided,
}

/// Goes on until it is the turn of the scenario's own future.
fn next_root_turn(
    world: &World,
    tasks: &mut Tasks,
    course: &mut Course,
    decided: Option<&AtomicBool>,
) -> Result<(), Stop> {
    loop {
        if decided.is_some_and(|decided| decided.load(Ordering::Relaxed)) {
            return Err(Stop::Decided);
        }
        match tasks.turn(world, course).map_err(Stop::Panic)? {
            Turn::Root => return Ok(()),
            Turn::Done => {}
            Turn::Idle(None) => return Err(Stop::Deadlock),
            Turn::Idle(Some(_)) => return Err(Stop::TimeLimit),
            Turn::OutOfSteps => return Err(Stop::StepLimit),
        }
    }
}

fn report<T>(world: &World, ending: Ending<T>, steps: u64) -> RunReport<T> {
    world.act(|inner, now| {
        let (tape, divergence) = inner.choices.finish();
        RunReport {
            ending: divergence.map_or(ending, Ending::Diverged),
            trace: inner.choices.trace.value(),
            tape,
            elapsed: now,
            steps,
            clients: inner.client_names(),
            log: std::mem::replace(&mut inner.log, Log::new(0)),
        }
    })
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending<T> {
    /// The scenario's future completed.
    Completed(T),
    /// The scenario waits, nothing can run, and nothing is going to happen.
    Deadlock,
    /// The scenario was not done in its virtual time.
    TimeLimit,
    /// The scenario was not done in its number of steps.
    StepLimit,
    /// What the rest of the run could bring does not matter any more.
    Stopped,
    /// The scenario or a task of it panicked, with this message.
    Panicked(String),
    /// The run is not that of the tape that it was to replay.
    Diverged(Divergence),
}

/// What became of a run.
pub struct RunReport<T> {
    /// How it ended.
    pub ending: Ending<T>,
    /// A hash of the run: of all its choices, and of all that happened when. Equal runs have equal
    /// hashes, in any process and any build of the same version.
    pub trace: u64,
    /// Its choices, unless they were [not recorded](SimOptions::with_recording): to be
    /// [replayed](Policy::Replay).
    pub tape: Tape,
    /// How much virtual time it took.
    pub elapsed: Duration,
    /// How many steps it took.
    pub steps: u64,
    clients: Vec<Arc<str>>,
    log: Log,
}

impl<T> RunReport<T> {
    /// The same, whatever its scenario returned.
    pub(crate) fn without_output(self) -> RunReport<()> {
        RunReport {
            ending: match self.ending {
                Ending::Completed(_) => Ending::Completed(()),
                Ending::Deadlock => Ending::Deadlock,
                Ending::TimeLimit => Ending::TimeLimit,
                Ending::StepLimit => Ending::StepLimit,
                Ending::Stopped => Ending::Stopped,
                Ending::Panicked(message) => Ending::Panicked(message),
                Ending::Diverged(divergence) => Ending::Diverged(divergence),
            },
            trace: self.trace,
            tape: self.tape,
            elapsed: self.elapsed,
            steps: self.steps,
            clients: self.clients,
            log: self.log,
        }
    }

    /// What happened, oldest first; as much of it as [`SimOptions::with_log_limit`] lets be kept.
    pub fn log(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.log.entries()
    }

    /// The messages, in the order in which they were sent.
    pub fn messages(&self) -> impl ExactSizeIterator<Item = &Message> {
        self.log.messages()
    }

    /// What happened, to be looked at.
    pub fn history(&self) -> History {
        History::of(&self.log, self.clients.clone())
    }

    /// What happened as text, as [`History::text`] writes it.
    pub fn timeline(&self) -> String {
        self.history().text()
    }
}

impl<T: fmt::Debug> fmt::Debug for RunReport<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunReport")
            .field("ending", &self.ending)
            .field("trace", &format_args!("{:016x}", self.trace))
            .field("tape", &format_args!("{}", self.tape))
            .field("elapsed", &self.elapsed)
            .field("steps", &self.steps)
            .finish_non_exhaustive()
    }
}
