//! The report of a run.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::driver::executor::Ending;
use crate::driver::world::World;
use crate::engine::tape::Tape;
use crate::history::History;
use crate::record::{Entry, Log, Message};

/// What became of a run.
pub struct RunReport<T> {
    /// How it ended.
    pub ending: Ending<T>,
    /// A hash of the run: of all its choices, and of all that happened when. Equal runs have equal
    /// hashes, in any process and any build of the same version.
    pub trace: u64,
    /// Its choices, unless they were [not recorded](crate::SimOptions::with_recording): to be
    /// [replayed](crate::Scheduling::Replay).
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

    /// What happened, oldest first; as much of it as
    /// [`SimOptions::with_log_limit`](crate::SimOptions::with_log_limit) lets be kept.
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

pub(crate) fn report<T>(world: &World, ending: Ending<T>, steps: u64) -> RunReport<T> {
    world.act(|network, now| {
        let (tape, divergence) = network.choices.finish();
        RunReport {
            ending: divergence.map_or(ending, Ending::Diverged),
            trace: network.choices.trace.value(),
            tape,
            elapsed: now,
            steps,
            clients: network.client_names(),
            log: std::mem::replace(&mut network.log, Log::new(0)),
        }
    })
}
