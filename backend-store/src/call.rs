//! A call: some commands on one key, and the caller that waits for their replies.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_channel::oneshot;
use leasehold_api::machine::{Command, Reply};
use leasehold_api::{BackendError, Moment, Runtime, Stamped};

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

#[derive(Debug)]
struct Shared(Mutex<Phase>);

impl Shared {
    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that is to be executed.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) commands: Vec<Command>,
    /// When the caller stops waiting.
    pub(crate) ends: Moment,
    /// The last write that contained this call, and the replies if the store applied it after all.
    pub(crate) refused: Option<(Version, Stamped<Vec<Reply>>)>,
    shared: Arc<Shared>,
    answer: oneshot::Sender<Answer>,
}

/// The other end of a [`Call`].
#[derive(Debug)]
pub(crate) struct Caller {
    shared: Arc<Shared>,
    answer: oneshot::Receiver<Answer>,
}

impl Call {
    pub(crate) fn new(commands: Vec<Command>, ends: Moment) -> (Self, Caller) {
        let shared = Arc::new(Shared(Mutex::new(Phase::Unwritten)));
        let (sender, receiver) = oneshot::channel();
        let call = Self {
            commands,
            ends,
            refused: None,
            shared: Arc::clone(&shared),
            answer: sender,
        };
        let caller = Caller {
            shared,
            answer: receiver,
        };
        (call, caller)
    }

    /// The number of commands.
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
        let mut phase = self.shared.phase();
        if *phase == Phase::Abandoned {
            return false;
        }
        *phase = Phase::Writing;
        true
    }

    /// Notes that nothing was written.
    pub(crate) fn end_write(&self) {
        let mut phase = self.shared.phase();
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
    /// Waits for the answer, at most for `limit`.
    ///
    /// # Cancel safety
    /// If you drop the future, the call may or may not be executed.
    pub(crate) async fn wait(self, runtime: &dyn Runtime, limit: Duration) -> Answer {
        match runtime.timeout(limit, self.answer).await {
            Some(Ok(answer)) => answer,
            // Out of time, or the executor has ended.
            Some(Err(_)) | None => Err(abandon(&self.shared)),
        }
    }
}

fn abandon(shared: &Shared) -> BackendError {
    match std::mem::replace(&mut *shared.phase(), Phase::Abandoned) {
        Phase::Writing => BackendError::outcome_unknown("a write was not answered in time"),
        _ => BackendError::unavailable("no answer in time; nothing was written"),
    }
}
