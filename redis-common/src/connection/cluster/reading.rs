//! Reads the slots from the nodes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_api::BackendError;

use super::{Cluster, ClusterNode, SlotMap, TARGET};
use crate::connection::node::Lane;
use crate::connection::slots::{SLOTS, SlotRange};
use crate::connection::url::Address;

/// How long a reading of the slots waits for a node before it asks the next one too. A silent node
/// must not cost its whole time limit.
const HEAD_START: Duration = Duration::from_millis(100);
/// The shortest time between two readings of the slots after failed calls.
pub(super) const FAILED_PAUSE: Duration = Duration::from_millis(100);
/// The shortest time between two readings of the slots after redirects. While slots migrate, each
/// of them causes a redirect.
pub(super) const MOVED_PAUSE: Duration = Duration::from_secs(1);
/// The time limit of a reading that no call waits for.
const BACKGROUND_LIMIT: Duration = Duration::from_secs(5);

/// Which node is asked for the slots first or last.
pub(super) enum Order {
    /// It knows best: it has just lost or got slots.
    First(Arc<ClusterNode>),
    Last(Arc<ClusterNode>),
    Any,
}

/// Whether a node has shard channels, and the slots that it knows.
type Slots = Result<(bool, Vec<SlotRange>), BackendError>;

impl Cluster {
    /// Reads the slots from a node that has just lost some of them, because it knows who has them.
    pub(in crate::connection) async fn refresh_from(&self, address: &Address) {
        // If it isn't known any more, the slots were read meanwhile.
        let Some(node) = self.map().nodes.get(address).cloned() else {
            return;
        };
        let reading = self.refresh(Lane::Commands, Duration::ZERO, Order::First(node));
        self.shared.timeout(BACKGROUND_LIMIT, reading).await;
    }

    pub(super) fn refresh_soon(self: &Arc<Self>, lane: Lane, pause: Duration, order: Order) {
        let this = Arc::clone(self);
        let connection = self.seeds[0].node.connection(lane);
        connection.shared().handle.spawn(async move {
            let reading = this.refresh(lane, pause, order);
            this.shared.timeout(BACKGROUND_LIMIT, reading).await;
        });
    }

    /// Reads the slots from the first node that answers, unless another reading began within `pause`, or
    /// while this caller waited. One that began before may have seen the slots as they were then.
    pub(super) async fn refresh(&self, lane: Lane, pause: Duration, order: Order) {
        let began = self.shared.now();
        let mut read = self.gates[lane as usize].lock().await;
        if read.is_some_and(|read| read >= began || began.saturating_since(read) < pause) {
            return;
        }
        let begins = self.shared.now();
        let nodes = self.candidates(&order);
        let mut asking = self.ask_in_turn(&nodes, lane);
        while let Some((node, answer)) = asking.next().await {
            if answer.is_ok_and(|(_, ranges)| self.install(&node.address, &ranges).is_ok()) {
                break;
            }
        }
        *read = Some(begins);
    }

    /// Asks nodes for the slots, each [`HEAD_START`] after the one before.
    pub(super) fn ask_in_turn<'a>(
        &'a self,
        nodes: &'a [Arc<ClusterNode>],
        lane: Lane,
    ) -> FuturesUnordered<impl Future<Output = (&'a ClusterNode, Slots)>> {
        let ask = |(place, node): (u32, &'a Arc<ClusterNode>)| {
            let turn = self.shared.runtime.timer(HEAD_START * place);
            async move {
                turn.await;
                (&**node, self.read_slots(node, lane).await)
            }
        };
        (0..).zip(nodes).map(ask).collect()
    }

    /// All known nodes, and the others of the URL behind them.
    pub(super) fn candidates(&self, order: &Order) -> Vec<Arc<ClusterNode>> {
        let known = self.map().nodes.clone();
        let others = self.seeds.iter();
        let others = others.filter(|seed| !known.contains_key(&seed.address));
        let mut nodes: Vec<_> = known.values().chain(others).cloned().collect();
        nodes.sort_by_key(|node| match order {
            Order::First(first) => first.address != node.address,
            Order::Last(last) => last.address == node.address,
            Order::Any => false,
        });
        nodes
    }

    async fn read_slots(&self, node: &ClusterNode, lane: Lane) -> Slots {
        let connection = node.node.connection(lane);
        connection.warm_up().await?;
        let limit = self.shared.options.connect_timeout;
        let unavailable = |problem: &str| Err(BackendError::unavailable(problem));
        let answer = match self.shared.timeout(limit, connection.slots()).await {
            Some(Ok((_, ranges))) if ranges.is_empty() => {
                unavailable("the node knows no node that has slots")
            }
            Some(answer) => answer,
            None => unavailable("CLUSTER SLOTS was not answered"),
        };
        answer.map_err(|error| connection.shared().with_address(error))
    }

    /// Replaces the slots by those that a node has told. Nodes without slots are forgotten.
    pub(super) fn install(
        &self,
        asked: &Address,
        ranges: &[SlotRange],
    ) -> Result<(), BackendError> {
        let mut told = Vec::with_capacity(ranges.len());
        for range in ranges {
            let address = Address::told(&range.host, range.port, asked);
            told.push((range, self.node_at(address)?));
        }
        let candidates = self.candidates(&Order::Any);
        let mut map = self.map();
        if self.closed.load(Ordering::Acquire) {
            return Err(BackendError::Closed);
        }
        let mut primaries: Vec<_> = (0..SLOTS).map(|_| None).collect();
        for (range, node) in told {
            let node = map.keep(node);
            for slot in range.first..=range.last.min(SLOTS - 1) {
                primaries[usize::from(slot)] = Some(Arc::clone(&node));
            }
        }
        let before = std::mem::replace(&mut map.primaries, primaries);
        let SlotMap { nodes, primaries } = &mut *map;
        let pointer = |node: &Option<Arc<ClusterNode>>| node.as_ref().map(Arc::as_ptr);
        let slots = before.iter().zip(&*primaries);
        let moved = slots.map(|(before, now)| before.is_some() && pointer(before) != pointer(now));
        let moved: Vec<bool> = moved.collect();
        nodes.retain(|_, node| {
            let mut primaries = primaries.iter().flatten();
            primaries.any(|primary| Arc::ptr_eq(primary, node))
        });
        let unused = |seed: &&Arc<ClusterNode>| !nodes.contains_key(&seed.address);
        self.seeds
            .iter()
            .filter(unused)
            .for_each(|seed| seed.node.disconnect());
        let primaries = nodes.len();
        drop(map);
        tracing::debug!(target: TARGET, node = %asked, primaries, "slots read");
        if moved.contains(&true) {
            for node in candidates {
                node.subscriber.forget(|slot| moved[usize::from(slot)]);
            }
        }
        Ok(())
    }
}
