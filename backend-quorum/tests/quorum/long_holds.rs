//! A lock that is held for long, by a process that does much else meanwhile. What the quorum knows of it is kept: its
//! token, and what gives it to servers that lack it.

use crate::stress::{Random, seeds};
use crate::support::{Process, Servers, ms, secs};

/// The process takes and releases another lock this many times.
async fn other_outcomes(process: &Process, count: u64) {
    for _ in 0..count {
        let guard = process.lock("work").await;
        guard.release().await.expect("released");
    }
}

/// The leader's acquire reaches two servers. The third gets the lock after a renewal, before or after many other
/// outcomes. Then the clock of one server jumps, and it forgets the lock.
#[tokio::test(start_paused = true)]
async fn leader_in_a_busy_process_is_repaired() {
    for outcomes in [0, 300] {
        let (servers, a, b) = Servers::start_with_two(71).await;
        a.links[2].isolate();
        let guard = a.lock("leader").await;
        a.links[2].rejoin();
        other_outcomes(&a, outcomes).await;
        servers.advance(secs(25)).await;
        servers.all[0].step_clock_forward(secs(3_600));
        let second = b.gets("leader").await;
        assert!(guard.is_valid() && !second, "after {outcomes} outcomes");
    }
}

/// The server that was repaired has a higher token than the others. It counts for as long as the lock is held.
#[tokio::test(start_paused = true)]
async fn repaired_server_counts_after_many_outcomes() {
    for outcomes in [0, 300] {
        let servers = Servers::start(71);
        let a = servers.acquainted("a").await;
        a.links[2].isolate();
        let guard = a.lock("leader").await;
        a.links[2].rejoin();
        servers.advance(secs(25)).await;
        other_outcomes(&a, outcomes).await;
        servers.all[0].stop();
        servers.advance(secs(45)).await;
        let lost = guard.loss_reason();
        assert!(guard.is_valid(), "after {outcomes} outcomes: {lost:?}");
    }
}

/// Each attempt to get another key that is taken back is an outcome too.
#[tokio::test(start_paused = true)]
async fn leader_that_waits_for_another_key_is_repaired() {
    let (servers, a, b) = Servers::start_with_two(75).await;
    let guard = a.lock("leader").await;
    b.links[2].isolate();
    let _busy = b.lock("busy").await;
    let waiting = a.locks.mutex("busy").expect("a valid key");
    let waited = servers.within(secs(60), waiting.lock()).await;
    assert!(waited.is_none());
    servers.all[2].remove_key("leader");
    servers.advance(secs(25)).await;
    servers.all[0].stop();
    servers.advance(secs(45)).await;
    assert!(guard.is_valid(), "{:?}", guard.loss_reason());
}

/// A session that only renews is in use, although it has decided nothing for an hour.
#[tokio::test(start_paused = true)]
async fn leader_is_repaired_after_an_hour() {
    let servers = Servers::start(76);
    let a = servers.acquainted("a").await;
    let other = leasehold_api::LockClient::new(std::sync::Arc::clone(&a.quorum));
    let guard = a.lock("leader").await;
    servers.advance(secs(3_700)).await;
    // Another session of the same quorum. The silent ones are forgotten now.
    let mutex = other.mutex("other").expect("a valid key");
    let second = mutex.try_lock().await.expect("an answer");
    assert!(second.into_guard().is_some());
    servers.all[2].remove_key("leader");
    servers.advance(secs(25)).await;
    servers.all[0].stop();
    servers.advance(secs(45)).await;
    assert!(guard.is_valid(), "{:?}", guard.loss_reason());
}

/// Each seed is one run: a leader, other outcomes, and servers that lose the lock one after the other, a renewal apart.
/// The budget: if `Fates` forgets what has won like other outcomes, 6 seeds have a violation.
#[tokio::test(start_paused = true)]
async fn leader_survives_servers_that_forget_it() {
    for seed in seeds(6) {
        let random = Random::new(seed);
        let (servers, a, b) = Servers::start_with_two(2_000 + seed).await;
        let apart = random.below(3) as usize;
        a.links[apart].isolate();
        let guard = a.lock("leader").await;
        a.links[apart].rejoin();
        for _ in 0..4 {
            other_outcomes(&a, random.below(400)).await;
            servers.advance(secs(21) + random.ms_below(5_000)).await;
            let server = &servers.all[random.below(3) as usize];
            match random.below(2) {
                0 => server.remove_key("leader"),
                _ => server.step_clock_forward(secs(60)),
            };
            servers.advance(ms(10)).await;
            let both = b.gets("leader").await && guard.is_valid();
            assert!(!both, "seed {seed}: two hold the lock");
        }
        assert!(guard.is_valid(), "seed {seed}: {:?}", guard.loss_reason());
    }
}
