//! Three independent Redis servers, which keep their data.

use std::time::Duration;

use leasehold_api::bounds::DELIVERY_WINDOW;
use leasehold_test_servers::{Data, RedisServer, ServerOptions};

use super::{Injection, Servers, within};
use super::{cut_connections, fill_memory, flush_scripts, sleep};
use crate::link::{Upstream, fixed};

const SERVERS: usize = 3;
const DRIFT: Duration = Duration::from_millis(10);

const FAULTS: &[Injection<Quorum>] = &[
    (
        within("kill one server, restart with its data"),
        |it, random| {
            let server = random.usize(..SERVERS);
            it.servers[server].kill();
            sleep(random, it.lease, 0, 200);
            it.servers[server].start_again();
        },
    ),
    // As docs/postgres.md says: the old one is stopped for good, and the new one begins after the delay.
    (
        within("replace one server by an empty one"),
        |it, random| {
            let server = random.usize(..SERVERS);
            it.servers[server].kill();
            std::thread::sleep(it.lease + it.lease / 100 + DRIFT + DELIVERY_WINDOW);
            it.servers[server].restart(Data::Lost);
        },
    ),
    (within("stop one server").delays(), |it, random| {
        let server = random.usize(..SERVERS);
        it.servers[server].pause();
        sleep(random, it.lease, 20, 300);
        it.servers[server].resume();
    }),
    (within("stop two servers").delays(), |it, random| {
        let running = random.usize(..SERVERS);
        let stopped = || {
            (0..SERVERS)
                .filter(|it| *it != running)
                .map(|number| &it.servers[number])
        };
        stopped().for_each(RedisServer::pause);
        sleep(random, it.lease, 20, 200);
        stopped().for_each(RedisServer::resume);
    }),
    (within("flush scripts of one server"), |it, random| {
        flush_scripts(&it.servers[random.usize(..SERVERS)]);
    }),
    (within("cut connections to one server"), |it, random| {
        cut_connections(&it.servers[random.usize(..SERVERS)]);
    }),
    (within("fill memory of one server"), |it, random| {
        fill_memory(&it.servers[random.usize(..SERVERS)], random, it.lease);
    }),
];

pub(crate) struct Quorum {
    servers: Vec<RedisServer>,
    lease: Duration,
}

impl Quorum {
    pub(crate) fn start(lease: Duration) -> Self {
        let start = |_| ServerOptions::default().with_append_only().start();
        Self {
            servers: (0..SERVERS).map(start).collect(),
            lease,
        }
    }
}

impl Servers for Quorum {
    const FAULTS: &[Injection<Self>] = FAULTS;

    fn redis(&self) -> Vec<&RedisServer> {
        self.servers.iter().collect()
    }

    fn version(&self) -> String {
        format!("{SERVERS} × {}", self.servers[0].product())
    }

    fn linked(&self) -> Vec<Upstream> {
        let addresses = self.servers.iter().map(RedisServer::address);
        addresses.map(fixed).collect()
    }
}
