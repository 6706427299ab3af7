//! A Redis Cluster for one test.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::latency;
use crate::process::CHANGE_WITHIN;
use crate::server::{RedisServer, ServerOptions};
use crate::thread_proxy::ThreadProxy;
use crate::waiting::block_until;

const PRIMARIES: usize = 3;
const SLOTS: usize = 16_384;
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(6);

/// Three primaries, and a replica of each unless the options say otherwise.
///
/// Dropping this value kills the nodes.
#[derive(Debug)]
#[must_use]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
    /// In front of each node, if the nodes are at a distance.
    lines: Vec<ThreadProxy>,
}

/// What a node says about itself in `CLUSTER NODES`.
struct Myself {
    id: String,
    is_primary: bool,
    /// The primary of a replica.
    primary: String,
    ranges: Vec<(usize, usize)>,
}

impl RedisCluster {
    /// Starts three primaries, each with a replica.
    pub fn start() -> Self {
        Self::start_with(2 * PRIMARIES, |_| ServerOptions::default())
    }

    /// Starts three primaries without replicas.
    pub fn start_without_replicas() -> Self {
        Self::start_with(PRIMARIES, |_| ServerOptions::default())
    }

    /// Starts `count` nodes with these options. The first three are the primaries, the others
    /// their replicas in turn. With TLS, the nodes use it among each other too, so they need an
    /// authority for clients.
    pub fn start_with(count: usize, options: impl Fn(usize) -> ServerOptions) -> Self {
        assert!(count >= PRIMARIES, "a cluster has at least three primaries");
        let starting: Vec<_> = (0..count)
            .map(|node| {
                let mut options = options(node).with_cluster().with_tls_between_servers();
                if options.has_tls() {
                    options = options.with_config("tls-cluster", ["yes"]);
                }
                std::thread::spawn(move || options.start())
            })
            .collect();
        let nodes = starting
            .into_iter()
            .map(|node| node.join().expect("the node starts"))
            .collect();
        let cluster = Self {
            nodes,
            lines: Vec::new(),
        };
        cluster.form();
        cluster
    }

    /// Starts three primaries, each with a replica, whose messages from and to clients and replicas
    /// take this much longer in each direction. Those among the nodes of the cluster don't.
    pub fn start_at_a_distance(latency: Duration) -> Self {
        let mut cluster = Self::start();
        if latency.is_zero() {
            return cluster;
        }
        let lines = cluster.nodes.iter();
        cluster.lines = lines
            .map(|node| latency::at_a_distance(node.address(), latency))
            .collect();
        let lines: Vec<_> = cluster.lines.iter().map(ThreadProxy::address).collect();
        cluster.announce(&lines);
        cluster.wait_until_replicas_follow();
        cluster
    }

    /// Makes the nodes tell clients these addresses instead of their own, in the same order. Only the ports
    /// count: all of them are on 127.0.0.1.
    pub fn announce(&self, addresses: &[SocketAddr]) {
        let mut announced = Vec::new();
        for (node, address) in self.nodes.iter().zip(addresses) {
            let port = address.port();
            node.run(&["CONFIG", "SET", "cluster-announce-port", &port.to_string()]);
            announced.push(format!(":{port}@"));
        }
        self.wait_until("the nodes know the ports for clients", |node| {
            let nodes = node.run(&["CLUSTER", "NODES"]);
            announced.iter().all(|port| nodes.contains(port))
        });
    }

    /// Makes a cluster of the nodes.
    fn form(&self) {
        let share = SLOTS.div_ceil(PRIMARIES);
        for (number, node) in self.nodes.iter().enumerate() {
            node.run(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
            if number < PRIMARIES {
                let slots: Vec<String> = (number * share..((number + 1) * share).min(SLOTS))
                    .map(|slot| slot.to_string())
                    .collect();
                let mut command = vec!["CLUSTER", "ADDSLOTS"];
                command.extend(slots.iter().map(String::as_str));
                node.run(&command);
            }
            for other in &self.nodes[..number] {
                let (port, bus) = (other.peer_port().to_string(), other.bus_port().to_string());
                node.run(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
            }
        }
        let known = format!("cluster_known_nodes:{}\r", self.nodes.len());
        self.wait_until("the nodes know each other", |node| {
            let nodes = node.run(&["CLUSTER", "NODES"]);
            node.run(&["CLUSTER", "INFO"]).contains(&known) && !nodes.contains("handshake")
        });
        for (number, replica) in self.nodes.iter().enumerate().skip(PRIMARIES) {
            let primary = self.nodes[number % PRIMARIES].myself().id;
            replica.run(&["CLUSTER", "REPLICATE", &primary]);
        }
        self.wait_until_healthy();
        self.wait_until_replicas_follow();
    }

    fn wait_until_replicas_follow(&self) {
        let replicas = self.nodes.len() - PRIMARIES;
        self.wait_until("the replicas follow", |node| {
            let nodes = node.run(&["CLUSTER", "NODES"]);
            let info = node.run(&["INFO", "replication"]);
            nodes.matches("slave").count() == replicas
                && (info.contains("role:master") || info.contains("master_link_status:up"))
        });
    }

    /// Waits until every running node considers the cluster usable.
    pub fn wait_until_healthy(&self) {
        self.wait_until("the cluster is usable", |node| {
            node.run(&["CLUSTER", "INFO"])
                .contains("cluster_state:ok\r")
        });
    }

    fn wait_until(&self, what: &str, check: impl Fn(&RedisServer) -> bool) {
        block_until(what, || self.running().all(|(_, node)| check(node)));
    }

    fn running(&self) -> impl Iterator<Item = (usize, &RedisServer)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(|(_, node)| node.is_running())
    }

    /// The URL of the cluster. It names all nodes.
    pub fn url(&self) -> String {
        if self.lines.is_empty() {
            let nodes = self.nodes.iter().map(RedisServer::address);
            return Self::url_of("redis-cluster", nodes);
        }
        let lines = self.lines.iter().map(ThreadProxy::address);
        Self::url_of("redis-cluster", lines)
    }

    /// The URL of the ports with TLS, `rediss-cluster://127.0.0.1:PORT?…`.
    pub fn tls_url(&self) -> String {
        let addresses = self.nodes.iter().map(RedisServer::peer_address);
        Self::url_of("rediss-cluster", addresses)
    }

    /// The URL of a cluster whose nodes clients reach at these addresses.
    pub fn url_at(addresses: &[SocketAddr]) -> String {
        Self::url_of("redis-cluster", addresses.iter().copied())
    }

    fn url_of(scheme: &str, addresses: impl Iterator<Item = SocketAddr>) -> String {
        let addresses: Vec<String> = addresses.map(|it| it.to_string()).collect();
        let (first, nodes) = (&addresses[0], addresses[1..].join("&node="));
        format!("{scheme}://{first}?node={nodes}")
    }

    /// The nodes. The first three were the primaries at the start.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Kills a node with `SIGKILL`.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
    }

    /// Starts a killed node on the same address. It rejoins the cluster.
    pub fn start_again(&mut self, node: usize) {
        self.nodes[node].start_again();
    }

    /// The number of the node that is the primary of a Redis key.
    pub fn primary_of(&self, key: &str) -> usize {
        self.find_primary_of(key)
            .expect("a running primary of the slot")
    }

    /// The number of the running node that is the primary of a Redis key, if there is one.
    pub fn find_primary_of(&self, key: &str) -> Option<usize> {
        let slot = self.slot_of(key);
        let mut owners = self.running().filter(|(_, node)| {
            let myself = node.myself();
            let mut ranges = myself.ranges.iter();
            myself.is_primary && ranges.any(|(first, last)| (*first..=*last).contains(&slot))
        });
        owners.next().map(|(number, _)| number)
    }

    /// The number of the running node that is a replica of this primary.
    pub fn replica_of(&self, primary: usize) -> usize {
        let id = self.nodes[primary].myself().id;
        let mut replicas = self.running();
        let found = replicas.find(|(_, node)| node.myself().primary == id);
        found.expect("a running replica").0
    }

    fn slot_of(&self, key: &str) -> usize {
        let (_, node) = self.running().next().expect("a running node");
        let slot = node.run(&["CLUSTER", "KEYSLOT", key]);
        slot.parse().expect("a slot")
    }

    /// Moves the slot of a Redis key, which has no other keys, to another primary.
    pub fn migrate(&self, key: &str, to: usize) {
        self.begin_migration(key, to);
        self.move_key(key, to);
        self.end_migration(key, to);
    }

    /// Starts to move the slot of a Redis key to another primary. Until
    /// [`end_migration`](Self::end_migration), keys may be on either node.
    pub fn begin_migration(&self, key: &str, to: usize) {
        let slot = self.slot_of(key).to_string();
        let (from, to) = (&self.nodes[self.primary_of(key)], &self.nodes[to]);
        let (from_id, to_id) = (from.myself().id, to.myself().id);
        to.run(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        from.run(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    }

    /// Moves one key to the node that imports its slot.
    pub fn move_key(&self, key: &str, to: usize) {
        let port = self.nodes[to].peer_port().to_string();
        let from = &self.nodes[self.primary_of(key)];
        from.run(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    }

    /// Ends a migration: the slot of the key belongs to the other node.
    pub fn end_migration(&self, key: &str, to: usize) {
        let slot = self.slot_of(key).to_string();
        let from = self.primary_of(key);
        let id = self.nodes[to].myself().id;
        for node in [to, from] {
            self.nodes[node].run(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
    }

    /// Makes a replica the primary, with the consent of the old one. Waits until it is.
    pub fn fail_over_to(&self, replica: usize) {
        let node = &self.nodes[replica];
        let mut asked: Option<Instant> = None;
        block_until("the replica is the primary", || {
            let is_primary = node.myself().is_primary;
            // A replica gives up after 5 s, for example if its primary was busy.
            if !is_primary && asked.is_none_or(|at| at.elapsed() > ASK_AGAIN_AFTER) {
                asked = Some(Instant::now());
                // It refuses if it has just become the primary.
                let _ = node.exchange(&["CLUSTER", "FAILOVER"], CHANGE_WITHIN);
            }
            is_primary
        });
    }
}

impl RedisServer {
    fn myself(&self) -> Myself {
        let nodes = self.run(&["CLUSTER", "NODES"]);
        let line = nodes.lines().find(|line| line.contains("myself"));
        let words: Vec<&str> = line.expect("a line").split_whitespace().collect();
        // A slot that migrates is in brackets.
        let ranges = words[8..].iter().filter(|word| !word.starts_with('['));
        Myself {
            id: words[0].into(),
            is_primary: words[2].contains("master"),
            primary: words[3].into(),
            ranges: ranges.map(|range| slots(range)).collect(),
        }
    }
}

fn slots(range: &str) -> (usize, usize) {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let number = |text: &str| text.parse().expect("a slot");
    (number(first), number(last))
}
