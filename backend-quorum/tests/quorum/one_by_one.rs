//! Something happens to one server at a time: its clock jumps, or it restarts with its data.
//!
//! A hold that all three servers have survives one jump of a clock: two still have it, and the third alone is
//! no quorum for anybody else. A hold at a bare majority doesn't. So the promise is: from the first renewal on that
//! reaches all servers, one jump ends no exclusion, and it ends no guard.

use std::cell::Cell;
use std::time::Duration;

use futures_util::future::join;
use leasehold_api::MutexGuard;
use leasehold_sim::{Call, Data, Fault, SimBackend, SimServer};

use crate::stress::{Random, seeds};
use crate::support::{Process, Servers, ms, secs};

/// When the clock jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Jump {
    /// When all servers have the hold.
    Promised,
    /// At any time, also when a bare majority has it.
    AnyTime,
}

/// Waits until all servers have the lock of the only key.
async fn held_everywhere(servers: &Servers) {
    let lacks = |server: &SimServer| server.left_behind().is_empty();
    while servers.all.iter().any(lacks) {
        servers.advance(ms(20)).await;
    }
}

/// Whether one of the rivals gets the lock while the guard is valid.
async fn rivals_get_it(
    servers: &Servers,
    rivals: [&Process; 2],
    guard: &MutexGuard,
    random: &Random,
) -> bool {
    for _ in 0..20 {
        servers.advance(random.ms_below(1_500)).await;
        if rivals[random.below(2) as usize].gets("k").await && guard.is_valid() {
            return true;
        }
    }
    false
}

/// One run: a server misses the acquire, and perhaps a renewal gets lost. Then one clock jumps. Returns whether
/// two held the lock at once.
async fn one_jump(seed: u64, jump: Jump) -> bool {
    let random = Random::new(seed);
    let servers = Servers::start(3_000 + seed);
    let [a, b, c] = [
        servers.acquainted("a").await,
        servers.acquainted("b").await,
        servers.acquainted("c").await,
    ];
    for _ in 0..3 {
        a.links[random.below(3) as usize].inject_into(Call::Acquire, Fault::LoseRequest);
        let guard = a.lock("k").await;
        if random.one_in(2) {
            a.links[random.below(3) as usize].inject_into(Call::Renew, Fault::LoseRequest);
        }
        match jump {
            Jump::Promised => {
                // Two renewals are 20 s after the grant at the latest. The second repairs what the first missed.
                let held = servers.within(secs(22), held_everywhere(&servers)).await;
                assert!(held.is_some(), "seed {seed}: a server was not repaired");
            }
            Jump::AnyTime => servers.advance(random.ms_below(9_000)).await,
        }
        let jumps = secs(30) + random.ms_below(60_000);
        servers.all[random.below(3) as usize].step_clock_forward(jumps);
        if rivals_get_it(&servers, [&b, &c], &guard, &random).await {
            return true;
        }
        if jump == Jump::Promised {
            assert!(guard.is_valid(), "seed {seed}: {:?}", guard.loss_reason());
        }
        // A guard that was lost has nothing to release.
        let _ = guard.release().await;
        a.links.iter().for_each(SimBackend::clear_faults);
        servers.advance(secs(2)).await;
    }
    servers.assert_idle();
    false
}

/// If nothing is repaired, each seed fails: a server is not repaired.
#[tokio::test(start_paused = true)]
async fn one_jump_harms_no_hold_that_all_servers_have() {
    for seed in seeds(6) {
        let two = one_jump(seed, Jump::Promised).await;
        assert!(!two, "seed {seed}: two hold the lock");
    }
}

/// Not promised: the jump comes while a bare majority has the hold, and hits one of its servers.
#[tokio::test(start_paused = true)]
async fn one_jump_may_end_the_exclusion_of_a_bare_majority() {
    let mut found = false;
    for seed in 0..12 {
        found |= one_jump(seed, Jump::AnyTime).await;
    }
    assert!(found, "no run reached the case");
}

/// The grants of a lock: when the last one was, and the longest time without one.
#[derive(Debug)]
struct Grants {
    last: Cell<Duration>,
    longest: Cell<Duration>,
}

impl Grants {
    fn count(&self, now: Duration) {
        let gap = now - self.last.replace(now);
        self.longest.set(self.longest.get().max(gap));
    }
}

/// Takes and releases a lock until `over`.
async fn work(servers: &Servers, process: &Process, over: Duration, grants: &Grants) {
    while servers.elapsed() < over {
        let guard = process.lock("k").await;
        grants.count(servers.elapsed());
        servers.advance(ms(20)).await;
        guard.release().await.expect("released");
        servers.advance(ms(5)).await;
    }
}

/// The servers go down one after the other and come back with their data. Meanwhile one process leads, nobody else
/// gets its lock, and two compete for another one. Returns the longest time in which neither got it.
async fn restarts(seed: u64) -> Duration {
    let random = Random::new(seed);
    let servers = Servers::start(4_000 + seed);
    let keeping = |name| servers.process_with_quorum(name, |it| it.restarts_keep_data(true));
    let [a, b, c] = ["a", "b", "c"].map(keeping);
    let leader = a.lock("leader").await;
    let grants = Grants {
        last: Cell::new(servers.elapsed()),
        longest: Cell::default(),
    };
    for restart in 0..9 {
        let server = &servers.all[restart % 3];
        let (down, apart) = (random.ms_below(5_000), ms(200) + random.ms_below(3_000));
        if random.one_in(2) {
            b.links[random.below(3) as usize].inject_into(Call::Acquire, Fault::LoseRequest);
            a.links[random.below(3) as usize].inject_into(Call::Renew, Fault::LoseReply);
        }
        let over = servers.elapsed() + down + apart;
        let restart = async {
            server.stop();
            servers.advance(down).await;
            server.start(Data::Kept);
        };
        let one = work(&servers, &b, over, &grants);
        let other = work(&servers, &c, over, &grants);
        join(join(one, other), restart).await;
        let lost = leader.loss_reason();
        assert!(leader.is_valid(), "seed {seed}: {lost:?}");
        assert!(!b.gets("leader").await, "seed {seed}: two lead");
    }
    grants.longest.get()
}

/// Two servers of three answer all the time, so nobody loses a lock, and everybody gets on. Without the statement that
/// restarts keep the data (`restarts_keep_data`), each seed fails.
#[tokio::test(start_paused = true)]
async fn servers_that_restart_one_by_one_stop_nobody() {
    for seed in seeds(4) {
        let longest = restarts(seed).await;
        let gap = format!("{longest:?} without a grant");
        assert!(longest < secs(5), "seed {seed}: {gap}");
    }
}
