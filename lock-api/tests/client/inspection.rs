//! Inspections.

use leasehold_api::{Label, LockClient};

use crate::support::{client, held, ms, secs, server};

#[tokio::test(start_paused = true)]
async fn inspection_shows_holders_and_waiters() {
    let server = server();
    let named = |name: &str| {
        let label = Label::new(name).expect("short");
        LockClient::builder(server.client(name))
            .label(label)
            .build()
            .expect("valid")
    };
    let (a, b) = (named("a"), named("b"));
    let idle = a.inspect("pages").await.expect("answered");
    assert!(!idle.is_held() && !idle.is_read_locked() && !idle.is_write_locked());
    insta::assert_snapshot!("idle", idle);

    let _one = a
        .rw_lock("pages")
        .expect("valid")
        .read()
        .await
        .expect("free");
    let nested = b.rw_lock("pages").expect("valid").reentrant();
    let _two = nested.read().await.expect("shared");
    let _three = nested.read().await.expect("nested");
    let writer = a.rw_lock("pages").expect("valid");
    let writing = tokio::spawn(async move { writer.write().await });
    server.advance(ms(100)).await;
    let read = b.inspect("pages").await.expect("answered");
    assert!(read.is_held() && read.is_read_locked() && !read.is_write_locked());
    assert_eq!(read.holder_count(), 2);
    assert_eq!(read.held_tokens().len(), 1);
    insta::assert_snapshot!("readers_and_a_waiting_writer", read);
    writing.abort();

    let mutex = held(a.mutex("m").expect("valid").try_lock().await);
    let locked = a.inspect("m").await.expect("answered");
    assert!(locked.is_held() && !locked.is_read_locked() && !locked.is_write_locked());
    assert_eq!(locked.held_tokens(), [mutex.fencing_token()]);

    let (c, _) = client(&server, "c");
    let _permits = c
        .semaphore("s", 5)
        .expect("valid")
        .lease(secs(10))
        .acquire(2)
        .await;
    let permits = a.inspect("s").await.expect("answered");
    insta::assert_snapshot!("semaphore", permits);
}
