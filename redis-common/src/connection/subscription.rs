//! Subscriptions. Each session that listens has a separate connection and task.
//!
//! If the connection ends or goes silent, or its server becomes a replica or leaves the cluster, the task
//! reports that notifications may be missing. It opens another connection, subscribes again and reports this too.
//! Messages are kept in memory until the stream is read.
//!
//! A server that becomes a replica may leave its connections open, and it goes on to deliver what its
//! new primary publishes. But the primary doesn't count these subscribers, so it doesn't publish for
//! them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::stream::poll_fn;
use leasehold_api::{BackendError, ConnectPace, Moment, Notification, Notifications, Runtime};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;

use super::connector::{Connection, ConnectionEvent};
use super::failure::FailureKind;
use super::server::{ServerMode, field};
use super::shared::Shared;
use crate::script::decode_notification;

/// How often a subscription is checked. Only an answer shows that the network is not dead, and that
/// the server is not a replica now.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(2);
/// Messages may be missing, although the connection is alive. Each waiter of the session polls.
pub(super) const MISSED: Notification = Notification::Missed { listening: true };

struct Subscription {
    server: Arc<Shared>,
    connection: Arc<dyn Connection>,
    opened: Moment,
    events: UnboundedReceiver<ConnectionEvent>,
    /// The number of the backend's moves to another server, and that number when the connection
    /// was opened.
    moved: watch::Receiver<u64>,
    moves: u64,
}

/// The servers that publish to a session.
pub(crate) trait Publishers: Send + Sync {
    /// The server of the next connection.
    fn pick(&self) -> Arc<Shared>;

    /// Whether a server that was picked is still one of them.
    fn has(&self, server: &Arc<Shared>) -> bool;
}

pub(crate) struct OnlyServer(pub(crate) Arc<Shared>);

impl Publishers for OnlyServer {
    fn pick(&self) -> Arc<Shared> {
        Arc::clone(&self.0)
    }

    fn has(&self, _: &Arc<Shared>) -> bool {
        true
    }
}

/// Subscribes to `channel` and stays subscribed until the stream is dropped or `closed` is set.
pub(crate) async fn listen(
    publishers: Arc<dyn Publishers>,
    channel: String,
    mut closed: watch::Receiver<bool>,
) -> Result<Notifications, BackendError> {
    let shared = publishers.pick();
    let subscription = Subscription::open(&shared, &channel).await?;
    let (notifications, stream) = mpsc::unbounded_channel();
    let handle = shared.handle.clone();
    let task = SubscriptionTask {
        shared,
        publishers,
        channel,
        pace: ConnectPace::default(),
        notifications,
    };
    handle.spawn(async move {
        // If the sender of `closed` is gone, so is the backend.
        let closing = pin!(closed.wait_for(|closed| *closed));
        select(closing, pin!(task.keep_open(subscription))).await;
    });
    Ok(as_stream(stream))
}

/// What a message tells. A malformed one may have been a grant.
pub(super) fn told_by(payload: &[u8]) -> Vec<Notification> {
    decode_notification(payload).unwrap_or_else(|_| vec![MISSED])
}

pub(super) fn as_stream(mut receiver: UnboundedReceiver<Notification>) -> Notifications {
    Box::pin(poll_fn(move |context| receiver.poll_recv(context)))
}

impl Subscription {
    /// Connects and subscribes, each within the connect timeout.
    async fn open(shared: &Arc<Shared>, channel: &str) -> Result<Self, BackendError> {
        let connected = shared.connect(true).await?;
        let connection = connected.connection;
        let limit = shared.options.connect_timeout;
        match shared.timeout(limit, connection.subscribe(channel)).await {
            Some(Ok(())) => Ok(Self {
                server: Arc::clone(shared),
                connection,
                opened: shared.now(),
                events: connected.events,
                moved: shared.moved.subscribe(),
                moves: connected.moves,
            }),
            Some(Err(failure)) => Err(failure.at_connect(shared.prefix())),
            None => Err(BackendError::unavailable("SUBSCRIBE was not answered")),
        }
    }
}

struct SubscriptionTask {
    shared: Arc<Shared>,
    publishers: Arc<dyn Publishers>,
    channel: String,
    /// When to subscribe again.
    pace: ConnectPace,
    notifications: UnboundedSender<Notification>,
}

impl SubscriptionTask {
    /// Returns when the stream ends or is dropped.
    async fn keep_open(&self, mut subscription: Subscription) {
        while self.forward_until_lost(&mut subscription).await {
            let error = BackendError::unavailable("the subscription has ended");
            let runtime = &self.shared.runtime;
            self.pace.ended(runtime, subscription.opened, &error);
            self.notify(Notification::Missed { listening: false });
            let Some(new) = self.open_again().await else {
                return;
            };
            subscription = new;
            self.notify(MISSED);
        }
    }

    /// Forwards messages until the connection is lost, or until the stream is dropped, and returns `false` then.
    async fn forward_until_lost(&self, subscription: &mut Subscription) -> bool {
        let mut check_at = self.shared.now().saturating_add(CHECK_EVERY);
        loop {
            // Messages must not delay the check.
            let left = check_at.saturating_since(self.shared.now());
            if left.is_zero() {
                if !self.is_sound(subscription).await {
                    return true;
                }
                check_at = self.shared.now().saturating_add(CHECK_EVERY);
                continue;
            }
            let event = pin!(subscription.events.recv());
            let dropped = pin!(self.notifications.closed());
            let moves = subscription.moves;
            // Never an error: the backend owns the sender.
            let moved = pin!(subscription.moved.wait_for(|now| *now != moves));
            let next = select(select(event, moved), dropped);
            match self.shared.timeout(left, next).await {
                Some(Either::Left((Either::Left((event, _)), _))) => match event {
                    Some(ConnectionEvent::Message(payload)) => {
                        told_by(&payload).into_iter().for_each(|it| self.notify(it));
                    }
                    Some(ConnectionEvent::Missed) => self.notify(MISSED),
                    // This connection has no such subscription.
                    Some(
                        ConnectionEvent::ShardMessage { .. } | ConnectionEvent::Unsubscribed(_),
                    ) => {}
                    Some(ConnectionEvent::Closed) | None => return true,
                },
                Some(Either::Left((Either::Right(_), _))) => return true,
                Some(Either::Right(_)) => return false,
                None => {}
            }
        }
    }

    /// Whether the connection works, and its server is still a primary.
    async fn is_sound(&self, subscription: &Subscription) -> bool {
        // Nothing is published to a node that was taken out of the cluster.
        if !self.publishers.has(&subscription.server) {
            return false;
        }
        let (connection, limit) = (&*subscription.connection, self.shared.options.call_timeout);
        let asking = async {
            connection.check_subscriptions(&[]).await.is_ok() && self.is_primary(connection).await
        };
        self.shared.timeout(limit, asking).await == Some(true)
    }

    async fn is_primary(&self, connection: &dyn Connection) -> bool {
        match self.shared.mode {
            ServerMode::Standalone => match connection.info(Some("replication")).await {
                Ok(info) if field(&info, "role") == Some("slave") => {
                    // A replica that takes writes doesn't tell the other connections.
                    self.shared.leave_replica();
                    false
                }
                Ok(_) => true,
                // Some services refuse the question.
                Err(failure) => matches!(failure.kind(), FailureKind::Answered(_)),
            },
            // Any node delivers these messages.
            ServerMode::Cluster => true,
        }
    }

    /// Tries until it succeeds. Returns `None` if the stream is dropped first, or if the server refuses
    /// this client. The stream ends then. The client asks for another one now and then, and tells why
    /// it gets none.
    async fn open_again(&self) -> Option<Subscription> {
        let (runtime, pace) = (&self.shared.runtime, &self.pace);
        loop {
            let server = self.publishers.pick();
            let pauses = [&server.pace, pace].map(|it| it.pause_left(runtime.now()));
            let attempt = async {
                runtime.timer(pauses[0].max(pauses[1])).await;
                let attempt = Subscription::open(&server, &self.channel);
                pace.connect(runtime, Duration::MAX, attempt).await
            };
            match select(pin!(attempt), pin!(self.notifications.closed())).await {
                Either::Left((Ok(subscription), _)) => return Some(subscription),
                Either::Left((Err(error), _)) if !error.is_transient() => return None,
                Either::Left((Err(_), _)) => {}
                Either::Right(_) => return None,
            }
        }
    }

    fn notify(&self, notification: Notification) {
        // Fails if the stream was dropped. The task then ends soon.
        let _ = self.notifications.send(notification);
    }
}
