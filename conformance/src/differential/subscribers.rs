//! Sessions whose subscription the test controls.

use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use leasehold_api::machine::{Message, Payload};
use leasehold_api::{
    Acquire, Key, LockBackend, LockSpec, Mode, Notification, Notifications, Operation, OwnerId,
    Release, ServerTime, SessionId, Wait,
};

/// The maximum wait for a notification, or for the server to notice a lost subscription.
const TIMEOUT: Duration = Duration::from_secs(8);
/// The lease of the holder in a probe.
const LONG: Duration = Duration::from_secs(60);

/// A session, its attempts and its subscription.
pub(super) struct Subscriber {
    pub(super) session: SessionId,
    notifications: Option<Notifications>,
    sequence: u64,
    /// The number of keys used for probes.
    probes: u64,
}

impl Subscriber {
    pub(super) fn new(backend: &dyn LockBackend) -> Self {
        let mut bytes = [0; 16];
        backend.runtime().fill_random(&mut bytes);
        Self {
            session: SessionId::from_bytes(bytes),
            notifications: None,
            sequence: 0,
            probes: 0,
        }
    }

    pub(super) const fn listens(&self) -> bool {
        self.notifications.is_some()
    }

    /// The next sequence of the session. It skips every other sequence for late attempts.
    pub(super) const fn next_sequence(&mut self) -> u64 {
        self.sequence += 2;
        self.sequence
    }

    pub(super) async fn set_listening(
        &mut self,
        backend: &Arc<dyn LockBackend>,
        listen: bool,
    ) -> Result<(), String> {
        let capabilities = backend.capabilities();
        if !capabilities.push {
            return Ok(());
        }
        if listen && self.notifications.is_none() {
            let notifications = backend.listen(self.session).await;
            self.notifications = Some(notifications.map_err(|error| format!("listen: {error}"))?);
        } else if !listen && self.notifications.take().is_some() && capabilities.reachability {
            self.wait_until_unreachable(backend).await?;
        }
        Ok(())
    }

    /// Waits for one notification and compares it with the machine's message.
    pub(super) async fn expect(
        &mut self,
        backend: &Arc<dyn LockBackend>,
        message: &Message,
        at: ServerTime,
    ) -> Result<(), String> {
        let Some(notifications) = &mut self.notifications else {
            return Ok(());
        };
        let runtime = backend.runtime();
        let received = match runtime.timeout(TIMEOUT, notifications.next()).await {
            Some(Some(received)) => received,
            Some(None) => return Err("the notifications ended".to_owned()),
            None => return Err(format!("expected {message:?}, received nothing")),
        };
        if same(&received, message.payload, at) {
            return Ok(());
        }
        Err(format!(
            "expected {message:?} at {at:?}, received {received:?}"
        ))
    }

    /// Returns the notifications that have already arrived.
    pub(super) fn leftovers(&mut self) -> Vec<Notification> {
        let mut received = Vec::new();
        if let Some(notifications) = &mut self.notifications {
            while let Some(Some(notification)) = notifications.next().now_or_never() {
                received.push(notification);
            }
        }
        received
    }

    /// Checks that no unexpected notification is in flight: the next notification must announce a
    /// new grant.
    pub(super) async fn barrier(&mut self, backend: &Arc<dyn LockBackend>) -> Result<(), String> {
        if self.notifications.is_none() {
            return Ok(());
        }
        let waiter = self.probe(backend).await?;
        let Some(notifications) = &mut self.notifications else {
            return Ok(());
        };
        let runtime = backend.runtime();
        match runtime.timeout(TIMEOUT, notifications.next()).await {
            Some(Some(Notification::Granted { sequence, .. }))
                if sequence == waiter.operation.sequence => {}
            Some(received) => return Err(format!("received {received:?} unexpectedly")),
            None => return Err("a grant was not pushed".to_owned()),
        }
        self.finish(backend, waiter).await
    }

    /// Queues the session for a new key, then frees the key.
    async fn probe(&mut self, backend: &Arc<dyn LockBackend>) -> Result<Release, String> {
        self.probes += 1;
        let number =
            u64::from_le_bytes(self.session.as_bytes()[..8].try_into().unwrap_or_default());
        let key = Key::new(format!("probe {number:x} {}", self.probes));
        let key = key.map_err(|error| error.to_string())?;
        let now = backend.hello().await.map_err(|error| error.to_string())?.at;
        let ask = |operation| {
            let (key, before) = (key.clone(), now.saturating_add(TIMEOUT));
            let (spec, mode) = (LockSpec::mutex(), Mode::Exclusive);
            let request = Acquire::new(key, spec, mode, operation, LONG, before);
            request.map_err(|error| error.to_string())
        };
        let holder = self.attempt(1);
        let waiter = self.attempt(2);
        let error = |error| format!("probe: {error}");
        for request in [ask(holder)?, ask(waiter)?.with_wait(Wait::new(true))] {
            let reply = backend.acquire(from_ref(&request)).await.remove(0);
            reply.map_err(error)?;
        }
        let release = [Release::new(key.clone(), holder)];
        backend.release(&release).await.remove(0).map_err(error)?;
        Ok(Release::new(key, waiter))
    }

    async fn finish(&self, backend: &Arc<dyn LockBackend>, waiter: Release) -> Result<(), String> {
        let released = backend.release(&[waiter]).await.remove(0);
        released.map_err(|error| format!("probe: {error}"))?;
        Ok(())
    }

    const fn attempt(&mut self, owner: u64) -> Operation {
        Operation {
            session: self.session,
            sequence: self.next_sequence(),
            owner: OwnerId::from_u64(owner),
        }
    }

    /// Waits until the server has noticed the dropped subscription.
    async fn wait_until_unreachable(
        &mut self,
        backend: &Arc<dyn LockBackend>,
    ) -> Result<(), String> {
        let start = backend.runtime().now();
        while backend.runtime().now().saturating_since(start) < TIMEOUT {
            let waiter = self.probe(backend).await?;
            let inspection = backend.inspect(&waiter.key).await;
            let inspection = inspection.map_err(|error| error.to_string())?.reply;
            self.finish(backend, waiter).await?;
            let first = inspection.waiters.first();
            if first.is_some_and(|waiter| waiter.unreachable) {
                return Ok(());
            }
            backend.runtime().sleep(Duration::from_millis(1)).await;
        }
        Err("the server still counts the session as listening".to_owned())
    }
}

/// Whether a notification equals the machine's message.
fn same(notification: &Notification, payload: Payload, at: ServerTime) -> bool {
    match (*notification, payload) {
        (
            Notification::Granted {
                sequence,
                token,
                remaining,
                stamp,
            },
            Payload::Granted {
                sequence: s,
                token: t,
                remaining: r,
            },
        ) => (sequence, token, remaining, stamp.at) == (s, t, r, at),
        (Notification::Revoked { sequence, stamp }, Payload::Revoked { sequence: s }) => {
            (sequence, stamp.at) == (s, at)
        }
        _ => false,
    }
}
