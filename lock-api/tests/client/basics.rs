//! Acquiring and releasing every kind of lock.

use leasehold_api::{Error, Loss, Upgrade};

use crate::support::{client, contended, held, ms, secs, server, timed_out};

#[tokio::test(start_paused = true)]
async fn mutex_is_exclusive_until_released() {
    let server = server();
    let (a, _) = client(&server, "a");
    let (b, _) = client(&server, "b");
    let guard = a.mutex("k").expect("valid").lock().await.expect("free");
    assert!(guard.is_valid());
    contended(&b.mutex("k").expect("valid").try_lock().await);
    timed_out(
        &b.mutex("k").expect("valid").try_lock_for(secs(2)).await,
        secs(2),
    );
    let released = guard.release().await.expect("answered");
    assert_eq!(released, 0);
    assert!(!guard.is_valid());
    let second = held(b.mutex("k").expect("valid").try_lock().await);
    assert!(second.fencing_token() > guard.fencing_token());
    assert_eq!(guard.release().await.expect("the same again"), released);
}

#[tokio::test(start_paused = true)]
async fn dropped_guard_is_released_to_the_waiter() {
    let server = server();
    let (a, _) = client(&server, "a");
    let (b, _) = client(&server, "b");
    let guard = a.mutex("k").expect("valid").lock().await.expect("free");
    let waiting = tokio::spawn(async move {
        let guard = b.mutex("k").expect("valid").lock().await.expect("granted");
        (guard.is_valid(), b, guard)
    });
    server.advance(secs(3)).await;
    assert!(!waiting.is_finished());
    drop(guard);
    server.advance(ms(100)).await;
    assert!(waiting.is_finished());
    let (valid, ..) = waiting.await.expect("no panic");
    assert!(valid);
}

#[tokio::test(start_paused = true)]
async fn lock_is_renewed_for_hours() {
    let server = server();
    let (a, _) = client(&server, "a");
    let (b, _) = client(&server, "b");
    let guard = a.mutex("k").expect("valid").lock().await.expect("free");
    server.advance(secs(3 * 3600)).await;
    assert!(guard.is_valid());
    contended(&b.mutex("k").expect("valid").try_lock().await);
    assert_eq!(guard.release().await.expect("answered"), 0);
}

#[tokio::test(start_paused = true)]
async fn fixed_lease_is_lost_before_the_server_frees_the_key() {
    let server = server();
    let (a, _) = client(&server, "a");
    let (b, _) = client(&server, "b");
    let mutex = a.mutex("k").expect("valid").lease(secs(5)).fixed_lease();
    let guard = mutex.lock().await.expect("free");
    let lost = guard.lost();
    assert_eq!(lost.await, Loss::Deadline);
    assert!(!guard.is_valid());
    contended(&b.mutex("k").expect("valid").try_lock().await);
    server.advance(ms(100)).await;
    let _second = held(b.mutex("k").expect("valid").try_lock().await);
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
}

#[tokio::test(start_paused = true)]
async fn nested_holds_share_a_holder_and_are_released_in_any_order() {
    let server = server();
    let (a, _) = client(&server, "a");
    let (b, _) = client(&server, "b");
    let mutex = a.mutex("k").expect("valid").reentrant().expect("supported");
    let outer = mutex.lock().await.expect("free");
    let inner = held(mutex.try_lock().await);
    assert_eq!(outer.fencing_token(), inner.fencing_token());
    assert_eq!(outer.release().await.expect("answered"), 1);
    contended(&b.mutex("k").expect("valid").try_lock().await);
    assert!(inner.is_valid());
    assert_eq!(inner.release().await.expect("answered"), 0);
    let _free = held(b.mutex("k").expect("valid").try_lock().await);
}

#[tokio::test(start_paused = true)]
async fn readers_share_and_convert() {
    let server = server();
    let (a, _) = client(&server, "a");
    let (b, _) = client(&server, "b");
    let one = held(a.rw_lock("k").expect("valid").try_read().await);
    let two = held(b.rw_lock("k").expect("valid").try_read().await);
    assert_eq!(one.fencing_token(), two.fencing_token());
    contended(&b.rw_lock("k").expect("valid").try_write().await);
    let Upgrade::NotSoleHolder(one) = one.try_upgrade().await.expect("answered") else {
        panic!("upgraded next to another reader");
    };
    let read = one.fencing_token();
    drop(two.release().await);
    let Upgrade::Upgraded(writer) = one.try_upgrade().await.expect("answered") else {
        panic!("not upgraded");
    };
    assert!(writer.fencing_token() > read);
    contended(&b.rw_lock("k").expect("valid").try_read().await);
    let written = writer.fencing_token();
    let reader = writer.downgrade().await.expect("answered");
    assert!(reader.fencing_token() > written);
    let _joined = held(b.rw_lock("k").expect("valid").try_read().await);
}

#[tokio::test(start_paused = true)]
async fn permits_add_up_to_the_capacity() {
    let server = server();
    let (a, _) = client(&server, "a");
    let semaphore = a.semaphore("k", 3).expect("valid");
    let two = held(semaphore.clone().permits(2).try_acquire().await);
    contended(&semaphore.clone().permits(2).try_acquire().await);
    let _one = held(semaphore.try_acquire().await);
    drop(two);
    let _two = held(semaphore.clone().permits(2).try_acquire_for(secs(1)).await);
}

#[tokio::test(start_paused = true)]
async fn with_runs_a_body_and_releases() {
    let server = server();
    let (a, _) = client(&server, "a");
    let a2 = a.clone();
    let mutex = a.mutex("k").expect("valid");
    let seen = tokio::spawn(async move {
        let body = async |guard: &leasehold_api::MutexGuard| {
            tokio::task::yield_now().await;
            guard.fencing_token()
        };
        mutex.with(body).await
    });
    let token = seen.await.expect("no panic").expect("held");
    let next = held(a2.mutex("k").expect("valid").try_lock().await);
    assert!(next.fencing_token() > token);
}
