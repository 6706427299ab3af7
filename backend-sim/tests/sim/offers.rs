//! Offers with a short lease, through the lock client.

use std::future::pending;
use std::time::Duration;

use leasehold_api::{LockClient, Mutex};
use leasehold_sim::{Fault, Latency};

use crate::locks::{client, one_client, two_clients};
use crate::support::{ms, secs};

const LEASE: Duration = secs(1);
/// An offer lasts for two poll intervals of 1 s, which is longer than the lease.
const OFFER: Duration = secs(2);
/// The next waiter polls at the end of the offer: up to 20 ms later, plus 1 ms for the reply that
/// told it when, and 1 ms for the poll.
const POLL: Duration = ms(22);

fn short(locks: &LockClient) -> Mutex {
    let mutex = locks.mutex("job").expect("a valid key");
    mutex.lease(LEASE)
}

/// Queues `dead` clients that are killed 200 ms after their grants, and a live one behind them.
/// Returns how long the live one waits after a release.
async fn delay_behind(dead: u32) -> Duration {
    let (server, (_, a)) = one_client();
    let guard = short(&a).lock().await.expect("no failure");
    let mut tasks = Vec::new();
    for n in 0..dead {
        let (process, locks) = client(&server, &format!("dead {n}"));
        let time = server.clone();
        tasks.push(tokio::spawn(async move {
            let _guard = short(&locks).lock().await.expect("no failure");
            time.advance(ms(200)).await;
            process.kill();
            pending::<()>().await;
        }));
        server.advance(ms(10)).await;
    }
    let (_, b) = client(&server, "b");
    let waiting = tokio::spawn(async move { (short(&b).lock().await.expect("no failure"), b) });
    server.advance(ms(100)).await;
    let released = server.elapsed();
    guard.release().await.expect("released");
    let (_next, _b) = waiting.await.expect("no panic");
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    server.elapsed() - released
}

#[tokio::test(start_paused = true)]
async fn each_client_killed_after_its_grant_costs_an_offer() {
    for dead in [1, 8] {
        let took = delay_behind(dead).await;
        let most = (OFFER + POLL) * dead + ms(4);
        assert!(took > OFFER * dead && took <= most, "{dead}: {took:?}");
    }
}

/// The waiter has just polled when it is granted, so it learns of the grant only after a whole poll
/// interval. Its messages are slow, and it still confirms in time.
#[tokio::test(start_paused = true)]
async fn lost_push_leaves_time_to_confirm() {
    let (server, (_, a), (process, b)) = two_clients();
    process.set_latency(Latency::fixed(ms(100)));
    let guard = short(&a).lease(secs(30)).lock().await.expect("no failure");
    let waiting = tokio::spawn(async move { (short(&b).lock().await.expect("no failure"), b) });
    // It has subscribed and polled by then. It polls again.
    server.advance(secs(2)).await;
    let polls = || server.timeline().matches("poll \"job\"").count();
    let before = polls();
    while polls() == before {
        server.advance(ms(1)).await;
    }
    process.inject(Fault::LosePush);
    guard.release().await.expect("released");
    let released = server.elapsed();
    let (next, _b) = waiting.await.expect("no panic");
    let took = server.elapsed() - released;
    // The reply to that poll, the poll interval, and the round trip of the next poll.
    assert!(took > secs(1) && took <= secs(1) + ms(20 + 300), "{took:?}");
    server.advance(secs(10)).await;
    assert!(next.is_valid(), "{}", server.timeline());
}
