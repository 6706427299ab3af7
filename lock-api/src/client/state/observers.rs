//! Which stream of a client asks who holds a key, and what the answer was.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Duration;

use crate::client::state::signal::Signal;
use crate::id::Key;
use crate::reply::InspectReply;
use crate::runtime::Moment;
use crate::sync::{Arc, Mutex};

/// How often the streams of a key ask together.
const EVERY: Duration = Duration::from_secs(1);

/// The keys that a client observes.
#[derive(Debug, Default)]
pub(crate) struct Observed(Mutex<BTreeMap<Key, Weak<Observers>>>);

impl Observed {
    pub(crate) fn observers(&self, key: &Key) -> Arc<Observers> {
        let mut all = self.0.lock();
        if let Some(observers) = all.get(key).and_then(Weak::upgrade) {
            return observers;
        }
        all.retain(|_, observers| observers.strong_count() > 0);
        let observers = Arc::default();
        all.insert(key.clone(), Arc::downgrade(&observers));
        observers
    }
}

/// What all streams of one client and key share: one of them asks for all.
#[derive(Debug, Default)]
pub(crate) struct Observers {
    shared: Mutex<Shared>,
    /// Changes with each answer.
    pub(crate) answered: Signal,
}

#[derive(Debug, Default)]
struct Shared {
    due: Moment,
    /// Which inspection has given `latest`: when the next one was due.
    answered: Moment,
    latest: Option<Arc<InspectReply>>,
}

impl Observers {
    /// If the caller must ask now, returns when to ask again. The caller then calls [`end`](Self::end). If it
    /// is dropped before, another stream asks a second later.
    pub(crate) fn begin(&self, now: Moment) -> Option<Moment> {
        let mut shared = self.shared.lock();
        if shared.due > now {
            return None;
        }
        shared.due = now.saturating_add(EVERY);
        shared.latest = None;
        Some(shared.due)
    }

    /// Keeps the answer for the other streams, or `None` if there was none, unless a later inspection was answered
    /// before. If only the latest inspection counted, streams would learn nothing from answers that take longer than a
    /// second: another stream asks meanwhile.
    pub(crate) fn end(&self, due: Moment, answer: Option<InspectReply>) {
        {
            let mut shared = self.shared.lock();
            if due <= shared.answered {
                return;
            }
            shared.answered = due;
            shared.latest = answer.map(Arc::new);
        }
        self.answered.notify();
    }

    /// The answer to the last inspection, once it has come, or until then one that came after that was begun.
    pub(crate) fn latest(&self) -> Option<Arc<InspectReply>> {
        self.shared.lock().latest.clone()
    }

    pub(crate) fn due(&self) -> Moment {
        self.shared.lock().due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Moment {
        Moment::default().saturating_add(Duration::from_secs(secs))
    }

    #[test]
    fn one_stream_asks_for_all() {
        let (observed, key) = (Observed::default(), Key::new("k").expect("valid"));
        let (first, second) = (observed.observers(&key), observed.observers(&key));
        assert_eq!(first.begin(at(5)), Some(at(6)));
        assert_eq!(second.begin(at(5)), None, "the first one asks");
        assert_eq!(second.latest(), None);
        let version = second.answered.version();
        first.end(at(6), Some(InspectReply::default()));
        assert_ne!(second.answered.version(), version);
        assert!(second.latest().is_some());
        // The first one was dropped while it asked, and the next one has no old answer.
        assert_eq!(first.begin(at(6)), Some(at(7)));
        assert_eq!((second.begin(at(6)), second.latest()), (None, None));
        // Its answer comes after all, when the second one has asked.
        assert_eq!(second.begin(at(7)), Some(at(8)));
        first.end(at(7), Some(InspectReply::default()));
        assert!(second.latest().is_some());
        assert_eq!(first.due(), at(8));
        second.end(at(8), None);
        assert_eq!(first.latest(), None);
        // An answer that a later one has overtaken is too late.
        assert_eq!(first.begin(at(8)), Some(at(9)));
        assert_eq!(second.begin(at(9)), Some(at(10)));
        second.end(at(10), None);
        first.end(at(9), Some(InspectReply::default()));
        assert_eq!(first.latest(), None);
    }

    #[test]
    fn keys_are_forgotten_with_their_last_stream() {
        let observed = Observed::default();
        let keys: Vec<_> = ["a", "b"].map(|name| Key::new(name).expect("valid")).into();
        drop(observed.observers(&keys[0]));
        let _second = observed.observers(&keys[1]);
        assert_eq!(observed.0.lock().len(), 1);
    }
}
