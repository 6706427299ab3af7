//! A call: some commands on one key, and the caller that waits for their replies.

use std::mem::replace;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_channel::oneshot;
use leasehold_api::machine::{Command, Reply};
use leasehold_api::{BackendError, Moment, Runtime, Stamped};

use crate::lock;
use crate::store::Version;

/// The replies to the commands of a call, all executed at the same time.
pub(crate) type Answer = Result<Stamped<Vec<Reply>>, BackendError>;

/// What caller and executor know of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing is written.
    Unwritten,
    /// A write may be on its way.
    Writing,
    /// The caller got an error that says that nothing was written. So nothing may be.
    Abandoned,
}

/// A call that is to be executed.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) commands: Vec<Command>,
    /// When the caller stops waiting.
    pub(crate) ends: Moment,
    /// The last write that contained this call, and the replies if the store applied it after all.
    pub(crate) refused: Option<(Version, Stamped<Vec<Reply>>)>,
    phase: Arc<Mutex<Phase>>,
    answer: oneshot::Sender<Answer>,
}

/// The other end of a [`Call`].
#[derive(Debug)]
pub(crate) struct Caller {
    phase: Arc<Mutex<Phase>>,
    answer: oneshot::Receiver<Answer>,
}

impl Call {
    pub(crate) fn new(commands: Vec<Command>, ends: Moment) -> (Self, Caller) {
        let phase = Arc::new(Mutex::new(Phase::Unwritten));
        let (sender, answer) = oneshot::channel();
        let call = Self {
            commands,
            ends,
            refused: None,
            phase: Arc::clone(&phase),
            answer: sender,
        };
        (call, Caller { phase, answer })
    }

    pub(crate) const fn size(&self) -> usize {
        self.commands.len()
    }

    /// Whether it may give the lock to a waiter.
    pub(crate) fn releases(&self) -> bool {
        let releases = |command: &Command| matches!(command, Command::Release(_));
        self.commands.iter().any(releases)
    }

    /// Whether somebody still waits for the answer.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.answer.is_canceled()
    }

    /// Notes that a write is about to be sent. Returns `false` if the call must not be written any more.
    pub(crate) fn begin_write(&self) -> bool {
        let mut phase = lock(&self.phase);
        if *phase == Phase::Abandoned {
            return false;
        }
        *phase = Phase::Writing;
        true
    }

    /// Notes that nothing was written.
    pub(crate) fn end_write(&self) {
        let mut phase = lock(&self.phase);
        if *phase == Phase::Writing {
            *phase = Phase::Unwritten;
        }
    }

    /// Answers the caller, if it still waits.
    pub(crate) fn answer(self, answer: Answer) {
        let _ = self.answer.send(answer);
    }
}

impl Caller {
    #[cfg(test)]
    pub(crate) fn answer(mut self) -> Option<Answer> {
        self.answer.try_recv().ok().flatten()
    }

    /// Waits for the answer, at most for `limit`.
    ///
    /// # Cancel safety
    /// If you drop the future, the call may or may not be executed.
    pub(crate) async fn wait(self, runtime: &dyn Runtime, limit: Duration) -> Answer {
        if let Some(Ok(answer)) = runtime.timeout(limit, self.answer).await {
            return answer;
        }
        // Out of time, or the executor has ended.
        Err(match replace(&mut *lock(&self.phase), Phase::Abandoned) {
            Phase::Writing => BackendError::outcome_unknown("a write was not answered in time"),
            _ => BackendError::unavailable("no answer in time; nothing was written"),
        })
    }
}
