//! A primary with two replicas, and three sentinels that watch them.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_test_servers::{RedisServer, SentinelServers};

use super::{Injection, Servers, outside, within};
use super::{cut_connections, cut_subscriptions, fill_memory, flush_scripts};
use crate::history::Assumption;
use crate::random::between;

const DOWN_AFTER: Duration = Duration::from_millis(500);
/// Too short for the sentinels.
const SHORT: Duration = Duration::from_millis(250);

// Redis replicates asynchronously, so each promotion may lose writes. A primary in the minority goes on.
const FAULTS: &[Injection<Sentinel>] = &[
    (
        outside("sentinel failover", Assumption::A1).delays(),
        |it, _| {
            it.all.fail_over();
            it.has_promoted();
        },
    ),
    (outside("kill primary", Assumption::A1).delays(), |it, _| {
        let old = it.all.primary();
        it.all.server_mut(old).kill();
        it.all.wait_for_another_primary(old);
        it.all.server_mut(old).start_again();
        it.has_promoted();
    }),
    (
        outside("isolate primary", Assumption::A1).delays(),
        |it, _| {
            let old = it.all.primary();
            it.all.isolate(old);
            it.all.wait_for_another_primary(old);
            it.all.rejoin(old);
            it.has_promoted();
        },
    ),
    (
        within("stop primary for a moment").delays(),
        |it, random| {
            let primary = it.all.server(it.all.primary());
            primary.pause();
            std::thread::sleep(between(random, SHORT / 5, SHORT));
            primary.resume();
        },
    ),
    (within("flush scripts"), |it, _| {
        flush_scripts(it.all.server(it.all.primary()));
    }),
    (within("cut subscriptions"), |it, _| {
        cut_subscriptions(it.all.server(it.all.primary()));
    }),
    (within("cut connections"), |it, _| {
        cut_connections(it.all.server(it.all.primary()));
    }),
    (within("fill memory"), |it, random| {
        fill_memory(it.all.server(it.all.primary()), random, DOWN_AFTER);
    }),
];

pub(crate) struct Sentinel {
    all: SentinelServers,
    /// Those that are primaries, as far as the nemesis knows.
    primaries: Vec<usize>,
}

impl Sentinel {
    pub(crate) fn start() -> Self {
        let all = SentinelServers::start(DOWN_AFTER);
        let primaries = all.primaries();
        Self { all, primaries }
    }

    fn has_promoted(&mut self) {
        self.all.wait_until_in_sync();
        self.primaries = self.all.primaries();
    }
}

impl Servers for Sentinel {
    const FAULTS: &[Injection<Self>] = FAULTS;

    fn redis(&self) -> Vec<&RedisServer> {
        vec![self.all.server(self.all.primary())]
    }

    fn version(&self) -> String {
        self.all.server(0).product()
    }

    fn urls(&self, _: &[SocketAddr]) -> Vec<String> {
        vec![self.all.url()]
    }

    fn have_failed_over(&mut self) -> bool {
        let before = std::mem::replace(&mut self.primaries, self.all.primaries());
        // The old primary goes on for seconds until the sentinels make it follow the new one.
        before != self.primaries || self.primaries.len() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn failover_that_no_fault_asked_for_is_noticed_once() {
        let mut it = Sentinel::start();
        FAULTS[0].1(&mut it, &mut Random::with_seed(1));
        assert!(!it.have_failed_over(), "the fault has noted it");
        it.all.fail_over();
        assert!(it.have_failed_over());
        it.all.wait_until_in_sync();
        it.have_failed_over();
        assert!(!it.have_failed_over());
    }

    #[test]
    fn failover_lasts_until_the_old_primary_follows() {
        let mut it = Sentinel::start();
        let old = it.all.primary();
        it.all.server(old).pause();
        it.all.wait_for_another_primary(old);
        it.all.server(old).resume();
        let mut looks = 0;
        while it.all.primaries().len() > 1 {
            assert!(it.have_failed_over(), "look {looks}: two give locks away");
            looks += 1;
            std::thread::sleep(SHORT);
        }
        assert!(looks > 1);
    }
}
