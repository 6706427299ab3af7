//! A Redis Cluster: three primaries, each with a replica.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_test_servers::{RedisCluster, RedisServer, block_until};

use super::{Injection, Servers, outside, within};
use super::{cut_connections, cut_subscriptions, fill_memory, flush_scripts};
use crate::history::Assumption;
use crate::random::{Random, between};
use crate::workload::KEYS;

const PRIMARIES: usize = 3;
/// Shorter than the node timeout of the test servers, 1 s.
const SHORT: Duration = Duration::from_millis(500);
/// A node at a distance is not killed: it forgets the address that it tells clients.
pub(crate) const NOT_AT_A_DISTANCE: &str = "kill primary";
/// The latency of a distant cluster.
pub(crate) const LATENCY: Duration = Duration::from_millis(40);

const FAULTS: &[Injection<Cluster>] = &[
    // The primary hands over all that it has written.
    (within("graceful failover").delays(), |it, random| {
        let primary = it.primary(random);
        it.all.fail_over_to(it.all.replica_of(primary));
        it.has_promoted();
    }),
    (within("move slot").delays(), |it, random| {
        let key = it.key(random);
        let from = it.all.primary_of(&key);
        let mut others = it.primaries();
        others.retain(|node| *node != from);
        let to = others[random.usize(..others.len())];
        it.all.begin_migration(&key, to);
        std::thread::sleep(between(random, Duration::ZERO, SHORT));
        it.all.move_key(&key, to);
        std::thread::sleep(between(random, Duration::ZERO, SHORT));
        it.all.end_migration(&key, to);
    }),
    // The last writes may not have reached the replica.
    (
        outside(NOT_AT_A_DISTANCE, Assumption::A1).delays(),
        |it, random| {
            let key = it.key(random);
            let primary = it.all.primary_of(&key);
            it.all.kill(primary);
            block_until("another primary", || it.all.find_primary_of(&key).is_some());
            it.all.start_again(primary);
            it.has_promoted();
        },
    ),
    (
        within("stop primary for a moment").delays(),
        |it, random| {
            let primary = &it.all.nodes()[it.primary(random)];
            primary.pause();
            std::thread::sleep(between(random, SHORT / 5, SHORT));
            primary.resume();
        },
    ),
    (within("flush scripts"), |it, _| {
        it.all.nodes().iter().for_each(flush_scripts);
    }),
    (within("cut subscriptions"), |it, _| {
        it.all.nodes().iter().for_each(cut_subscriptions);
    }),
    (within("cut connections"), |it, random| {
        cut_connections(&it.all.nodes()[it.primary(random)]);
    }),
    (within("fill memory"), |it, random| {
        fill_memory(&it.all.nodes()[it.primary(random)], random, SHORT);
    }),
];

pub(crate) struct Cluster {
    all: RedisCluster,
    /// Those that are primaries, as far as the nemesis knows.
    primaries: Vec<usize>,
}

impl Cluster {
    /// Starts a cluster whose messages from and to clients and replicas take this much longer, in each direction.
    pub(crate) fn start(latency: Duration) -> Self {
        let mut it = Self {
            all: RedisCluster::start_at_a_distance(latency),
            primaries: Vec::new(),
        };
        it.primaries = it.primaries();
        it
    }

    /// The name of a lock on the servers.
    fn key(&self, random: &mut Random) -> String {
        format!("leasehold:{{{}}}", KEYS[random.usize(..KEYS.len())])
    }

    /// The primary of one of the locks.
    fn primary(&self, random: &mut Random) -> usize {
        self.all.primary_of(&self.key(random))
    }

    fn info(&self, node: usize) -> String {
        self.all.nodes()[node].run(&["INFO", "replication"])
    }

    fn has_promoted(&mut self) {
        self.wait_until_in_sync();
        self.primaries = self.primaries();
    }

    fn primaries(&self) -> Vec<usize> {
        let is_primary = |node: &usize| self.info(*node).contains("role:master");
        (0..2 * PRIMARIES).filter(is_primary).collect()
    }

    /// Waits until each primary has a replica that follows it.
    fn wait_until_in_sync(&self) {
        self.all.wait_until_healthy();
        block_until("the replicas follow", || {
            let infos: Vec<String> = (0..2 * PRIMARIES).map(|node| self.info(node)).collect();
            let count = |text| infos.iter().filter(|info| info.contains(text)).count();
            count("role:master") == PRIMARIES && count("master_link_status:up") == PRIMARIES
        });
    }
}

impl Servers for Cluster {
    const FAULTS: &[Injection<Self>] = FAULTS;

    fn redis(&self) -> Vec<&RedisServer> {
        let primaries = self.primaries().into_iter();
        primaries.map(|node| &self.all.nodes()[node]).collect()
    }

    fn urls(&self, _: &[SocketAddr]) -> Vec<String> {
        vec![self.all.url()]
    }

    fn have_failed_over(&mut self) -> bool {
        let primaries = self.primaries();
        let before = std::mem::replace(&mut self.primaries, primaries);
        before != self.primaries || self.primaries.len() > PRIMARIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failover_that_no_fault_asked_for_is_noticed_until_it_is_over() {
        let (mut it, mut random) = (Cluster::start(Duration::ZERO), Random::with_seed(1));
        FAULTS[0].1(&mut it, &mut random);
        assert!(!it.have_failed_over(), "the fault has noted it");
        let primary = it.primary(&mut random);
        it.all.fail_over_to(it.all.replica_of(primary));
        assert!(it.have_failed_over());
        // It lasts until the old primary follows.
        block_until("three primaries again", || !it.have_failed_over());
    }
}
