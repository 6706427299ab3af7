//! One Redis server, which keeps its data, with a clock that can be set.

use std::time::Duration;

use leasehold_test_servers::{Data, RedisServer, ServerOptions, SteppedClock};

use super::{Faults, Kind, Servers, outside, within};
use super::{cut_connections, cut_subscriptions, fill_memory, flush_scripts};
use super::{left_on, redis_version, sleep};
use crate::history::Assumption;
use crate::link::{Upstream, fixed};
use crate::random::Random;

/// How many bytes of the append-only file may get lost: some grants.
const LAST_WRITES: usize = 4_000;

const FAULTS: Faults<Standalone> = &[
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
            it.server
                .lose_last_writes(1 + random.below(LAST_WRITES) as u64);
            it.server.start_again();
        },
    ),
    (outside("flush all keys", Assumption::A2), |it, _| {
        it.server.run(&["FLUSHALL"]);
    }),
    (outside("step clock", Assumption::A3), |it, random| {
        let step = random.between(it.lease / 2, it.lease * 3);
        let micros = i64::try_from(step.as_micros()).expect("a short time");
        it.clock
            .set(if random.percent(50) { micros } else { -micros });
        sleep(random, it.lease, 50, 200);
        it.clock.set(0);
    }),
];

pub(super) struct Standalone {
    server: RedisServer,
    clock: SteppedClock,
    lease: Duration,
}

impl Standalone {
    pub(super) fn start(lease: Duration) -> Self {
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
    fn version(&self) -> String {
        redis_version(&self.server)
    }

    fn linked(&self) -> Vec<Upstream> {
        vec![fixed(self.server.address())]
    }

    fn kinds(&self) -> Vec<Kind> {
        FAULTS.iter().map(|(kind, _)| *kind).collect()
    }

    fn inject(&mut self, kind: usize, random: &mut Random) {
        FAULTS[kind].1(self, random);
    }

    fn left(&self) -> Vec<String> {
        left_on(&self.server)
    }
}
