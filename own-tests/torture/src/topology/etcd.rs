//! A cluster of three etcd servers.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use leasehold_test_servers::{EtcdServer, RedisServer};

use super::{Injection, LARGEST_KEY, Servers, sleep, within};
use crate::link::{Upstream, fixed};
use crate::random::Random;

const SERVERS: usize = 3;

/// The fields of `etcdctl endpoint status`.
const VERSION: usize = 2;
const IS_LEADER: usize = 4;

const FAULTS: &[Injection<Etcd>] = &[
    (
        within("kill one server, restart with its data"),
        |it, random| {
            let number = random.usize(..SERVERS);
            it.kill(number, random);
        },
    ),
    (
        within("kill the leader, restart with its data"),
        |it, random| {
            let leads = |server: &EtcdServer| status(server, IS_LEADER) == "true";
            let number = it.servers.iter().position(leads);
            it.kill(number.unwrap_or(0), random);
        },
    ),
    (
        within("kill all servers, restart with their data"),
        |it, random| {
            it.servers.iter_mut().for_each(EtcdServer::stop);
            sleep(random, it.lease, 0, 200);
            it.servers.iter_mut().for_each(EtcdServer::launch);
            it.servers.iter_mut().for_each(EtcdServer::wait);
        },
    ),
    (within("stop one server").delays(), |it, random| {
        let server = &mut it.servers[random.usize(..SERVERS)];
        server.pause();
        sleep(random, it.lease, 20, 300);
        server.resume();
        server.wait();
    }),
    (within("stop all servers").delays(), |it, random| {
        it.servers.iter().for_each(EtcdServer::pause);
        sleep(random, it.lease, 20, 300);
        it.servers.iter().for_each(EtcdServer::resume);
        it.servers.iter_mut().for_each(EtcdServer::wait);
    }),
];

pub(crate) struct Etcd {
    servers: [EtcdServer; SERVERS],
    lease: Duration,
}

impl Etcd {
    pub(crate) fn start(lease: Duration) -> Self {
        let servers = EtcdServer::cluster();
        Self { servers, lease }
    }

    fn kill(&mut self, number: usize, random: &mut Random) {
        let server = &mut self.servers[number];
        server.stop();
        sleep(random, self.lease, 0, 200);
        server.restart();
    }
}

fn status(server: &EtcdServer, field: usize) -> String {
    let status = server.execute(&["endpoint", "status"]);
    let field = status.split(", ").nth(field);
    field.unwrap_or(&status).to_owned()
}

impl Servers for Etcd {
    const FAULTS: &[Injection<Self>] = FAULTS;

    fn redis(&self) -> Vec<&RedisServer> {
        Vec::new()
    }

    fn version(&self) -> String {
        format!("{SERVERS} × etcd {}", status(&self.servers[0], VERSION))
    }

    fn linked(&self) -> Vec<Upstream> {
        let address = |server: &EtcdServer| (Ipv4Addr::LOCALHOST, server.port()).into();
        self.servers.iter().map(|it| fixed(address(it))).collect()
    }

    fn urls(&self, links: &[SocketAddr]) -> Vec<String> {
        let links: Vec<_> = links.iter().map(ToString::to_string).collect();
        vec![format!("etcd://{}", links.join(","))]
    }

    fn left(&self) -> Vec<String> {
        let server = &self.servers[0];
        let keys = server.execute(&["get", "leasehold/", "--prefix", "--keys-only"]);
        let keys = keys.lines().filter(|key| !key.is_empty());
        let bytes = |key| server.execute(&["get", key, "--print-value-only"]).len();
        let large = keys.filter(|key| bytes(key) > LARGEST_KEY);
        large.map(|key| format!("a large value of {key}")).collect()
    }
}
