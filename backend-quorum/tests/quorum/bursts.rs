//! Bursts of attempts of one client: batches that outlive their callers, and many attempts in doubt. Each
//! seed is one run. A rival tries the same keys all the time, and must not get one that has a guard.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{join, join_all, poll_immediate};
use leasehold_api::MutexGuard;
use leasehold_sim::{Call, Fault, Latency};

use crate::stress::{Random, seeds};
use crate::support::{Process, Servers, ms, secs};

/// The budget: if `Fates` allows two ballots on one operation at a time, each 16 seeds below 160 have a
/// violation.
#[tokio::test(start_paused = true)]
async fn batches_outlive_their_callers() {
    for seed in seeds(16) {
        let burst = Burst::new(seed, 3);
        burst.play(burst.random.ms_below(1_000), ms(0), 20).await;
    }
}

/// The budget: if `Fates` forgets outcomes without a mark, each 2 seeds below 16 have a violation.
#[tokio::test(start_paused = true)]
async fn many_attempts_are_in_doubt() {
    for seed in seeds(2) {
        let burst = Burst::new(seed, 300);
        let cut_off = ms(500) + burst.random.ms_below(30);
        burst.play(ms(0), cut_off, 5).await;
    }
}

struct Burst {
    seed: u64,
    random: Random,
    servers: Servers,
    keys: Vec<String>,
}

impl Burst {
    fn new(seed: u64, keys: u64) -> Self {
        let random = Random::new(seed);
        let count = keys + random.below(keys);
        Self {
            seed,
            random,
            servers: Servers::start(1_000 + seed),
            keys: (0..count).map(|n| format!("k{n}")).collect(),
        }
    }

    /// A client asks for all keys at once. Its runtime is blocked for some time, and two servers are out
    /// of reach for some time. Then the rival tries all keys, some times.
    async fn play(&self, blocked: Duration, cut_off: Duration, times: u32) {
        let (a, b) = (self.process("a").await, self.process("b").await);
        let reachable = self.random.below(3) as usize;
        let others = || a.links.iter().enumerate().filter(|(n, _)| *n != reachable);
        if cut_off.is_zero() {
            self.lose_messages(&a);
        } else {
            others().for_each(|(_, link)| link.isolate());
        }
        let process = a.links[0].clone();
        let all = join_all(self.keys.iter().map(|key| a.lock(key)));
        let mut waiting = pin!(process.run(all));
        assert!(poll_immediate(&mut waiting).await.is_none());
        process.pause();
        self.servers.advance(blocked).await;
        process.resume();
        let back = async {
            self.servers.advance(cut_off).await;
            others().for_each(|(_, link)| link.rejoin());
        };
        let (guards, ()) = join(waiting, back).await;
        for _ in 0..times {
            self.try_all(&b, &guards).await;
            self.servers.advance(self.random.ms_below(200)).await;
        }
    }

    async fn process(&self, name: &str) -> Process {
        let process = self.servers.acquainted(name).await;
        for link in &process.links {
            link.set_latency(Latency::between(ms(1), ms(1 + self.random.below(5))));
        }
        process
    }

    /// Some servers miss the first acquires, and some releases.
    fn lose_messages(&self, process: &Process) {
        for link in &process.links {
            if self.random.one_in(4) {
                continue;
            }
            for _ in 0..self.keys.len().min(8) {
                link.inject_into(Call::Acquire, Fault::LoseRequest);
            }
            if self.random.one_in(4) {
                link.inject_into(Call::Release, Fault::LoseRequest);
            }
        }
    }

    async fn try_all(&self, rival: &Process, guards: &[MutexGuard]) {
        let tries = self.keys.iter().zip(guards).map(async |(key, guard)| {
            let mutex = rival.locks.mutex(key).expect("a valid key");
            let outcome = mutex.try_lock_for(secs(1)).await.expect("an answer");
            let Some(other) = outcome.into_guard() else {
                return;
            };
            let both = guard.is_valid() && other.is_valid();
            assert!(!both, "seed {}: two hold {key}", self.seed);
        });
        join_all(tries).await;
    }
}
