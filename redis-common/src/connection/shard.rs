//! Notifications in a cluster.
//!
//! A script publishes on the node of its key, so the channel is in the slot of the key: the Redis
//! key of the lock and a hash of the session. Each node has one connection for all channels of the
//! backend there. A session subscribes to the channel of a key when it waits for the key.
//!
//! - A request says that its session listens only if the subscription at the key's node is
//!   confirmed. Without it, the waiter depends on polls.
//! - A replica accepts subscriptions too. What shows that a node is the primary is that it executes
//!   the poll that follows the confirmation. If it redirects the poll, the waiter subscribes at the
//!   other node, and polls there.
//! - When the slot moves or the connection ends, the subscription is gone. The stream then reports
//!   that notifications may be missing. Every waiter polls, and subscribes again before that.
//! - The server ends the subscriptions to a slot whenever the slot gets another primary: at the old
//!   one, and at the new one that was its replica. A library may keep that to itself. So all that is
//!   known about the slot is forgotten at both nodes as soon as the backend learns of the move, and
//!   every [`CHECK_EVERY`] the connection is asked whether it still has its subscriptions.
//! - If the server says that it has ended a subscription, that node knows who has the slot now. The
//!   slots are read from it before the waiters poll. Meanwhile the messages of other slots are delivered.
//! - A channel that no request has used for [`IDLE`] is unsubscribed.
//! - If a node doesn't answer, one attempt to connect fails for all callers that wait for it. Each poll
//!   would otherwise add one.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use futures_util::future::{Either, select};
use leasehold_api::{
    BackendError, ConnectPace, Moment, Notification, Notifications, Runtime, SessionId,
};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;

use super::cluster::Cluster;
use super::connector::{Connection, ConnectionEvent};
use super::failure::{Failure, FailureKind};
use super::lock;
use super::shared::{Shared, not_run};
use super::slots::slot_of;
use super::subscription::{CHECK_EVERY, MISSED, as_stream, told_by};
use super::url::Address;

/// How long a channel stays subscribed after its last use. A waiter polls at least every second.
const IDLE: Duration = Duration::from_secs(10);
/// The maximum number of channels on one node. Waiters beyond that poll.
const MAX_CHANNELS: usize = 10_000;

#[derive(Default)]
pub(crate) struct Streams(Mutex<HashMap<SessionId, Vec<UnboundedSender<Notification>>>>);

impl Streams {
    /// Opens a stream. `ended` runs when the session has no stream any more.
    pub(crate) fn open(
        self: &Arc<Self>,
        session: SessionId,
        handle: &tokio::runtime::Handle,
        mut closed: watch::Receiver<bool>,
        ended: impl FnOnce() + Send + 'static,
    ) -> Notifications {
        let (sender, stream) = mpsc::unbounded_channel();
        lock(&self.0)
            .entry(session)
            .or_default()
            .push(sender.clone());
        let this = Arc::clone(self);
        handle.spawn(async move {
            // If the sender of `closed` is gone, so is the backend.
            select(pin!(sender.closed()), pin!(closed.wait_for(|it| *it))).await;
            if this.remove(session, &sender) {
                ended();
            }
        });
        as_stream(stream)
    }

    /// Removes a stream. Returns whether it was the session's last one.
    fn remove(&self, session: SessionId, sender: &UnboundedSender<Notification>) -> bool {
        let mut streams = lock(&self.0);
        let Some(senders) = streams.get_mut(&session) else {
            return false;
        };
        senders.retain(|other| !other.same_channel(sender));
        let is_last = senders.is_empty();
        if is_last {
            streams.remove(&session);
        }
        is_last
    }

    pub(crate) fn has(&self, session: SessionId) -> bool {
        lock(&self.0).contains_key(&session)
    }

    fn notify(&self, session: SessionId, notification: Notification) {
        for sender in lock(&self.0).get(&session).into_iter().flatten() {
            // Fails if the stream was dropped. It is removed soon.
            let _ = sender.send(notification);
        }
    }
}

pub(crate) struct Subscriber {
    node: Address,
    shared: Arc<Shared>,
    streams: Arc<Streams>,
    /// The connection. Locked while it opens, and while a subscription is sent, because a refused
    /// one may close it.
    connection: tokio::sync::Mutex<Option<Arc<dyn Connection>>>,
    /// When to try again after a subscription without an answer.
    pace: ConnectPace,
    channels: Mutex<HashMap<String, Channel>>,
}

enum Ended {
    Connection,
    Subscription,
}

struct Channel {
    session: SessionId,
    used: Moment,
    is_confirmed: bool,
}

impl Subscriber {
    pub(crate) fn new(node: Address, shared: Arc<Shared>, streams: Arc<Streams>) -> Arc<Self> {
        Arc::new(Self {
            node,
            shared,
            streams,
            connection: tokio::sync::Mutex::default(),
            pace: ConnectPace::default(),
            channels: Mutex::default(),
        })
    }

    /// Whether the channel is subscribed. If so, it stays subscribed for a while.
    pub(crate) fn is_subscribed(&self, channel: &str) -> bool {
        let mut channels = self.channels();
        let Some(channel) = channels.get_mut(channel) else {
            return false;
        };
        channel.used = self.shared.now();
        channel.is_confirmed
    }

    /// Subscribes a session to a channel. Returns whether the server has confirmed it.
    ///
    /// Goes on if the caller gives up, because several round trips to a distant node may take longer
    /// than a poll has time for. The next poll then finds the subscription.
    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        cluster: &Arc<Cluster>,
        session: SessionId,
        channel: String,
    ) -> Result<bool, BackendError> {
        let (this, cluster) = (Arc::clone(self), Arc::downgrade(cluster));
        let subscribing = async move { this.subscribe_now(cluster, session, channel).await };
        let subscribed = self.shared.handle.spawn(subscribing).await;
        subscribed.unwrap_or_else(|ended| Err(not_run(&ended)))
    }

    /// Must run to its end: only there, an unconfirmed channel is removed.
    async fn subscribe_now(
        self: &Arc<Self>,
        cluster: Weak<Cluster>,
        session: SessionId,
        channel: String,
    ) -> Result<bool, BackendError> {
        let mut current = self.connection.lock().await;
        if self.is_subscribed(&channel) {
            return Ok(true);
        }
        let serves = |cluster: Arc<Cluster>| cluster.has_subscriber(&self.node, self);
        if !cluster.upgrade().is_some_and(serves) || self.channels().len() >= MAX_CHANNELS {
            return Ok(false);
        }
        let limit = self.shared.options.connect_timeout * 2;
        let subscribing = self.subscribe_over(&mut current, cluster, session, channel);
        let subscribed = self.pace.connect(&self.shared.runtime, limit, subscribing);
        subscribed.await?
    }

    /// Fails if nobody answers. Otherwise returns what the server says.
    async fn subscribe_over(
        self: &Arc<Self>,
        current: &mut Option<Arc<dyn Connection>>,
        cluster: Weak<Cluster>,
        session: SessionId,
        channel: String,
    ) -> Result<Result<bool, BackendError>, BackendError> {
        let connection = match current {
            Some(connection) if !connection.is_closed() => Arc::clone(connection),
            _ => {
                self.give_up(current);
                Arc::clone(current.insert(self.open(cluster).await?))
            }
        };
        // A message may arrive before the confirmation.
        let added = Channel {
            session,
            used: self.shared.now(),
            is_confirmed: false,
        };
        self.channels().insert(channel.clone(), added);
        let limit = self.shared.options.connect_timeout;
        let subscribing = connection.subscribe_shard(&channel);
        let failure = match self.shared.timeout(limit, subscribing).await {
            Some(Ok(())) => {
                let mut channels = self.channels();
                // If it has gone meanwhile, its slot has moved.
                let added = channels.get_mut(&channel);
                return Ok(Ok(added.map(|it| it.is_confirmed = true).is_some()));
            }
            Some(Err(failure)) => failure,
            None => Failure::lost("SSUBSCRIBE was not answered"),
        };
        self.channels().remove(&channel);
        let was_answered = matches!(failure.kind(), FailureKind::Answered(_));
        let error = failure.at_connect(self.shared.prefix());
        if was_answered {
            return Ok(Err(error));
        }
        self.give_up(current);
        Err(error)
    }

    /// Gives up the connection. All its channels are gone.
    fn give_up(&self, current: &mut Option<Arc<dyn Connection>>) {
        if current.take().is_some() {
            let channels = std::mem::take(&mut *self.channels());
            self.report_missed(channels.values());
        }
    }

    async fn open(
        self: &Arc<Self>,
        cluster: Weak<Cluster>,
    ) -> Result<Arc<dyn Connection>, BackendError> {
        let connected = self.shared.connect(true).await?;
        let this = Arc::clone(self);
        let reading = Arc::downgrade(&connected.connection);
        self.shared.handle.spawn(async move {
            this.read(&reading, connected.events, &cluster).await;
        });
        Ok(connected.connection)
    }

    /// Delivers messages until the connection ends or is not used any more.
    async fn read(
        &self,
        connection: &Weak<dyn Connection>,
        mut events: UnboundedReceiver<ConnectionEvent>,
        cluster: &Weak<Cluster>,
    ) {
        {
            let delivering = pin!(self.deliver_all(&mut events, cluster));
            let checking = pin!(self.keep_checking(connection));
            // Messages must not wait for a check, which may take a round trip for each idle channel.
            select(delivering, checking).await;
            // A check that goes on has locked the connection. It ends here.
        }
        let mut current = self.connection.lock().await;
        // If somebody else has given it up, another one may be there. The weak reference keeps the address, so
        // no other connection can have it.
        let is_it =
            |it: &Arc<dyn Connection>| std::ptr::addr_eq(Arc::as_ptr(it), connection.as_ptr());
        if current.as_ref().is_some_and(is_it) {
            self.give_up(&mut current);
        }
    }

    /// Checks the connection every [`CHECK_EVERY`], until it is dropped or must be given up.
    async fn keep_checking(&self, connection: &Weak<dyn Connection>) {
        loop {
            self.shared.runtime.sleep(CHECK_EVERY).await;
            match connection.upgrade() {
                Some(connection) if self.check(&*connection).await => {}
                _ => return,
            }
        }
    }

    /// Delivers messages until the connection ends, or the server has ended a subscription and the slots
    /// were read again.
    async fn deliver_all(
        &self,
        events: &mut UnboundedReceiver<ConnectionEvent>,
        cluster: &Weak<Cluster>,
    ) {
        if let Ended::Connection = self.deliver_until_ended(events).await {
            return;
        }
        // The slot has moved away. The others on this connection subscribe again too: a library may have
        // mistaken the server's word for an answer. Until the slots are read, their messages go on.
        let Some(cluster) = cluster.upgrade() else {
            return;
        };
        let mut reading = pin!(cluster.refresh_from(&self.node));
        loop {
            let delivering = pin!(self.deliver_until_ended(events));
            match select(reading.as_mut(), delivering).await {
                Either::Right((Ended::Subscription, _)) => {}
                Either::Right((Ended::Connection, reading)) => return reading.await,
                Either::Left(_) => return,
            }
        }
    }

    async fn deliver_until_ended(&self, events: &mut UnboundedReceiver<ConnectionEvent>) -> Ended {
        loop {
            match events.recv().await {
                Some(ConnectionEvent::ShardMessage { channel, payload }) => {
                    self.deliver(&channel, &payload);
                }
                Some(ConnectionEvent::Unsubscribed(channel))
                    if self.channels().contains_key(&channel) =>
                {
                    return Ended::Subscription;
                }
                Some(ConnectionEvent::Missed) => self.report_missed(self.channels().values()),
                Some(ConnectionEvent::Message(_) | ConnectionEvent::Unsubscribed(_)) => {}
                Some(ConnectionEvent::Closed) | None => return Ended::Connection,
            }
        }
    }

    /// Drops what is not used any more. Returns whether the connection is used, alive, and has all
    /// its subscriptions.
    async fn check(&self, connection: &dyn Connection) -> bool {
        // First: a dead connection must not be asked to end one channel after the other.
        if !self.has_all_subscriptions(connection).await {
            return false;
        }
        let now = self.shared.now();
        let is_idle = |channel: &Channel| now.saturating_since(channel.used) >= IDLE;
        self.unsubscribe(connection, is_idle).await;
        !self.channels().is_empty()
    }

    async fn has_all_subscriptions(&self, connection: &dyn Connection) -> bool {
        // Locked, so that no subscription is added meanwhile.
        let _current = self.connection.lock().await;
        let limit = self.shared.options.call_timeout;
        let channels: Vec<String> = self.channels().keys().cloned().collect();
        let checking = connection.check_subscriptions(&channels);
        let checked = self.shared.timeout(limit, checking).await;
        checked.is_some_and(|it| it.is_ok())
    }

    pub(crate) async fn end(&self, session: SessionId) {
        let current = self.connection.lock().await.clone();
        if let Some(connection) = current {
            let is_its = |channel: &Channel| channel.session == session;
            self.unsubscribe(&*connection, is_its).await;
        }
    }

    /// Unsubscribes from channels, one after the other, because a library may mistake the answers of two. A new
    /// subscription needs to wait for one of them only.
    async fn unsubscribe(&self, connection: &dyn Connection, ends: impl Fn(&Channel) -> bool) {
        let limit = self.shared.options.call_timeout;
        loop {
            // A subscription to the same channel comes before this or after it.
            let current = self.connection.lock().await;
            let is_it = |it: &dyn Connection| std::ptr::addr_eq(it, connection);
            if !current.as_deref().is_some_and(is_it) {
                return;
            }
            let ended = self.channels().extract_if(|_, it| ends(it)).next();
            let Some((channel, _)) = ended else {
                return;
            };
            // If this fails, the connection has ended, or the server has dropped the channel.
            let leaving = connection.unsubscribe_shard(&channel);
            if self.shared.timeout(limit, leaving).await.is_none() {
                return; // The next check of the connection gives it up.
            }
        }
    }

    /// Forgets the subscriptions to slots that the node has lost, or has got from its primary. The
    /// server has ended them, or this node gets no more messages.
    pub(crate) fn forget(&self, has_moved: impl Fn(u16) -> bool) {
        let mut channels = self.channels();
        let ended = channels.extract_if(|name, _| has_moved(slot_of(name.as_bytes())));
        let ended: Vec<Channel> = ended.map(|(_, channel)| channel).collect();
        drop(channels);
        self.report_missed(ended.iter());
    }

    pub(crate) async fn close(&self) {
        self.give_up(&mut *self.connection.lock().await);
    }

    fn deliver(&self, channel: &str, payload: &[u8]) {
        let session = self.channels().get(channel).map(|channel| channel.session);
        let Some(session) = session else {
            return;
        };
        for notification in told_by(payload) {
            self.streams.notify(session, notification);
        }
    }

    /// Each waiter of these sessions polls, and subscribes before that.
    fn report_missed<'a>(&self, channels: impl Iterator<Item = &'a Channel>) {
        let sessions: BTreeSet<SessionId> = channels.map(|channel| channel.session).collect();
        for session in sessions {
            self.streams.notify(session, MISSED);
        }
    }

    fn channels(&self) -> MutexGuard<'_, HashMap<String, Channel>> {
        lock(&self.channels)
    }
}

#[cfg(test)]
mod tests;
