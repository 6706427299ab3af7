//! The notification router: delivers notifications to the attempts and guards of a session.
//!
//! The router has one entry for each operation, by sequence number. An attempt registers before it sends its
//! acquire, because a grant may be pushed before the reply arrives (rule 11). While the attempt waits, its
//! entry is an [`Inbox`], which keeps the last grant and whether to poll. A grant is taken from the inbox once,
//! so a duplicate has no effect. With a guard, the entry refers to its holder, so that a forced release reaches
//! it. A forced release may overtake the reply with the grant. Then the entry keeps it, and the guard is lost as
//! soon as it is made. Once a release is decided, the entry stays only until that is acknowledged, and
//! notifications for it are ignored. A notification without an entry is ignored too: it is a
//! late copy, or it is for another session whose channel has the same name. A release in answer to it would end one of
//! this client's operations (decision 0003).
//!
//! When the subscription is confirmed or lost, notifications may have been missed. Every inbox then
//! asks for a poll.

use std::collections::BTreeMap;
use std::fmt;

use crate::backend::Notification;
use crate::client::state::answer::GrantReply;
use crate::client::state::signal::Watched;
use crate::runtime::Moment;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, Weak};
use crate::time::Stamp;

/// A grant that was pushed, and when the client received it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PushedGrant {
    pub(crate) reply: GrantReply,
    pub(crate) stamp: Stamp,
    pub(crate) received: Moment,
}

pub(crate) type Inbox = Watched<Contents>;

#[derive(Debug, Default)]
pub(crate) struct Contents {
    grant: Option<PushedGrant>,
    poll_now: bool,
}

/// The next thing that a waiting attempt must act on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InboxEvent {
    Granted(PushedGrant),
    /// Poll now: notifications may have been missed.
    PollNow,
}

impl Inbox {
    /// Waits for the next event. Cancel safe.
    pub(crate) async fn next(&self) -> InboxEvent {
        let taken = |contents: &mut Contents| {
            if let Some(grant) = contents.grant.take() {
                return Some(InboxEvent::Granted(grant));
            }
            std::mem::take(&mut contents.poll_now).then_some(InboxEvent::PollNow)
        };
        self.wait_for(taken).await
    }
}

/// What a forced release ends: the holder of an operation.
pub(crate) trait Revocable: fmt::Debug + Send + Sync {
    /// Marks the holder as lost by a forced release, unless the release of this operation has begun.
    fn revoke(&self, sequence: u64);
}

#[derive(Debug)]
enum Entry {
    Waiting {
        inbox: Arc<Inbox>,
        /// Whether the operation was released by force. The reply with its grant may be on its way.
        revoked: bool,
    },
    Held(Weak<dyn Revocable>),
    /// A release was decided and is not acknowledged yet.
    Releasing,
}

#[derive(Debug, Default)]
pub(crate) struct NotificationRouter {
    entries: Mutex<BTreeMap<u64, Entry>>,
    listening: AtomicBool,
}

impl NotificationRouter {
    pub(crate) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::Acquire)
    }

    /// Adds the inbox of an attempt that is about to send its acquire.
    pub(crate) fn register(&self, sequence: u64) -> Arc<Inbox> {
        let inbox = Arc::new(Inbox::default());
        let entry = Entry::Waiting {
            inbox: Arc::clone(&inbox),
            revoked: false,
        };
        self.entries.lock().insert(sequence, entry);
        inbox
    }

    /// Routes the forced release of an operation to its holder, also one that came before. A reply that is
    /// later doesn't undo it: a hold that is revoked stays at the server until it ends.
    pub(crate) fn set_held(&self, sequence: u64, holder: &Arc<impl Revocable + 'static>) {
        let weak = Arc::downgrade(holder);
        let entry = Entry::Held(weak);
        let before = self.entries.lock().insert(sequence, entry);
        if let Some(Entry::Waiting { revoked: true, .. }) = before {
            holder.revoke(sequence);
        }
    }

    /// Marks an operation as being released. Later notifications for it are ignored.
    pub(crate) fn set_releasing(&self, sequence: u64) {
        if let Some(entry) = self.entries.lock().get_mut(&sequence) {
            *entry = Entry::Releasing;
        }
    }

    #[cfg(all(test, leasehold_loom))]
    pub(crate) fn knows(&self, sequence: u64) -> bool {
        self.entries.lock().contains_key(&sequence)
    }

    pub(crate) fn remove(&self, sequence: u64) {
        self.entries.lock().remove(&sequence);
    }

    /// Notes that the subscription was confirmed or lost, and asks every inbox for a poll.
    fn set_listening(&self, listening: bool) {
        let was_listening = self.listening.swap(listening, Ordering::AcqRel);
        // No notification was expected, so none was missed.
        if !listening && !was_listening {
            return;
        }
        let inboxes: Vec<Arc<Inbox>> = {
            let entries = self.entries.lock();
            let inboxes = entries.values().filter_map(|entry| match entry {
                Entry::Waiting { inbox, .. } => Some(Arc::clone(inbox)),
                Entry::Held(_) | Entry::Releasing => None,
            });
            inboxes.collect()
        };
        for inbox in inboxes {
            inbox.update(|contents| contents.poll_now = true);
        }
    }

    /// Delivers a notification to the inbox or holder of its operation.
    pub(crate) fn deliver(&self, notification: Notification, received: Moment) {
        match notification {
            Notification::Granted {
                sequence,
                token,
                remaining,
                stamp,
            } => {
                let reply = GrantReply {
                    token,
                    holds: None,
                    remaining,
                };
                let grant = PushedGrant {
                    reply,
                    stamp,
                    received,
                };
                self.grant(sequence, grant);
            }
            Notification::Revoked { sequence, .. } => self.revoke(sequence),
            Notification::Missed { listening } => self.set_listening(listening),
        }
    }

    /// Marks the holder of an operation as lost, or keeps the forced release for the holder to come.
    fn revoke(&self, sequence: u64) {
        let holder = match self.entries.lock().get_mut(&sequence) {
            Some(Entry::Held(holder)) => holder.upgrade(),
            Some(Entry::Waiting { revoked, .. }) => {
                *revoked = true;
                None
            }
            Some(Entry::Releasing) | None => None,
        };
        if let Some(holder) = holder {
            holder.revoke(sequence);
        }
    }

    /// Puts a grant into the inbox of its attempt.
    fn grant(&self, sequence: u64, grant: PushedGrant) {
        let inbox = match self.entries.lock().get(&sequence) {
            Some(Entry::Waiting { inbox, .. }) => Arc::clone(inbox),
            _ => return,
        };
        inbox.update(|contents| contents.grant = Some(grant));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;
    use crate::client::error::Loss;
    use crate::client::state::holder::HolderCell;
    use crate::client::state::holder::tests::{hold, holder};
    use crate::id::FencingToken;
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

    fn revoked(sequence: u64) -> Notification {
        let stamp = STAMP;
        Notification::Revoked { sequence, stamp }
    }

    fn deliver(router: &NotificationRouter, notification: Notification) {
        router.deliver(notification, Moment::default());
    }

    #[test]
    fn grant_before_the_reply_is_kept_and_taken_once() {
        let router = NotificationRouter::default();
        let inbox = router.register(1);
        deliver(&router, granted(1, 7));
        deliver(&router, granted(1, 7));
        deliver(&router, granted(2, 8));
        let event = inbox.next().now_or_never();
        assert!(matches!(event, Some(InboxEvent::Granted(grant)) if grant.reply.token.get() == 7));
        assert!(inbox.next().now_or_never().is_none());
    }

    /// A holder with this hold, which gets its notifications.
    fn held(router: &NotificationRouter, sequence: u64) -> Arc<HolderCell> {
        let holder = holder(hold(sequence, 1_000));
        router.set_held(sequence, &holder);
        holder
    }

    #[test]
    fn notification_without_an_entry_changes_nothing() {
        let router = NotificationRouter::default();
        let inbox = router.register(1);
        let holder = held(&router, 2);
        for sequence in [0, 3, 1_000, u64::MAX] {
            for notification in [granted(sequence, 7), revoked(sequence)] {
                deliver(&router, notification);
            }
        }
        assert!(inbox.next().now_or_never().is_none());
        assert_eq!(holder.lost(), None);
        let known: Vec<u64> = router.entries.lock().keys().copied().collect();
        assert_eq!(known, [1, 2], "no entry is made or removed");
        deliver(&router, revoked(2));
        assert_eq!(holder.lost(), Some(Loss::Forced));
    }

    #[test]
    fn forced_release_that_overtakes_its_grant_loses_the_guard() {
        let router = NotificationRouter::default();
        let _inboxes = [router.register(1), router.register(2)];
        deliver(&router, revoked(1));
        let [first, second] = [1, 2].map(|sequence| held(&router, sequence));
        assert_eq!(first.lost(), Some(Loss::Forced));
        assert_eq!(second.lost(), None, "another operation");
        deliver(&router, revoked(2));
        assert_eq!(second.lost(), Some(Loss::Forced), "it is held now");
    }

    #[test]
    fn nothing_is_delivered_after_a_release_was_decided() {
        let router = NotificationRouter::default();
        let inbox = router.register(1);
        router.set_releasing(1);
        deliver(&router, granted(1, 7));
        deliver(&router, Notification::Missed { listening: true });
        assert!(inbox.next().now_or_never().is_none());
        // The entry stays until the release is acknowledged.
        assert_eq!(router.entries.lock().len(), 1);
        router.remove(1);
        assert!(router.entries.lock().is_empty());
    }

    #[test]
    fn missed_notifications_ask_for_a_poll() {
        let router = NotificationRouter::default();
        let (one, two) = (router.register(1), router.register(2));
        let asks = |inbox: &Inbox| {
            let event = inbox.next().now_or_never();
            matches!(event, Some(InboxEvent::PollNow))
        };
        for listening in [true, false] {
            deliver(&router, Notification::Missed { listening });
            assert_eq!(router.is_listening(), listening);
            assert!(asks(&one) && asks(&two));
        }
    }
}
