//! Faults of servers and clocks: their effects on locks, and the replay of their logs.

use leasehold_api::{AcquireReply, LockBackend, Loss, Outcome};
use leasehold_sim::tools::Fate;
use leasehold_sim::{Data, Fault, Latency, SimOptions, SimServer, Simulation, Tail};

use crate::locks::{client, hold, job};
use crate::support::{Raw, assert_is, assert_replays, ms, secs};

fn server() -> SimServer {
    SimServer::with_options(SimOptions::new(1).journal(16))
}

#[tokio::test(start_paused = true)]
async fn restart_can_lose_only_the_last_commands() {
    for (tail, left) in [
        (Tail::Commands(0), 2),
        (Tail::Commands(1), 1),
        (Tail::Commands(2), 0),
        (Tail::Commands(99), 0),
        (Tail::Last(ms(500)), 1),
        (Tail::Last(secs(5)), 0),
    ] {
        let server = server();
        let (_, locks) = client(&server, "a");
        for name in ["first", "second"] {
            let mutex = locks.mutex(name).expect("a name").fixed_lease();
            std::mem::forget(mutex.lock().await.expect("the server serves"));
            server.advance(ms(400)).await;
        }
        server.restart(Data::AllBut(tail));
        assert_eq!(server.left_behind().lines().count(), left, "{tail:?}");
        // It serves again.
        hold(&locks).await.release().await.expect("served");
        assert_replays(&server);
    }
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "SimOptions::journal")]
async fn failover_without_a_journal_is_refused() {
    SimServer::new(1).fail_over(Tail::Commands(1));
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "belongs to another simulation")]
async fn split_refuses_clients_of_another_simulation() {
    let (server, other) = (server(), server());
    let strangers = [other.client("a"), other.client("b")];
    server.split(Tail::Commands(1), &strangers);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "at most 36,500 days")]
async fn too_large_clock_step_is_refused() {
    SimServer::new(1).step_clock_forward(secs(u64::MAX));
}

#[tokio::test(start_paused = true)]
async fn lagging_replica_grants_again_with_a_higher_token() {
    let server = server();
    let ((network, a), (_, b)) = (client(&server, "a"), client(&server, "b"));
    let (a, b) = (job(&a), job(&b));
    let first = a.lock().await.expect("the server serves");
    let before = server.elapsed();
    // Otherwise the first client subscribes again, renews, and so learns of its loss.
    network.isolate();
    server.fail_over(Tail::Commands(1));
    let second = b.lock().await.expect("the replica serves");
    assert!(server.elapsed() - before < secs(1));
    // Two guards are valid at once. Fencing tokens exist for this case.
    assert!(first.is_valid() && second.is_valid());
    assert!(second.fencing_token() > first.fencing_token());
    network.rejoin();
    let before = server.elapsed();
    assert_eq!(first.lost().await, Loss::Unknown);
    assert!(server.elapsed() - before < secs(1), "with its subscription");
    assert_replays(&server);
}

#[tokio::test(start_paused = true)]
async fn old_primary_serves_its_clients_until_it_heals() {
    let server = server();
    let ((old, a), (_, b)) = (client(&server, "a"), client(&server, "b"));
    let (a, b) = (job(&a), job(&b));
    let first = a.lock().await.expect("the server serves");
    // The replica has the lock too, but nobody renews it there.
    server.split(Tail::Commands(0), &[old]);
    let second = b.lock().await.expect("the new primary serves");
    assert!(server.elapsed() > secs(29), "{:?}", server.elapsed());
    assert!(first.is_valid() && second.is_valid());
    assert_is!(a.try_lock().await => Ok(Outcome::Contended(_)));
    server.advance(secs(60)).await;
    assert!(first.is_valid() && second.is_valid());

    server.heal();
    assert_is!(first.lost().await => Loss::Expired | Loss::Unknown);
    assert!(second.is_valid());
    assert_is!(a.try_lock().await => Ok(Outcome::Contended(_)));
    assert!(second.release().await.is_ok());
    server.advance(secs(1)).await;
    server.assert_idle();
    assert_replays(&server);
}

#[tokio::test(start_paused = true)]
async fn pushes_of_two_primaries_reach_their_own_clients() {
    let server = server();
    let names = ["a", "b", "c", "d"];
    let [(a, old_a), (b, old_b), (_, new_c), (_, new_d)] = names.map(|name| client(&server, name));
    server.split(Tail::Commands(0), &[a, b]);
    for (holder, waiter) in [(old_a, old_b), (new_c, new_d)] {
        let held = hold(&holder).await;
        let mutex = job(&waiter);
        let release = async {
            server.advance(ms(2_500)).await;
            let begun = server.elapsed();
            held.release().await.expect("served");
            begun
        };
        let (guard, begun) = tokio::join!(mutex.lock(), release);
        // Faster than the next poll, so a push arrived.
        assert!(server.elapsed() - begun <= ms(4), "{}", server.timeline());
        guard.expect("served").release().await.expect("served");
    }
    assert_replays(&server);
}

#[tokio::test(start_paused = true)]
async fn client_sleeps_by_its_own_clock() {
    let server = server();
    let backend = server.client("a");
    backend.set_clock_rate(1_000_000);
    let runtime = backend.runtime();
    let (true_time, shown) = (server.elapsed(), runtime.now());
    runtime.sleep(secs(10)).await;
    assert_eq!(server.elapsed() - true_time, ms(5_001));
    assert_eq!(runtime.now().saturating_since(shown), ms(10_002));
    backend.jump_clock(secs(3));
    assert_eq!(runtime.now().saturating_since(shown), ms(13_002));
}

/// Timers may not count the time of a suspend, so a task may sleep past its deadline.
#[tokio::test(start_paused = true)]
async fn missed_notifications_after_a_suspend_cause_a_poll_at_once() {
    let server = server();
    let ((_, a), (machine, b)) = (client(&server, "a"), client(&server, "b"));
    let holder = job(&a).lock().await.expect("the server serves");
    let waiter = tokio::spawn(async move { job(&b).lock().await });
    server.advance(ms(10)).await;
    machine.jump_clock(ms(1_000));
    machine.inject(Fault::LosePush);
    holder.release().await.expect("the server serves");
    let since = server.elapsed();
    machine.drop_connection();
    let guard = waiter.await.expect("no panic").expect("the server serves");
    assert!(guard.is_valid());
    assert!(server.elapsed() - since < ms(20), "{}", server.timeline());
}

#[tokio::test(start_paused = true)]
async fn new_hold_after_a_suspend_is_renewed_in_time() {
    let server = server();
    let (machine, locks) = client(&server, "a");
    let long = locks.mutex("long").expect("a name").lease(secs(30));
    let long = long.lock().await.expect("the server serves");
    server.advance(secs(1)).await;
    // Twelve seconds pass for everything but the timers.
    server.step_clock_forward(secs(12));
    machine.jump_clock(secs(12));
    let short = locks.mutex("short").expect("a name").lease(secs(1));
    let short = short.lock().await.expect("the server serves");
    server.advance(secs(15)).await;
    assert!(short.is_valid(), "{}", server.timeline());
    assert!(long.is_valid(), "{}", server.timeline());
}

/// Whether a reply or push to the client overtook another.
fn overtaken(seed: u64, unordered: bool) -> bool {
    let options = SimOptions::new(seed).latency(Latency::between(ms(0), ms(3)));
    let report = Simulation::new(options).run(|sim| async move {
        let a = Raw::new(&sim, "a");
        a.backend.set_unordered_pushes(unordered);
        drop(a.backend.listen(a.session).await.map(std::mem::forget));
        let (first, _) = a.acquire(secs(10)).await;
        let (_, reply) = a.queue(secs(10)).await;
        assert_is!(reply => AcquireReply::Queued(_));
        a.release(first).await.expect("served");
        sim.sleep(ms(10)).await;
    });
    let arrivals = report.messages().filter_map(|it| match it.fate {
        Fate::Arrived(at) if !it.content.is_to_server() => Some(at),
        _ => None,
    });
    !arrivals.is_sorted()
}

#[test]
fn pushes_overtake_only_if_unordered() {
    assert!((0..100).all(|seed| !overtaken(seed, false)));
    assert!((0..100).any(|seed| overtaken(seed, true)));
}
