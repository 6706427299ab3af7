//! Deadlines: each server's clock is compared with the local clock only.

use std::time::Duration;

use futures_util::future::join;
use leasehold_sim::Latency;

use crate::support::{Servers, ms, secs};

/// validity = lease − elapsed − drift.
#[tokio::test(start_paused = true)]
async fn validity_counts_from_before_the_first_request() {
    let servers = Servers::start(31);
    let a = servers.process("a");
    a.links[1].set_latency(Latency::fixed(ms(100)));
    a.links[2].isolate();
    let guard = a.lock("k").await;
    assert_eq!(servers.elapsed(), ms(400), "the clocks, then the votes");
    assert_eq!(guard.valid_for(), secs(30) - ms(200) - ms(310));
}

/// A guard ends before the servers' leases, even if the local clock is 1 % slow or fast.
#[tokio::test(start_paused = true)]
async fn drift_is_within_the_allowance() {
    // The rate error, and when the guard ends: 9.89 s of the local clock after the acquire was sent.
    for (ppm, ends) in [(-10_000, ms(9_990)), (0, ms(9_890)), (10_000, ms(9_793))] {
        let (servers, a, b) = Servers::start_with_two(32).await;
        a.links[0].set_clock_rate(ppm);
        let mutex = a.locks.mutex("k").expect("a valid key");
        let mutex = mutex.lease(secs(10)).fixed_lease();
        let sent = servers.elapsed();
        let outcome = mutex.try_lock().await.expect("an answer");
        let guard = outcome.into_guard().expect("granted");
        let ending = async {
            servers.lost(&guard).await;
            servers.elapsed() - sent
        };
        let (ended, (next, took)) = join(ending, servers.timed(b.lock("k"))).await;
        assert!(ended.abs_diff(ends) <= ms(2), "{ppm}: {ended:?}");
        assert!(!guard.is_valid() && next.is_valid());
        assert!(took >= secs(10) - ms(2), "{took:?}");
    }
}

/// A server whose clock is stepped refuses one acquire. Its answer has the new time, so its vote counts
/// again.
#[tokio::test(start_paused = true)]
async fn stepped_clock_of_a_minority_changes_nothing() {
    for step in [secs(1), secs(3_600)] {
        for forward in [false, true] {
            let (servers, a, b) = Servers::start_with_two(33).await;
            let guard = a.lock("k").await;
            servers.advance(ms(10)).await;
            if forward {
                servers.all[2].step_clock_forward(step);
            } else {
                servers.all[2].step_clock_back(step);
            }
            servers.advance(secs(60)).await;
            assert!(guard.is_valid() && !b.gets("k").await);
            guard.release().await.expect("released");
            let (_, took): (_, Duration) = servers.timed(b.lock("k")).await;
            assert_eq!(took, ms(2));
            servers.all[0].stop();
            assert!(b.gets("other").await, "{step:?} {forward}");
        }
    }
}
