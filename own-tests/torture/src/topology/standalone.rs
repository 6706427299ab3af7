//! One Redis server, which keeps its data, with a clock that can be set.

use std::time::Duration;

use leasehold_test_servers::{Data, RedisServer, ServerOptions, SteppedClock};

use super::sleep;
use super::{Injection, Servers, outside, within};
use super::{cut_connections, cut_subscriptions, fill_memory, flush_scripts};
use crate::history::Assumption;
use crate::link::{Upstream, fixed};
use crate::nemesis::micros;
use crate::random::between;

/// How many bytes of the append-only file may get lost: some grants.
const LAST_WRITES: u64 = 4_000;

const FAULTS: &[Injection<Standalone>] = &[
    (
        within("kill server, restart with its data"),
        |it, random| {
            it.server.kill();
            sleep(random, it.lease, 0, 150);
            it.server.start_again();
        },
    ),
    (within("stop server").delays(), |it, random| {
        it.server.pause();
        sleep(random, it.lease, 20, 250);
        it.server.resume();
    }),
    (within("flush scripts"), |it, _| flush_scripts(&it.server)),
    (within("cut subscriptions"), |it, _| {
        cut_subscriptions(&it.server);
    }),
    (within("cut connections"), |it, _| {
        cut_connections(&it.server);
    }),
    (within("fill memory"), |it, random| {
        fill_memory(&it.server, random, it.lease);
    }),
    (within("skew clock by 0.5 %"), |it, _| it.skew_clock()),
    (
        outside("kill server, restart without data", Assumption::A1),
        |it, random| {
            it.server.restart(Data::Lost);
            sleep(random, it.lease, 0, 50);
        },
    ),
    (
        outside(
            "kill server, restart without its last writes",
            Assumption::A1,
        ),
        |it, random| {
            it.server.kill();
            it.server.lose_last_writes(random.u64(1..=LAST_WRITES));
            it.server.start_again();
        },
    ),
    (outside("flush all keys", Assumption::A2), |it, _| {
        it.server.run(&["FLUSHALL"]);
    }),
    (outside("step clock", Assumption::A3), |it, random| {
        let step = micros(between(random, it.lease / 2, it.lease * 3));
        it.clock.set(if random.bool() { step } else { -step });
        sleep(random, it.lease, 50, 200);
        it.clock.set(0);
    }),
];

pub(crate) struct Standalone {
    server: RedisServer,
    clock: SteppedClock,
    lease: Duration,
}

impl Standalone {
    pub(crate) fn start(lease: Duration) -> Self {
        let clock = SteppedClock::new();
        let options = ServerOptions::default().with_program(clock.program());
        Self {
            server: options.with_append_only().start(),
            clock,
            lease,
        }
    }

    /// The clock gains 8 ms within 1.6 s, and loses them again.
    fn skew_clock(&self) {
        const STEP: Duration = Duration::from_millis(10);
        const STEPS: i64 = 160;
        for step in (0..STEPS).chain((0..STEPS).rev()) {
            self.clock.set(step * 50);
            std::thread::sleep(STEP);
        }
        self.clock.set(0);
    }
}

impl Servers for Standalone {
    const FAULTS: &[Injection<Self>] = FAULTS;

    fn redis(&self) -> Vec<&RedisServer> {
        vec![&self.server]
    }

    fn linked(&self) -> Vec<Upstream> {
        vec![fixed(self.server.address())]
    }
}
