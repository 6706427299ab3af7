//! Notifications within one client, for a store that can't send any.

use std::collections::BTreeMap;
use std::sync::Mutex;

use futures_channel::mpsc::{UnboundedSender, unbounded};
use leasehold_api::machine::Message;
use leasehold_api::{Notification, Notifications, SessionId, Stamp};

use crate::lock;

/// The sessions that listen here.
#[derive(Debug, Default)]
pub(crate) struct Local(Mutex<BTreeMap<SessionId, Vec<UnboundedSender<Notification>>>>);

impl Local {
    /// Subscribes to the messages to a session.
    pub(crate) fn listen(&self, session: SessionId) -> Notifications {
        let (sender, receiver) = unbounded();
        let mut listeners = lock(&self.0);
        // Sessions that are gone are forgotten.
        listeners.retain(|_, senders| {
            senders.retain(|sender| !sender.is_closed());
            !senders.is_empty()
        });
        listeners.entry(session).or_default().push(sender);
        Box::pin(receiver)
    }

    /// Delivers the messages of a write that was applied.
    pub(crate) fn deliver(&self, messages: &[Message], stamp: Stamp) {
        if messages.is_empty() {
            return;
        }
        let listeners = lock(&self.0);
        for message in messages {
            for sender in listeners.get(&message.to).into_iter().flatten() {
                // Fails if the stream was dropped.
                let _ = sender.unbounded_send(message.payload.stamped(stamp));
            }
        }
    }
}
