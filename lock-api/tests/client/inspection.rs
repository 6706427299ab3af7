//! Inspections.

use leasehold_api::{Label, LockClient, Refused};

use crate::support::{
    assert_error, assert_is, client, clients, connected, ms, refused_by, secs, server,
};

#[tokio::test(start_paused = true)]
async fn inspection_shows_holders_and_waiters() {
    let server = server();
    let named = |name: &str| {
        let label = Label::new(name).expect("short");
        let builder = LockClient::builder(server.client(name)).label(label);
        builder.build().expect("valid")
    };
    let (a, b) = (named("a"), named("b"));
    let idle = a.inspect("pages").await.expect("answered");
    insta::assert_snapshot!("idle", idle);

    let pages = |locks: &LockClient| locks.rw_lock("pages").expect("valid");
    let _one = pages(&a).read().await.expect("free");
    let nested = pages(&b).reentrant().expect("supported");
    let _two = nested.read().await.expect("shared");
    let _three = nested.read().await.expect("nested");
    let writer = pages(&a);
    let writing = tokio::spawn(async move { writer.write().await });
    server.advance(ms(100)).await;
    let read = b.inspect("pages").await.expect("answered");
    assert_eq!(read.holder_count(), 2);
    assert_eq!(read.held_tokens().len(), 1);
    insta::assert_snapshot!("readers_and_a_waiting_writer", read);
    writing.abort();

    let (c, _) = client(&server, "c");
    let slots = c.semaphore("s", 5).expect("valid").lease(secs(10));
    let _permit = slots.acquire().await.expect("free");
    let _permits = slots.permits(2).acquire().await.expect("free");
    let permits = a.inspect("s").await.expect("answered");
    insta::assert_snapshot!("semaphore", permits);

    let _mutex = a.mutex("m").expect("valid").lock().await.expect("free");
    let locked = b.inspect("m").await.expect("answered");
    assert!(locked.is_held() && !locked.is_read_locked() && !locked.is_write_locked());
}

#[tokio::test(start_paused = true)]
async fn available_permits_are_those_that_nobody_holds() {
    let (server, [(a, network), (b, _)]) = connected();
    let slots = a.semaphore("s", 5).expect("valid").lease(secs(10));
    let available = async || slots.available_permits().await.expect("answered");
    assert_eq!(available().await, 5, "nobody has used it");
    let two = slots.permits(2).acquire().await.expect("free");
    let one = slots.acquire().await.expect("free");
    assert_eq!(available().await, 2);

    // A large request waits, and the permits stay free.
    let large = b.semaphore("s", 5).expect("valid");
    let waiting = tokio::spawn(async move { large.permits(4).acquire().await });
    server.advance(secs(1)).await;
    assert_eq!(available().await, 2);
    two.release().await.expect("answered");
    let four = waiting.await.expect("no panic").expect("granted");
    assert_eq!(available().await, 0);
    four.release().await.expect("answered");
    assert_eq!(available().await, 4, "the other one is taken");

    let other = b.semaphore("s", 6).expect("valid");
    let reason = refused_by(&other.available_permits().await);
    assert_is!(reason => Refused::Mismatch { lives_with } if lives_with.capacity() == 5);
    one.release().await.expect("answered");
    server.advance(secs(10)).await;
    assert_eq!(other.available_permits().await.expect("idle"), 6);
    network.isolate();
    assert_error!(slots.available_permits().await, Unavailable);
}

/// More holders than an inspection lists.
#[tokio::test(start_paused = true)]
async fn available_permits_count_holders_that_are_not_listed() {
    let (_, [a]) = clients();
    let slots = a.semaphore("s", 5_000).expect("valid");
    let mut held = Vec::new();
    for _ in 0..1_200 {
        held.push(slots.permits(3).acquire().await.expect("free"));
    }
    let view = a.inspect("s").await.expect("answered");
    assert!(view.holders().len() < held.len(), "it lists all holders");
    let available = slots.available_permits().await.expect("answered");
    assert_eq!(available, 5_000 - 3 * 1_200);
}
