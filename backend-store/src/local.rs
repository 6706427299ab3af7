//! Notifications within one client, for a store that can't send any.

use std::collections::BTreeMap;
use std::sync::Mutex;

use futures_channel::mpsc::{UnboundedSender, unbounded};
use leasehold_api::machine::{HolderParts, Message, Payload, State, WaiterParts};
use leasehold_api::{Notification, Notifications, Operation, ServerTime, SessionId, Stamp};

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

/// The grants of a step to waiters that don't count as listening, to which the step itself sends no message.
pub(crate) fn grants(before: &State, after: &State, at: ServerTime) -> Vec<Message> {
    let waited = before.to_parts().waiters;
    if waited.iter().all(|waiter| waiter.listening) {
        return Vec::new();
    }
    let holders = after.to_parts().holders;
    let grant = |waiter: &WaiterParts| {
        let Operation {
            session, sequence, ..
        } = waiter.operation;
        let has = |holder: &&HolderParts| {
            let mut holds = holder.holds.iter();
            holder.session == session && holds.any(|(hold, _)| *hold == sequence)
        };
        let holder = holders.iter().find(has)?;
        let payload = Payload::Granted {
            sequence,
            token: holder.token,
            remaining: holder.end.saturating_since(at),
        };
        let to = session;
        Some(Message { to, payload })
    };
    let polling = waited.iter().filter(|waiter| !waiter.listening);
    polling.filter_map(grant).collect()
}
