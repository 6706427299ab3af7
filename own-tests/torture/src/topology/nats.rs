//! A cluster of three NATS servers.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use leasehold_test_servers::{NatsServers, RedisServer, block_until};
use serde_json::Value;

use super::{Injection, LARGEST_KEY, Servers, sleep, within};
use crate::link::{Upstream, fixed};
use crate::random::Random;

const SERVERS: usize = 3;

const FAULTS: &[Injection<Nats>] = &[
    (
        within("kill one server, restart with its data"),
        |it, random| it.kill(random.usize(..SERVERS), random),
    ),
    (
        within("kill the leader, restart with its data"),
        |it, random| it.kill(it.leader().unwrap_or(0), random),
    ),
    (
        within("kill all servers, restart with their data"),
        |it, random| {
            (0..SERVERS).for_each(|server| it.servers.kill(server));
            sleep(random, it.lease, 0, 200);
            (0..SERVERS).for_each(|server| it.servers.restart(server));
            it.wait();
        },
    ),
    (within("stop one server").delays(), |it, random| {
        let server = random.usize(..SERVERS);
        it.stop(server..server + 1, random);
    }),
    (within("stop all servers").delays(), |it, random| {
        it.stop(0..SERVERS, random);
    }),
];

pub(crate) struct Nats {
    servers: NatsServers,
    lease: Duration,
}

impl Nats {
    pub(crate) fn start(lease: Duration) -> Self {
        let servers = NatsServers::start_cluster();
        Self { servers, lease }
    }

    fn kill(&mut self, server: usize, random: &mut Random) {
        self.servers.kill(server);
        sleep(random, self.lease, 0, 200);
        self.servers.restart(server);
        self.wait();
    }

    fn stop(&self, servers: std::ops::Range<usize>, random: &mut Random) {
        let pause = |paused| {
            for server in servers.clone() {
                self.servers.pause(server, paused);
            }
        };
        pause(true);
        sleep(random, self.lease, 20, 300);
        pause(false);
        self.wait();
    }

    /// Waits until the bucket has a leader.
    fn wait(&self) {
        block_until("the bucket has a leader", || self.leader().is_some());
    }

    fn leader(&self) -> Option<usize> {
        let leader = &self.bucket()?["cluster"]["leader"];
        leader.as_str()?.strip_prefix('n')?.parse().ok()
    }

    /// What its leader says of the bucket.
    fn bucket(&self) -> Option<Value> {
        let ask = |server| self.servers.ask(server, "$JS.API.STREAM.INFO.KV_leasehold");
        let answer = (0..SERVERS).find_map(ask)?;
        serde_json::from_str(&answer).ok()
    }
}

impl Servers for Nats {
    const FAULTS: &[Injection<Self>] = FAULTS;

    fn redis(&self) -> Vec<&RedisServer> {
        Vec::new()
    }

    fn version(&self) -> String {
        let info = self.servers.info(0).expect("it has answered before");
        let info: Value = serde_json::from_str(&info).expect("JSON");
        let version = info["version"].as_str().unwrap_or_default();
        format!("{SERVERS} × NATS {version}")
    }

    fn linked(&self) -> Vec<Upstream> {
        let address = |server| (Ipv4Addr::LOCALHOST, self.servers.port(server)).into();
        (0..SERVERS).map(|it| fixed(address(it))).collect()
    }

    fn urls(&self, links: &[SocketAddr]) -> Vec<String> {
        let links: Vec<_> = links.iter().map(ToString::to_string).collect();
        vec![format!("nats://{}", links.join(","))]
    }

    /// One message for each key.
    fn left(&self) -> Vec<String> {
        let Some(bucket) = self.bucket() else {
            return vec!["no answer".into()];
        };
        let of = |name: &str| bucket["state"][name].as_u64().unwrap_or(u64::MAX);
        let (bytes, keys) = (of("bytes"), of("messages"));
        let is_large = bytes > LARGEST_KEY as u64;
        is_large
            .then(|| format!("{bytes} bytes for {keys} keys"))
            .into_iter()
            .collect()
    }
}
