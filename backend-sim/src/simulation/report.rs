//! The report of a run.

use std::fmt;
use std::time::Duration;

use crate::driver::executor::Ending;
use crate::driver::world::World;
use crate::engine::tape::Tape;
use crate::history::History;
use crate::network::tally::Counts;
use crate::record::{Entry, Log, Message};

/// The report of a run on the simulation's own executor.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use leasehold_sim::{Ending, SimOptions, Simulation};
///
/// let report = Simulation::new(SimOptions::new(1))
///     .run(|sim| async move { sim.sleep(Duration::from_secs(60)).await });
/// assert_eq!(report.ending, Ending::Completed(()));
/// assert_eq!(report.elapsed, Duration::from_secs(60));
/// ```
pub struct RunReport<T> {
    /// How the run ended.
    pub ending: Ending<T>,
    /// A hash of the run's choices, and of the kinds and times of its events. Equal runs have equal
    /// hashes, in any process and any build of the same version.
    pub trace: u64,
    /// The choices of the run, for [`Scheduling::Replay`](crate::tools::Scheduling::Replay). It has no
    /// draws if they were not [recorded](crate::SimOptions::recording).
    pub tape: Tape,
    /// The virtual time that the run took.
    pub elapsed: Duration,
    /// The number of [steps](crate::Simulation::step_limit) that the run took.
    pub steps: u64,
    history: History,
    pub(crate) counts: Counts,
}

impl<T> RunReport<T> {
    /// Returns the events, oldest first. The
    /// [log limit](crate::SimOptions::log_limit) applies.
    pub fn log(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.history.entries.iter()
    }

    /// Returns the messages, in the order in which they were sent. The
    /// [log limit](crate::SimOptions::log_limit) applies.
    pub fn messages(&self) -> impl ExactSizeIterator<Item = &Message> {
        self.history.messages.iter()
    }

    /// Returns the history of the run.
    pub fn history(&self) -> History {
        self.history.clone()
    }

    /// Returns the run as text, as [`History::text`] does.
    pub fn timeline(&self) -> String {
        self.history.text()
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

pub(crate) fn report<T>(world: &World, ending: Ending<T>, steps: u64) -> RunReport<T> {
    world.act(|network| {
        let (tape, divergence) = network.choices.finish();
        let log = std::mem::replace(&mut network.log, Log::new(0));
        RunReport {
            ending: divergence.map_or(ending, Ending::Diverged),
            trace: network.choices.trace.value(),
            tape,
            elapsed: network.now,
            steps,
            history: History::of(log, network.client_names()),
            counts: network.tally.counts,
        }
    })
}
