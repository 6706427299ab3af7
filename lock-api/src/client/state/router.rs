//! Where pushed notices find the attempts and guards that they are for.
//!
//! An attempt registers before it is sent, because a push may come before the reply. Its entry
//! lives until its end is acknowledged: whatever comes for it until then is expected, and
//! changes nothing that has been decided. A notice without an entry is for an operation that is
//! over.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::backend::Notice;
use crate::client::error::Loss;
use crate::client::state::signal::Signal;
use crate::id::FencingToken;
use crate::mutants::mutant;
use crate::runtime::Moment;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, Weak};
use crate::time::Stamp;

/// A grant that was pushed, and when it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PushedGrant {
    pub(crate) token: FencingToken,
    pub(crate) remaining: Duration,
    pub(crate) stamp: Stamp,
    pub(crate) received: Moment,
}

/// What has been pushed for one waiting attempt.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    state: Mutex<Mail>,
    changed: Signal,
}

#[derive(Debug, Default)]
struct Mail {
    grant: Option<PushedGrant>,
    nudged: bool,
}

/// What a waiting attempt is told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Granted(PushedGrant),
    /// It is time to poll: a hint, or notices may have been missed.
    PollNow,
}

impl Mailbox {
    fn put(&self, put: impl FnOnce(&mut Mail)) {
        put(&mut self.state.lock());
        self.changed.notify();
    }

    /// Whether a grant has come that nobody has taken.
    pub(crate) fn has_grant(&self) -> bool {
        self.state.lock().grant.is_some()
    }

    /// The next event; safe to drop and to ask again.
    pub(crate) async fn next(&self) -> Event {
        loop {
            let version = self.changed.version();
            {
                let mut mail = self.state.lock();
                let grant = match mutant!(TwoTakersOfAGrant) {
                    true => mail.grant,
                    false => mail.grant.take(),
                };
                if let Some(grant) = grant {
                    return Event::Granted(grant);
                }
                if std::mem::take(&mut mail.nudged) {
                    return Event::PollNow;
                }
            }
            self.changed.changed(version).await;
        }
    }
}

/// A holder, which a pushed notification can end.
pub(crate) trait Revocable: fmt::Debug + Send + Sync {
    /// Marks the holder as lost, if the operation with this sequence still holds through it.
    fn revoke(&self, sequence: u64, loss: Loss);
}

#[derive(Debug)]
enum Entry {
    Waiting(Arc<Mailbox>),
    Held(Weak<dyn Revocable>),
    Ending,
}

#[derive(Debug, Default)]
pub(crate) struct Hub {
    entries: Mutex<BTreeMap<u64, Entry>>,
    listening: AtomicBool,
    pub(crate) started: AtomicBool,
}

impl Hub {
    /// Whether the subscription is confirmed.
    pub(crate) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::Acquire)
    }

    pub(crate) fn register(&self, sequence: u64) -> Arc<Mailbox> {
        let mailbox = Arc::new(Mailbox::default());
        self.entries
            .lock()
            .insert(sequence, Entry::Waiting(Arc::clone(&mailbox)));
        mailbox
    }

    pub(crate) fn held(&self, sequence: u64, tenure: Weak<dyn Revocable>) {
        self.entries.lock().insert(sequence, Entry::Held(tenure));
    }

    /// The end of an operation was decided; a grant that comes now is not for anybody.
    pub(crate) fn ending(&self, sequence: u64) {
        if let Some(entry) = self.entries.lock().get_mut(&sequence) {
            *entry = Entry::Ending;
        }
    }

    #[cfg(all(test, leasehold_loom))]
    pub(crate) fn knows(&self, sequence: u64) -> bool {
        self.entries.lock().contains_key(&sequence)
    }

    pub(crate) fn remove(&self, sequence: u64) {
        self.entries.lock().remove(&sequence);
    }

    /// The subscription was confirmed, or lost: everyone polls at once.
    fn set_listening(&self, listening: bool) {
        let was_listening = self.listening.swap(listening, Ordering::AcqRel);
        // While nothing could come nothing was missed.
        if (!listening && !was_listening) || mutant!(ResubscribeWithoutRecheck) {
            return;
        }
        let waiting: Vec<Arc<Mailbox>> = {
            let entries = self.entries.lock();
            let waiting = entries.values().filter_map(|entry| match entry {
                Entry::Waiting(mailbox) => Some(Arc::clone(mailbox)),
                Entry::Held(_) | Entry::Ending => None,
            });
            waiting.collect()
        };
        for mailbox in waiting {
            mailbox.put(|mail| mail.nudged = true);
        }
    }

    /// Carries a notice to whom it is for.
    pub(crate) fn deliver(&self, notice: Notice, received: Moment) {
        match notice {
            Notice::Granted {
                sequence,
                token,
                remaining,
                stamp,
            } => {
                let grant = PushedGrant {
                    token,
                    remaining,
                    stamp,
                    received,
                };
                if let Some(mailbox) = self.waiting(sequence) {
                    mailbox.put(|mail| mail.grant = Some(grant));
                } else if mutant!(DuplicatePushEndsHold) {
                    self.lose(sequence, Loss::Unknown);
                }
            }
            Notice::Hint { sequence, .. } => {
                if let Some(mailbox) = self.waiting(sequence) {
                    mailbox.put(|mail| mail.nudged = true);
                }
            }
            Notice::Revoked { sequence, .. } => self.lose(sequence, Loss::Forced),
            Notice::Gap { listening } => self.set_listening(listening),
        }
    }

    /// Declares the tenure lost in which the operation holds, if it still does.
    fn lose(&self, sequence: u64, loss: Loss) {
        let tenure = match self.entries.lock().get(&sequence) {
            Some(Entry::Held(tenure)) => tenure.upgrade(),
            _ => None,
        };
        if let Some(tenure) = tenure {
            tenure.revoke(sequence, loss);
        }
    }

    fn waiting(&self, sequence: u64) -> Option<Arc<Mailbox>> {
        match self.entries.lock().get(&sequence) {
            Some(Entry::Waiting(mailbox)) => Some(Arc::clone(mailbox)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::time::{ClockId, ServerTime};

    const STAMP: Stamp = Stamp {
        clock: ClockId::new(1),
        at: ServerTime::from_micros(1),
    };

    fn granted(sequence: u64, token: u64) -> Notice {
        Notice::Granted {
            sequence,
            token: FencingToken::new(token),
            remaining: Duration::from_secs(5),
            stamp: STAMP,
        }
    }

    fn deliver(hub: &Hub, notice: Notice) {
        hub.deliver(notice, Moment::default());
    }

    #[test]
    fn a_grant_that_comes_before_the_reply_waits_in_the_mailbox_and_is_taken_once() {
        let hub = Hub::default();
        let mailbox = hub.register(1);
        deliver(&hub, granted(1, 7));
        deliver(&hub, granted(1, 7));
        deliver(&hub, granted(2, 8));
        let event = mailbox.next().now_or_never();
        assert!(matches!(event, Some(Event::Granted(grant)) if grant.token.get() == 7));
        assert!(mailbox.next().now_or_never().is_none());
    }

    #[test]
    fn after_the_end_was_decided_nothing_is_delivered() {
        let hub = Hub::default();
        let mailbox = hub.register(1);
        hub.ending(1);
        deliver(&hub, granted(1, 7));
        deliver(&hub, Notice::Gap { listening: true });
        assert!(mailbox.next().now_or_never().is_none());
        assert_eq!(
            hub.entries.lock().len(),
            1,
            "kept until the end is acknowledged"
        );
        hub.remove(1);
        assert!(hub.entries.lock().is_empty());
    }

    #[test]
    fn hints_and_gaps_say_to_poll() {
        let hub = Hub::default();
        let (one, two) = (hub.register(1), hub.register(2));
        deliver(
            &hub,
            Notice::Hint {
                sequence: 1,
                stamp: STAMP,
            },
        );
        assert!(matches!(one.next().now_or_never(), Some(Event::PollNow)));
        assert!(two.next().now_or_never().is_none());
        for listening in [true, false] {
            deliver(&hub, Notice::Gap { listening });
            assert_eq!(hub.is_listening(), listening);
            assert!(matches!(one.next().now_or_never(), Some(Event::PollNow)));
            assert!(matches!(two.next().now_or_never(), Some(Event::PollNow)));
        }
    }
}
