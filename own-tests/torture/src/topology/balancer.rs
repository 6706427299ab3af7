//! A primary and its replica behind one address, as a load balancer does it: after a failover, new connections
//! lead to the new primary, and old ones stay where they are.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_test_servers::{RedisServer, ServerOptions, block_until};
use tokio::sync::watch;

use super::sleep;
use super::{Injection, Servers, outside, within};
use super::{cut_connections, cut_subscriptions, fill_memory, flush_scripts};
use crate::history::Assumption;
use crate::link::Upstream;

const FAULTS: &[Injection<Balancer>] = &[
    // The primary hands over all that it has written.
    (within("graceful failover").delays(), |it, _| {
        let to = it.replica().port().to_string();
        it.primary().run(&["FAILOVER", "TO", "127.0.0.1", &to]);
        block_until("the replica is the primary", || {
            it.replica().run(&["ROLE"]).contains("master")
        });
        it.lead_to_the_other();
        it.wait_until_in_sync();
    }),
    // The last writes may not have reached the replica.
    (outside("kill primary", Assumption::A1).delays(), |it, _| {
        it.servers[it.primary].kill();
        it.replica().run(&["REPLICAOF", "NO", "ONE"]);
        it.lead_to_the_other();
        let old = 1 - it.primary;
        it.servers[old].start_again();
        it.replicate();
        it.wait_until_in_sync();
    }),
    (within("stop primary").delays(), |it, random| {
        it.primary().pause();
        sleep(random, it.lease, 20, 150);
        it.primary().resume();
    }),
    (within("flush scripts"), |it, _| flush_scripts(it.primary())),
    (within("cut subscriptions"), |it, _| {
        cut_subscriptions(it.primary());
    }),
    (within("cut connections"), |it, _| {
        cut_connections(it.primary());
    }),
    (within("fill memory"), |it, random| {
        fill_memory(it.primary(), random, it.lease);
    }),
];

pub(crate) struct Balancer {
    servers: [RedisServer; 2],
    /// The index of the primary.
    primary: usize,
    address: watch::Sender<SocketAddr>,
    lease: Duration,
}

impl Balancer {
    pub(crate) fn start(lease: Duration) -> Self {
        let servers = [(); 2].map(|()| ServerOptions::default().with_append_only().start());
        let address = watch::channel(servers[0].address()).0;
        let it = Self {
            servers,
            primary: 0,
            address,
            lease,
        };
        it.replicate();
        it.wait_until_in_sync();
        it
    }

    fn primary(&self) -> &RedisServer {
        &self.servers[self.primary]
    }

    fn replica(&self) -> &RedisServer {
        &self.servers[1 - self.primary]
    }

    /// The address leads to the other server from now on.
    fn lead_to_the_other(&mut self) {
        self.primary = 1 - self.primary;
        self.address.send_replace(self.primary().address());
    }

    fn replicate(&self) {
        let port = self.primary().port().to_string();
        self.replica().run(&["REPLICAOF", "127.0.0.1", &port]);
    }

    fn wait_until_in_sync(&self) {
        block_until("the replica follows", || {
            let info = self.primary().run(&["INFO", "replication"]);
            info.contains("state=online")
        });
    }
}

impl Servers for Balancer {
    const FAULTS: &[Injection<Self>] = FAULTS;

    fn redis(&self) -> Vec<&RedisServer> {
        vec![self.primary()]
    }

    fn linked(&self) -> Vec<Upstream> {
        vec![self.address.subscribe()]
    }
}
