//! Whether the lock service answers this client.
//!
//! All calls of the client are witnesses: an outage begins with the sending of the first call that fails, and ends with the
//! next answer to any of them. So a call that comes during an outage needs no time to find it out.
//!
//! A call that fails although a later one was answered is no witness: one reply was lost, or one server of several is away.
//! Otherwise it would end the waits of all others.

use std::time::Duration;

use crate::client::state::signal::Signal;
use crate::error::BackendError;
use crate::runtime::Moment;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};

#[derive(Debug)]
pub(crate) struct Outage {
    /// How long a failure says something. A client that sent nothing since doesn't know whether the service is back.
    memory: Duration,
    /// When the last call was sent that was answered, in ns.
    answered: AtomicU64,
    /// A copy of `since.is_some()`: every answer asks, and most find no outage.
    is_known: AtomicBool,
    state: Mutex<State>,
    /// Notified when an outage begins or ends.
    pub(crate) changed: Signal,
    /// Whether a task looks for the end of the outage.
    pub(crate) probing: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    since: Option<Moment>,
    /// When the last call has failed.
    last_failed: Moment,
    last_error: Option<BackendError>,
}

impl State {
    fn since(&self, now: Moment, memory: Duration) -> Option<Moment> {
        let is_recent = now.saturating_since(self.last_failed) <= memory;
        self.since.filter(|_| is_recent)
    }
}

/// More than the longest pause between two calls of a wait or of `probe` that fail.
const PAUSE: Duration = Duration::from_secs(1);

impl Outage {
    pub(crate) fn new(call_timeout: Duration) -> Self {
        Self {
            memory: call_timeout * 2 + PAUSE,
            answered: AtomicU64::new(0),
            is_known: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Signal::default(),
            probing: AtomicBool::new(false),
        }
    }

    /// Notes that a call has failed now, although it had its whole time.
    pub(crate) fn failed(&self, sent: Moment, now: Moment, error: &BackendError) {
        if self.has_answer_since(sent) {
            return;
        }
        let mut state = self.state.lock();
        let before = state.since(now, self.memory);
        state.since = before.or(Some(sent));
        state.last_failed = now;
        state.last_error = Some(error.clone());
        self.is_known.store(true, Ordering::Release);
        drop(state);
        if before.is_none() {
            self.changed.notify();
        }
    }

    /// Whether a call was answered that was sent later.
    pub(crate) fn has_answer_since(&self, sent: Moment) -> bool {
        nanos(sent) < self.answered.load(Ordering::Relaxed)
    }

    /// Notes an answer to a call that was sent then. A refusal is one, too.
    pub(crate) fn answered(&self, sent: Moment) {
        self.answered.fetch_max(nanos(sent), Ordering::Relaxed);
        if !self.is_known.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state.lock();
        state.since = None;
        self.is_known.store(false, Ordering::Release);
        drop(state);
        self.changed.notify();
    }

    /// When the outage began, if there is one.
    pub(crate) fn since(&self, now: Moment) -> Option<Moment> {
        self.state.lock().since(now, self.memory)
    }

    /// The last failure of a call of this or the last outage.
    pub(crate) fn error(&self) -> BackendError {
        let error = self.state.lock().last_error.clone();
        error.unwrap_or_else(|| BackendError::unavailable("the lock service gives no answer"))
    }
}

fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.since_origin().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    #[test]
    fn outage_begins_with_its_first_failure_and_ends_with_an_answer() {
        let outage = Outage::new(Duration::from_secs(5));
        outage.answered(at(1));
        assert_eq!(outage.since(at(1)), None);
        for (sent, reason) in [(3, "first"), (4, "second")] {
            outage.failed(at(sent), at(sent + 1), &BackendError::unavailable(reason));
            assert_eq!(outage.since(at(sent + 5)), Some(at(3)));
        }
        assert!(outage.error().to_string().contains("second"));
        outage.answered(at(5));
        assert_eq!(outage.since(at(5)), None);
        // Sent before the call that was answered.
        outage.failed(at(4), at(6), &BackendError::unavailable("third"));
        assert_eq!(outage.since(at(6)), None);
    }

    #[test]
    fn failure_is_forgotten_if_no_other_call_confirms_it() {
        let outage = Outage::new(Duration::from_secs(5));
        outage.failed(at(3), at(8), &BackendError::unavailable("first"));
        assert_eq!(outage.since(at(19)), Some(at(3)));
        assert_eq!(outage.since(at(20)), None);
        outage.failed(at(60), at(61), &BackendError::unavailable("second"));
        assert_eq!(outage.since(at(62)), Some(at(60)));
    }
}
