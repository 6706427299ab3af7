//! Where pushed notifications find the attempts and guards that they are for.
//!
//! An attempt registers before it is sent, because a push may come before the reply. Its entry
//! lives until its end is acknowledged: whatever comes for it until then is expected, and
//! changes nothing that has been decided. A notification without an entry is for an operation that is
//! over.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::backend::Notification;
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
pub(crate) struct Inbox {
    state: Mutex<Contents>,
    changed: Signal,
}

#[derive(Debug, Default)]
struct Contents {
    grant: Option<PushedGrant>,
    poll_now: bool,
}

/// What a waiting attempt is told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InboxEvent {
    Granted(PushedGrant),
    /// It is time to poll: a wake-up, or notifications may have been missed.
    PollNow,
}

impl Inbox {
    fn put(&self, put: impl FnOnce(&mut Contents)) {
        put(&mut self.state.lock());
        self.changed.notify();
    }

    /// Whether a grant has come that nobody has taken.
    pub(crate) fn has_grant(&self) -> bool {
        self.state.lock().grant.is_some()
    }

    /// The next event; safe to drop and to ask again.
    pub(crate) async fn next(&self) -> InboxEvent {
        loop {
            let version = self.changed.version();
            {
                let mut contents = self.state.lock();
                let grant = match mutant!(TwoTakersOfAGrant) {
                    true => contents.grant,
                    false => contents.grant.take(),
                };
                if let Some(grant) = grant {
                    return InboxEvent::Granted(grant);
                }
                if std::mem::take(&mut contents.poll_now) {
                    return InboxEvent::PollNow;
                }
            }
            self.changed.changed(version).await;
        }
    }
}

/// A holder, which a pushed notification can end.
pub(crate) trait Revocable: fmt::Debug + Send + Sync {
    /// Watermarks the holder as lost, if the operation with this sequence still holds through it.
    fn revoke(&self, sequence: u64, loss: Loss);
}

#[derive(Debug)]
enum Entry {
    Waiting(Arc<Inbox>),
    Held(Weak<dyn Revocable>),
    Ending,
}

#[derive(Debug, Default)]
pub(crate) struct NotificationRouter {
    entries: Mutex<BTreeMap<u64, Entry>>,
    listening: AtomicBool,
    pub(crate) started: AtomicBool,
}

impl NotificationRouter {
    /// Whether the subscription is confirmed.
    pub(crate) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::Acquire)
    }

    pub(crate) fn register(&self, sequence: u64) -> Arc<Inbox> {
        let inbox = Arc::new(Inbox::default());
        self.entries
            .lock()
            .insert(sequence, Entry::Waiting(Arc::clone(&inbox)));
        inbox
    }

    pub(crate) fn held(&self, sequence: u64, holder: Weak<dyn Revocable>) {
        self.entries.lock().insert(sequence, Entry::Held(holder));
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
        let waiting: Vec<Arc<Inbox>> = {
            let entries = self.entries.lock();
            let waiting = entries.values().filter_map(|entry| match entry {
                Entry::Waiting(inbox) => Some(Arc::clone(inbox)),
                Entry::Held(_) | Entry::Ending => None,
            });
            waiting.collect()
        };
        for inbox in waiting {
            inbox.put(|contents| contents.poll_now = true);
        }
    }

    /// Carries a notification to whom it is for.
    pub(crate) fn deliver(&self, notification: Notification, received: Moment) {
        match notification {
            Notification::Granted {
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
                if let Some(inbox) = self.waiting(sequence) {
                    inbox.put(|contents| contents.grant = Some(grant));
                } else if mutant!(DuplicatePushEndsHold) {
                    self.lose(sequence, Loss::Unknown);
                }
            }
            Notification::WakeUp { sequence, .. } => {
                if let Some(inbox) = self.waiting(sequence) {
                    inbox.put(|contents| contents.poll_now = true);
                }
            }
            Notification::Revoked { sequence, .. } => self.lose(sequence, Loss::Forced),
            Notification::Missed { listening } => self.set_listening(listening),
        }
    }

    /// Declares the holder lost in which the operation holds, if it still does.
    fn lose(&self, sequence: u64, loss: Loss) {
        let holder = match self.entries.lock().get(&sequence) {
            Some(Entry::Held(holder)) => holder.upgrade(),
            _ => None,
        };
        if let Some(holder) = holder {
            holder.revoke(sequence, loss);
        }
    }

    fn waiting(&self, sequence: u64) -> Option<Arc<Inbox>> {
        match self.entries.lock().get(&sequence) {
            Some(Entry::Waiting(inbox)) => Some(Arc::clone(inbox)),
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

    fn granted(sequence: u64, token: u64) -> Notification {
        Notification::Granted {
            sequence,
            token: FencingToken::new(token),
            remaining: Duration::from_secs(5),
            stamp: STAMP,
        }
    }

    fn deliver(router: &NotificationRouter, notification: Notification) {
        router.deliver(notification, Moment::default());
    }

    #[test]
    fn a_grant_that_comes_before_the_reply_waits_in_the_inbox_and_is_taken_once() {
        let router = NotificationRouter::default();
        let inbox = router.register(1);
        deliver(&router, granted(1, 7));
        deliver(&router, granted(1, 7));
        deliver(&router, granted(2, 8));
        let event = inbox.next().now_or_never();
        assert!(matches!(event, Some(InboxEvent::Granted(grant)) if grant.token.get() == 7));
        assert!(inbox.next().now_or_never().is_none());
    }

    #[test]
    fn after_the_end_was_decided_nothing_is_delivered() {
        let router = NotificationRouter::default();
        let inbox = router.register(1);
        router.ending(1);
        deliver(&router, granted(1, 7));
        deliver(&router, Notification::Missed { listening: true });
        assert!(inbox.next().now_or_never().is_none());
        assert_eq!(
            router.entries.lock().len(),
            1,
            "kept until the end is acknowledged"
        );
        router.remove(1);
        assert!(router.entries.lock().is_empty());
    }

    #[test]
    fn wake_ups_and_missed_notifications_say_to_poll() {
        let router = NotificationRouter::default();
        let (one, two) = (router.register(1), router.register(2));
        deliver(
            &router,
            Notification::WakeUp {
                sequence: 1,
                stamp: STAMP,
            },
        );
        assert!(matches!(
            one.next().now_or_never(),
            Some(InboxEvent::PollNow)
        ));
        assert!(two.next().now_or_never().is_none());
        for listening in [true, false] {
            deliver(&router, Notification::Missed { listening });
            assert_eq!(router.is_listening(), listening);
            assert!(matches!(
                one.next().now_or_never(),
                Some(InboxEvent::PollNow)
            ));
            assert!(matches!(
                two.next().now_or_never(),
                Some(InboxEvent::PollNow)
            ));
        }
    }
}
