//! A Redis Cluster: each call goes to the node that has the slot of its key.
//!
//! The client libraries have clustered clients too. They repeat a script by themselves, don't say
//! which node has answered, and hide the end of a connection. Here, each node has the same
//! connections as a single server.
//!
//! - The slots are read from any node that answers: when the backend is created, after a redirect,
//!   and after a call that failed or was given up without an answer. One caller reads them while
//!   others wait. They are read over the connection that calls use.
//! - `MOVED` and `ASK` are followed at once. The node that sent them has not executed the call.
//! - If a call certainly was not executed, because its node can't be reached or doesn't serve the
//!   slot, the slots are read again. If the slot has moved, the call goes to its new node. Else the
//!   caller gets the error.
//! - An unknown outcome is never repeated here.

mod reading;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::ready;
use futures_util::stream::{StreamExt, once, select};
use leasehold_api::{BackendError, ClockId, ConnectError, Moment, Notifications, SessionId, Stamp};
use tokio::sync::watch;

use super::lock;
use super::managed::{CallError, ScriptReply};
use super::node::{Lane, Node};
use super::server::{UNKNOWN, clock_named};
use super::shard::{Streams, Subscriber};
use super::shared::Shared;
use super::slots::{Redirect, SLOTS, slot_of};
use super::subscription::{Publishers, listen};
use super::url::{Address, ServerUrl};
use crate::script::Call;
use reading::{FAILED_PAUSE, MOVED_PAUSE, Order};

const TARGET: &str = "leasehold";
/// How many redirects one call follows. More are a loop.
const MAX_REDIRECTS: usize = 5;

pub(crate) struct Cluster {
    /// How to connect to a node, except for its address.
    url: ServerUrl,
    /// What the nodes share with the connection to the first node of the URL.
    shared: Arc<Shared>,
    /// The nodes of the URL, at least one. They are asked for the slots if no other node answers.
    seeds: Vec<Arc<ClusterNode>>,
    map: Mutex<SlotMap>,
    streams: Arc<Streams>,
    has_shard_channels: AtomicBool,
    /// When the last reading of the slots began, for each of the two [lanes](Lane). Locked while they are read. A runtime
    /// that is blocked must not keep renewals waiting.
    gates: [tokio::sync::Mutex<Option<Moment>>; 2],
    closed: AtomicBool,
    /// Counts the subscriptions to revocations, so that they spread over the nodes.
    listened: AtomicUsize,
}

pub(crate) struct ClusterNode {
    pub(crate) address: Address,
    pub(crate) node: Node,
    subscriber: Arc<Subscriber>,
}

struct SlotMap {
    nodes: HashMap<Address, Arc<ClusterNode>>,
    primaries: Vec<Option<Arc<ClusterNode>>>,
}

impl SlotMap {
    /// Adds a node, which another reading of the slots may have dropped meanwhile. Every primary must be one of the nodes.
    /// Returns the one that the map has at this address.
    fn keep(&mut self, node: Arc<ClusterNode>) -> Arc<ClusterNode> {
        Arc::clone(self.nodes.entry(node.address.clone()).or_insert(node))
    }
}

impl Cluster {
    /// Creates a cluster whose slots are not known yet. `shared` connects to the first node of the
    /// URL.
    pub(crate) fn new(
        url: &ServerUrl,
        nodes: &[Address],
        shared: Arc<Shared>,
    ) -> Result<Arc<Self>, ConnectError> {
        let streams = Arc::default();
        let seeds = nodes.iter().cloned();
        let seeds = seeds.map(|address| new_node(url, &shared, &streams, address));
        let seeds = seeds.collect::<Result<_, _>>()?;
        let map = SlotMap {
            nodes: HashMap::new(),
            primaries: (0..SLOTS).map(|_| None).collect(),
        };
        Ok(Arc::new(Self {
            url: url.clone(),
            shared,
            seeds,
            map: Mutex::new(map),
            streams,
            has_shard_channels: AtomicBool::default(),
            gates: Default::default(),
            closed: AtomicBool::default(),
            listened: AtomicUsize::default(),
        }))
    }

    /// Reads the slots for the first time, from the first node of the URL that answers.
    ///
    /// # Errors
    /// The error of a node that refuses this client, or else the last error.
    pub(crate) async fn connect(&self) -> Result<(), BackendError> {
        let mut asking = self.ask_in_turn(&self.seeds, Lane::Commands);
        let mut last = BackendError::unavailable("the URL names no node");
        while let Some((seed, answer)) = asking.next().await {
            match answer {
                Ok((has_shard_channels, ranges)) => {
                    let has = &self.has_shard_channels;
                    has.store(has_shard_channels, Ordering::Relaxed);
                    return self.install(&seed.address, &ranges);
                }
                Err(error) if error.is_transient() => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// How long it takes until [`connect`](Self::connect) may ask a node again.
    pub(crate) fn pause_left(&self) -> Duration {
        let seeds = self.seeds.iter().map(|seed| seed.node.commands.shared());
        let pauses = seeds.map(|shared| shared.pace.pause_left(shared.now()));
        pauses.min().unwrap_or_default()
    }

    /// Runs a script with one key on the node of the key, for at most the call timeout.
    pub(crate) async fn script(
        self: &Arc<Self>,
        lane: Lane,
        call: &Call,
    ) -> Result<ScriptReply, BackendError> {
        let limit = self.shared.options.call_timeout;
        let answer = self.shared.timeout(limit, self.route(lane, call)).await;
        answer.unwrap_or_else(|| Err(BackendError::outcome_unknown("no answer in time")))
    }

    async fn route(self: &Arc<Self>, lane: Lane, call: &Call) -> Result<ScriptReply, BackendError> {
        let slot = call.keys().next().map_or(0, slot_of);
        let mut to = self.node_of(slot, lane).await?;
        let (mut over, mut asking, mut read_again) = (lane, false, false);
        for _ in 0..MAX_REDIRECTS {
            let error = match self.ask(&to, over, call, asking).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            match redirect(&error, &to.address) {
                Some(Redirect::Moved(address)) => {
                    tracing::debug!(target: TARGET, slot, node = %address, "slot moved");
                    to = self.moved(slot, address)?;
                    asking = false;
                    self.refresh_soon(lane, MOVED_PAUSE, Order::First(Arc::clone(&to)));
                    continue;
                }
                Some(Redirect::Ask(address)) => {
                    tracing::debug!(target: TARGET, slot, node = %address, "slot moving");
                    to = self.node_at(address)?;
                    asking = true;
                    continue;
                }
                None => {}
            }
            let error = error.in_call(self.shared.prefix());
            if !matches!(error, BackendError::Unavailable { .. }) {
                if error.is_transient() {
                    self.refresh_soon(lane, FAILED_PAUSE, Order::Last(to));
                }
                return Err(error);
            }
            // The server or a proxy may allow only one connection. Then it is that for commands.
            if over == Lane::Renewals && to.node.renews_independently() {
                over = Lane::Commands;
                continue;
            }
            match self.moved_from(&to, slot, lane).await {
                Some(primary) if !std::mem::replace(&mut read_again, true) => to = primary,
                _ => return Err(error),
            }
            (over, asking) = (lane, false);
        }
        Err(BackendError::unavailable(
            "the nodes of the cluster disagree about a slot",
        ))
    }

    async fn ask(
        self: &Arc<Self>,
        to: &Arc<ClusterNode>,
        over: Lane,
        call: &Call,
        asking: bool,
    ) -> Result<ScriptReply, CallError> {
        let mut unanswered = Unanswered {
            cluster: self,
            node: Some(to),
            lane: over,
            sent: self.shared.now(),
        };
        let answer = to.node.connection(over).attempt(call, asking).await;
        unanswered.node = None;
        answer
    }

    pub(crate) fn clock(&self, key: &[u8]) -> ClockId {
        let primary = self.primary(slot_of(key));
        let clock = primary.and_then(|primary| primary.node.commands.clock());
        clock.unwrap_or(UNKNOWN)
    }

    pub(crate) async fn read_clock(self: &Arc<Self>, key: &[u8]) -> Result<Stamp, BackendError> {
        let slot = slot_of(key);
        let primary = self.node_of(slot, Lane::Commands).await?;
        let error = match primary.node.commands.time().await {
            Err(error) if error.is_transient() => error,
            result => return result,
        };
        match self.moved_from(&primary, slot, Lane::Commands).await {
            Some(moved) => moved.node.commands.time().await,
            None => Err(error),
        }
    }

    /// Reads the slots after a node has failed. Returns the one that has the slot now, if it is another one.
    async fn moved_from(
        &self,
        failed: &Arc<ClusterNode>,
        slot: u16,
        lane: Lane,
    ) -> Option<Arc<ClusterNode>> {
        let order = Order::Last(Arc::clone(failed));
        self.refresh(lane, FAILED_PAUSE, order).await;
        self.primary(slot).filter(|it| !Arc::ptr_eq(it, failed))
    }

    /// Runs a script without keys on the first primary, in the order of their addresses, that `wanted`
    /// accepts. Returns the address too, and the answer; `None` if there is none.
    pub(crate) async fn script_on(
        self: &Arc<Self>,
        call: &Call,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Option<(String, ScriptReply)>, BackendError> {
        // Reads the slots if none are known yet.
        self.node_of(0, Lane::Commands).await?;
        let primaries = self.map().primaries.clone();
        let by_address = primaries.into_iter().flatten();
        let by_address = by_address.map(|node| (node.address.to_string(), node));
        let by_address: BTreeMap<String, _> = by_address.collect();
        let found = by_address.into_iter().find(|(address, _)| wanted(address));
        let Some((address, node)) = found else {
            return Ok(None);
        };
        match self.ask(&node, Lane::Commands, call, false).await {
            Ok(answer) => Ok(Some((address, answer))),
            Err(error) => {
                let failed = Order::Last(node);
                self.refresh(Lane::Commands, FAILED_PAUSE, failed).await;
                Err(error.in_call(self.shared.prefix()))
            }
        }
    }

    /// Reads the clock of the node with the first slot, or of any other node if that one fails.
    pub(crate) async fn time(&self) -> Result<Stamp, BackendError> {
        let mut last = BackendError::unavailable("no node of the cluster is known");
        let first = self.primary(0);
        for node in first.into_iter().chain(self.candidates(&Order::Any)) {
            match node.node.commands.time().await {
                Err(error) if error.is_transient() => last = error,
                result => return result,
            }
        }
        Err(last)
    }

    /// The node that has the slot of a Redis key, as far as known.
    pub(crate) fn node_of_key(&self, key: &[u8]) -> Option<Arc<ClusterNode>> {
        self.primary(slot_of(key))
    }

    /// Whether the servers have shard channels. Known after [`connect`](Self::connect).
    pub(crate) fn has_shard_channels(&self) -> bool {
        self.has_shard_channels.load(Ordering::Relaxed)
    }

    /// Opens a stream for the notifications of a session. `channel` is the session's channel for
    /// revocations, which any node delivers.
    pub(crate) async fn listen(
        self: &Arc<Self>,
        session: SessionId,
        channel: String,
        closed: watch::Receiver<bool>,
    ) -> Result<Notifications, BackendError> {
        let nodes: Arc<dyn Publishers> = Arc::<Self>::clone(self);
        let revocations = listen(nodes, channel, closed.clone()).await?;
        let this = Arc::downgrade(self);
        let ended = move || {
            let Some(this) = this.upgrade() else { return };
            for node in this.candidates(&Order::Any) {
                let ending = async move { node.subscriber.end(session).await };
                this.shared.handle.spawn(ending);
            }
        };
        let handle = &self.shared.handle;
        let grants = self.streams.open(session, handle, closed, ended);
        // If a server refuses to subscribe again, the whole stream ends, and the client listens anew.
        let revocations = revocations.map(Some).chain(once(ready(None)));
        let both = select(revocations, grants.map(Some));
        Ok(Box::pin(
            both.scan((), |(), notification| ready(notification)),
        ))
    }

    /// Whether a request of a session may say that it listens: if it is subscribed to the channel at
    /// the node of the Redis key. A session without a stream here speaks for itself.
    pub(crate) fn listens(&self, session: SessionId, key: &[u8], channel: &str) -> bool {
        let is_subscribed = |primary: Arc<ClusterNode>| primary.subscriber.is_subscribed(channel);
        !self.streams.has(session) || self.node_of_key(key).is_some_and(is_subscribed)
    }

    /// Subscribes a session to a channel at the node of the Redis key, within `limit`. Returns
    /// whether it is subscribed.
    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        session: SessionId,
        key: &[u8],
        channel: String,
        limit: Duration,
    ) -> bool {
        let Some(primary) = self.node_of_key(key) else {
            return false;
        };
        let subscribing = primary.subscriber.subscribe(self, session, channel);
        match self.shared.timeout(limit, subscribing).await {
            Some(Ok(is_subscribed)) => is_subscribed,
            _ => {
                // The slot may have moved.
                self.refresh_soon(Lane::Commands, MOVED_PAUSE, Order::Any);
                false
            }
        }
    }

    /// Closes the connections to all nodes. Later calls fail.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for node in self.candidates(&Order::Any) {
            node.node.close();
            let closing = async move { node.subscriber.close().await };
            self.shared.handle.spawn(closing);
        }
    }

    fn primary(&self, slot: u16) -> Option<Arc<ClusterNode>> {
        self.map().primaries[usize::from(slot)].clone()
    }

    async fn node_of(
        self: &Arc<Self>,
        slot: u16,
        lane: Lane,
    ) -> Result<Arc<ClusterNode>, BackendError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(BackendError::Closed);
        }
        if let Some(primary) = self.primary(slot) {
            return Ok(primary);
        }
        self.refresh(lane, FAILED_PAUSE, Order::Any).await;
        self.primary(slot)
            .ok_or_else(|| BackendError::unavailable("no node of the cluster has the key's slot"))
    }

    fn node_at(&self, address: Address) -> Result<Arc<ClusterNode>, BackendError> {
        let mut map = self.map();
        if self.closed.load(Ordering::Acquire) {
            return Err(BackendError::Closed);
        }
        if let Some(node) = map.nodes.get(&address) {
            return Ok(Arc::clone(node));
        }
        let node = match self.seeds.iter().find(|seed| seed.address == address) {
            Some(seed) => Arc::clone(seed),
            None => new_node(&self.url, &self.shared, &self.streams, address.clone())
                .map_err(|error| BackendError::rejected(format!("{address}: {error}")))?,
        };
        map.nodes.insert(address, Arc::clone(&node));
        Ok(node)
    }

    fn moved(&self, slot: u16, address: Address) -> Result<Arc<ClusterNode>, BackendError> {
        let node = self.node_at(address)?;
        let mut map = self.map();
        let node = map.keep(node);
        let before = map.primaries[usize::from(slot)].replace(Arc::clone(&node));
        drop(map);
        if let Some(before) = before.filter(|before| !Arc::ptr_eq(before, &node)) {
            // After a failover, the other slots have moved too. One report is enough for all.
            before.subscriber.forget(|_| true);
            node.subscriber.forget(|other| other == slot);
        }
        Ok(node)
    }

    /// The nodes that are known: the primaries, and any that a redirect has just named. Before the slots were read, the
    /// nodes of the URL.
    fn listeners(&self) -> Vec<Arc<ClusterNode>> {
        let known: Vec<_> = self.map().nodes.values().cloned().collect();
        if known.is_empty() {
            return self.seeds.clone();
        }
        known
    }

    /// Whether this is the subscriber of a node that is known to be in the cluster, and this is open.
    pub(super) fn has_subscriber(&self, of: &Address, subscriber: &Arc<Subscriber>) -> bool {
        let map = self.map();
        let node = map
            .nodes
            .get(of)
            .filter(|_| !self.closed.load(Ordering::Acquire));
        node.is_some_and(|node| Arc::ptr_eq(&node.subscriber, subscriber))
    }

    fn map(&self) -> MutexGuard<'_, SlotMap> {
        lock(&self.map)
    }
}

/// Revocations are published at all nodes of the cluster.
impl Publishers for Cluster {
    /// A node that fails is not the next one again, also if the client listens anew.
    fn pick(&self) -> Arc<Shared> {
        let nodes = self.listeners();
        let turn = self.listened.fetch_add(1, Ordering::Relaxed);
        let node = &nodes[turn % nodes.len()].node;
        Arc::clone(node.commands.shared())
    }

    fn has(&self, server: &Arc<Shared>) -> bool {
        let is_it = |node: &Arc<ClusterNode>| Arc::ptr_eq(node.node.commands.shared(), server);
        self.listeners().iter().any(is_it)
    }
}

/// A call without an answer so far. If its caller gives it up after a silence, the slots are read
/// again: a replica may have taken over from a node whose connections never end.
struct Unanswered<'a> {
    cluster: &'a Arc<Cluster>,
    /// The node, until it answers.
    node: Option<&'a Arc<ClusterNode>>,
    lane: Lane,
    sent: Moment,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let Some(node) = self.node else { return };
        let shared = &self.cluster.shared;
        if shared.now().saturating_since(self.sent) >= shared.silence() {
            let failed = Order::Last(Arc::clone(node));
            self.cluster.refresh_soon(self.lane, FAILED_PAUSE, failed);
        }
    }
}

/// Creates a node. It opens no connection.
fn new_node(
    url: &ServerUrl,
    shared: &Shared,
    streams: &Arc<Streams>,
    address: Address,
) -> Result<Arc<ClusterNode>, ConnectError> {
    let url = ServerUrl {
        address: address.clone(),
        cluster: None,
        ..url.clone()
    };
    let connector = shared.connector.at(&url)?;
    let unnamed_clock = clock_named(&address.to_string());
    let shared = Arc::new(shared.for_node(connector, unnamed_clock));
    Ok(Arc::new(ClusterNode {
        node: Node::new(&shared),
        subscriber: Subscriber::new(address.clone(), shared, Arc::clone(streams)),
        address,
    }))
}

fn redirect(error: &CallError, asked: &Address) -> Option<Redirect> {
    match error {
        CallError::NotSent(_) => None,
        CallError::Failed(failure) => Redirect::parse(&failure.to_string(), asked),
    }
}

#[cfg(test)]
mod tests;
