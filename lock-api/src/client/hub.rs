//! Where pushed notices find the attempts and guards that they are for.
//!
//! An attempt registers before it is sent, because a push may come before the reply. Its entry
//! lives until its end is acknowledged: whatever comes for it until then is expected, and
//! changes nothing that has been decided. A notice without an entry is for an operation that is
//! over.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::backend::Notice;
use crate::client::error::Loss;
use crate::client::signal::Signal;
use crate::client::tenure::Tenure;
use crate::id::FencingToken;
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

    /// The next event; safe to drop and to ask again.
    pub(crate) async fn next(&self) -> Event {
        loop {
            let version = self.changed.version();
            {
                let mut mail = self.state.lock();
                if let Some(grant) = mail.grant.take() {
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

#[derive(Debug)]
enum Entry {
    Waiting(Arc<Mailbox>),
    Held(Weak<Tenure>),
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

    pub(crate) fn held(&self, sequence: u64, tenure: &Arc<Tenure>) {
        self.entries
            .lock()
            .insert(sequence, Entry::Held(Arc::downgrade(tenure)));
    }

    /// The end of an operation was decided; a grant that comes now is not for anybody.
    pub(crate) fn ending(&self, sequence: u64) {
        if let Some(entry) = self.entries.lock().get_mut(&sequence) {
            *entry = Entry::Ending;
        }
    }

    pub(crate) fn remove(&self, sequence: u64) {
        self.entries.lock().remove(&sequence);
    }

    /// The subscription was confirmed, or lost: everyone polls at once.
    pub(crate) fn set_listening(&self, listening: bool) {
        self.listening.store(listening, Ordering::Release);
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
                }
            }
            Notice::Hint { sequence, .. } => {
                if let Some(mailbox) = self.waiting(sequence) {
                    mailbox.put(|mail| mail.nudged = true);
                }
            }
            Notice::Revoked { sequence, .. } => {
                let tenure = match self.entries.lock().get(&sequence) {
                    Some(Entry::Held(tenure)) => tenure.upgrade(),
                    _ => None,
                };
                if let Some(tenure) = tenure.filter(|tenure| tenure.is_live(sequence)) {
                    tenure.lose(Loss::Forced);
                }
            }
            Notice::Gap { listening } => self.set_listening(listening),
        }
    }

    fn waiting(&self, sequence: u64) -> Option<Arc<Mailbox>> {
        match self.entries.lock().get(&sequence) {
            Some(Entry::Waiting(mailbox)) => Some(Arc::clone(mailbox)),
            _ => None,
        }
    }
}
