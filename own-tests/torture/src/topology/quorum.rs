//! Three independent Redis servers, which keep their data.

use std::time::Duration;

use leasehold_api::bounds::DELIVERY_WINDOW;
use leasehold_test_servers::{Data, RedisServer, ServerOptions};

use super::{Faults, Kind, Servers, within};
use super::{cut_connections, fill_memory, flush_scripts, left_on, redis_version, sleep};
use crate::link::{Upstream, fixed};
use crate::random::Random;

const SERVERS: usize = 3;
const DRIFT: Duration = Duration::from_millis(10);

const FAULTS: Faults<Quorum> = &[
    (
        within("kill one server, restart with its data"),
        |it, random| {
            let server = random.below(SERVERS);
            it.servers[server].kill();
            sleep(random, it.lease, 0, 200);
            it.servers[server].start_again();
        },
    ),
    // As docs/deployment.md says: the old one is stopped for good, and the new one begins after the delay.
    (
        within("replace one server by an empty one"),
        |it, random| {
            let server = random.below(SERVERS);
            it.servers[server].kill();
            std::thread::sleep(it.lease + it.lease / 100 + DRIFT + DELIVERY_WINDOW);
            it.servers[server].restart(Data::Lost);
        },
    ),
    (within("stop one server").delays(), |it, random| {
        let server = random.below(SERVERS);
        it.servers[server].pause();
        sleep(random, it.lease, 20, 300);
        it.servers[server].resume();
    }),
    (within("stop two servers").delays(), |it, random| {
        let running = random.below(SERVERS);
        let stopped = |number: &usize| *number != running;
        (0..SERVERS)
            .filter(stopped)
            .for_each(|it_is| it.servers[it_is].pause());
        sleep(random, it.lease, 20, 200);
        (0..SERVERS)
            .filter(stopped)
            .for_each(|it_is| it.servers[it_is].resume());
    }),
    (within("flush scripts of one server"), |it, random| {
        flush_scripts(&it.servers[random.below(SERVERS)]);
    }),
    (within("cut connections to one server"), |it, random| {
        cut_connections(&it.servers[random.below(SERVERS)]);
    }),
    (within("fill memory of one server"), |it, random| {
        fill_memory(&it.servers[random.below(SERVERS)], random, it.lease);
    }),
];

pub(super) struct Quorum {
    servers: Vec<RedisServer>,
    lease: Duration,
}

impl Quorum {
    pub(super) fn start(lease: Duration) -> Self {
        let start = |_| ServerOptions::default().with_append_only().start();
        Self {
            servers: (0..SERVERS).map(start).collect(),
            lease,
        }
    }
}

impl Servers for Quorum {
    fn version(&self) -> String {
        format!("{SERVERS} × {}", redis_version(&self.servers[0]))
    }

    fn linked(&self) -> Vec<Upstream> {
        let addresses = self.servers.iter().map(RedisServer::address);
        addresses.map(fixed).collect()
    }

    fn kinds(&self) -> Vec<Kind> {
        FAULTS.iter().map(|(kind, _)| *kind).collect()
    }

    fn inject(&mut self, kind: usize, random: &mut Random) {
        FAULTS[kind].1(self, random);
    }

    fn left(&self) -> Vec<String> {
        self.servers.iter().flat_map(left_on).collect()
    }
}
