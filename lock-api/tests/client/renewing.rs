//! When renewals and releases are sent, and which replies count.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_api::machine::Command;
use leasehold_api::{Key, LockClient};
use leasehold_sim::tools::Event;
use leasehold_sim::{Call, Fault, Latency, SimServer};

use crate::support::{
    client, clients, connected, held, lock, ms, mutex_of, reentrant_rw, secs, server, wait,
};
use crate::wrapped::Wrapped;

/// The times at which the server executed renewals.
fn renewals(server: &SimServer) -> Vec<Duration> {
    let log = server.log();
    let at = log.iter().filter_map(|entry| match &entry.event {
        Event::Executed { command, .. } if matches!(**command, Command::Renew(_)) => Some(entry.at),
        _ => None,
    });
    at.collect()
}

#[tokio::test(start_paused = true)]
async fn slow_network_loses_no_lock() {
    // With a lease of 2 s, an attempt to renew takes at most 200 ms.
    for one_way in [ms(1), ms(99), ms(120), ms(250), ms(400)] {
        let (server, [(a, network)]) = connected();
        let mutex = mutex_of(&a).lease(secs(2));
        let guard = held(mutex.try_lock().await);
        network.set_latency(Latency::fixed(one_way));
        server.advance(secs(60)).await;
        assert!(guard.is_valid(), "{one_way:?} each way");
        let count = renewals(&server).len();
        // One every 583 to 667 ms, or every 250 ms if each reply arrives after the next attempt.
        let max = if one_way < ms(100) { 104 } else { 250 };
        assert!((60..=max).contains(&count), "{one_way:?}: {count}");
    }
}

/// It takes 4 s to renew all locks. A call has 1 s.
#[tokio::test(start_paused = true)]
async fn busy_server_loses_no_lock() {
    let server = server();
    let mut backend = Wrapped::new(server.client("a"));
    backend.renewals_take = ms(2);
    let a = LockClient::new(backend);
    let mut guards = Vec::new();
    for number in 0..2_000 {
        let mutex = a.mutex(format!("k{number}")).expect("valid");
        guards.push(held(mutex.try_lock().await));
    }
    for second in 0..90 {
        server.advance(secs(1)).await;
        let oldest = guards
            .iter()
            .map(|guard| secs(30) - guard.valid_for())
            .max();
        // Its renewal is due after 10 s.
        assert!(oldest < Some(secs(20)), "{oldest:?} after {second} s");
    }
}

#[tokio::test(start_paused = true)]
async fn late_reply_counts_from_its_own_request() {
    let (server, [(a, network)]) = connected();
    let mutex = mutex_of(&a).lease(secs(2));
    let guard = held(mutex.try_lock().await);
    network.inject_into(Call::Renew, Fault::DelayReply(ms(700)));
    // Two more attempts, 250 to 300 ms and 500 to 600 ms after the first.
    network.inject_into(Call::Renew, Fault::LoseRequest);
    network.inject_into(Call::Renew, Fault::LoseRequest);
    while renewals(&server).is_empty() {
        server.advance(ms(1)).await;
    }
    let sent = renewals(&server)[0] - ms(1);
    server.advance(sent + ms(701) - server.elapsed()).await;
    assert_eq!(network.pending_faults(), 0, "two more attempts were sent");
    let before = guard.valid_for();
    server.advance(ms(1)).await;
    assert_eq!(server.elapsed(), sent + ms(702));
    // The lease from the send on, less a drift allowance of 1 % + 10 ms.
    assert_eq!(guard.valid_for(), ms(2_000 - 20 - 10 - 702));
    assert!(before < guard.valid_for());
    server.advance(secs(60)).await;
    assert!(guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn offer_is_confirmed_soon_unless_released_before() {
    for (hold, expected) in [(ms(0), 0), (ms(48), 0), (ms(60), 1)] {
        let (server, [a, b]) = clients();
        let guard = held(mutex_of(&a).try_lock().await);
        let waiting = wait(&b);
        server.advance(ms(500)).await;
        guard.release().await.expect("answered");
        let second = waiting.await.expect("no panic").expect("granted");
        let taken = server.elapsed();
        server.advance(hold).await;
        assert!(second.is_valid());
        second.release().await.expect("answered");
        server.advance(ms(500)).await;
        let renewals = renewals(&server);
        assert_eq!(renewals.len(), expected, "held for {hold:?}");
        if let Some(at) = renewals.first() {
            assert_eq!(*at, taken + ms(51));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn failing_release_delays_no_other() {
    // The release fails immediately, or after a timeout.
    for hangs in [Duration::ZERO, ms(900)] {
        let server = server();
        let mut backend = Wrapped::new(server.client("a"));
        let stuck = Key::new("stuck").expect("valid");
        backend.stuck = Some((stuck, hangs));
        let a = LockClient::new(backend);
        let (b, _) = client(&server, "b");
        drop(held(a.mutex("stuck").expect("valid").try_lock().await));
        server.advance(secs(5)).await;
        for n in 0..40 {
            let key = format!("k{n}");
            let guard = held(a.mutex(&key).expect("valid").try_lock().await);
            server.advance(ms(37)).await;
            drop(guard);
            server.advance(ms(1)).await;
            let seen = b.inspect(&key).await.expect("answered");
            assert!(seen.holders().is_empty(), "{key} {hangs:?}");
        }
    }
}

/// The release of the last hold is still in flight. The client can't tell whether the server still has the holder.
#[tokio::test(start_paused = true)]
async fn hold_nested_during_the_last_release_is_renewed() {
    let (server, [(a, network), (b, _)]) = connected();
    let rw = reentrant_rw(&a);
    let writer = rw.write().await.expect("free");
    let written = writer.fencing_token();
    network.inject_into(Call::Release, Fault::DelayRequest(ms(100)));
    drop(writer);
    server.advance(ms(10)).await;
    let reader = rw.read().await.expect("nested");
    assert_eq!(reader.fencing_token(), written);
    server.advance(ms(100)).await;
    server.advance(secs(100)).await;
    assert!(reader.is_valid(), "the guard is renewed");
    // Dropping the write hold was a downgrade. The reply to a renewal had the new token.
    let shown = b.inspect("k").await.expect("answered");
    assert_eq!(shown.held_tokens(), [reader.fencing_token()]);
    assert!(reader.fencing_token() > written);
    reader.release().await.expect("answered");
    server.advance(ms(100)).await;
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn panic_of_the_backend_stops_no_renewal() {
    let server = server();
    let backend = Wrapped::new(server.client("a"));
    let panics = Arc::clone(&backend.panics);
    let a = LockClient::new(backend);
    let guard = lock(&a).await;
    panics.store(1, Ordering::SeqCst);
    server.advance(secs(120)).await;
    assert_eq!(panics.load(Ordering::SeqCst), 0);
    assert!(guard.is_valid());
}
