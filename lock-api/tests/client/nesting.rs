//! Several holds of one owner: which of them belong to one holder, and which are lost with it.

use futures_util::FutureExt as _;
use leasehold_api::Loss;
use leasehold_sim::{Call, Data, Fault, SimOptions, SimServer, Tail};

use crate::support::{
    client, connected, lock, ms, reentrant_mutex, reentrant_rw, rw_lock_of, secs, timed_out,
};

/// The server forgets the hold, and another client has its turn. Then the same owner takes two more holds at once. Each of
/// their answers counts both.
#[tokio::test(start_paused = true)]
async fn holds_that_are_granted_together_revive_no_older_one() {
    let (server, [(a, network), (b, _)]) = connected();
    // Nothing renews a fixed lease, and so learns of the loss.
    let mutex = reentrant_mutex(&a).fixed_lease();
    let first = mutex.lock().await.expect("free");
    server.restart(Data::Lost);
    lock(&b).await.release().await.expect("answered");
    network.inject_into(Call::Acquire, Fault::LoseReply);
    let (second, third) = tokio::join!(mutex.lock(), mutex.lock());
    let (second, third) = (second.expect("free"), third.expect("nested"));
    assert_eq!(network.pending_faults(), 0);
    assert_eq!(first.lost().now_or_never(), Some(Loss::Unknown));
    assert_eq!(second.fencing_token(), third.fencing_token());
    assert!(second.is_valid() && third.is_valid());
}

/// Another reader keeps the epoch, so all holds have the same token.
#[tokio::test(start_paused = true)]
async fn last_counted_release_ends_the_guards_that_the_server_has_forgotten() {
    let server = SimServer::with_options(SimOptions::new(1).journal(100));
    let ((a, network), (b, _)) = (client(&server, "a"), client(&server, "b"));
    let rw = reentrant_rw(&a).fixed_lease();
    let _theirs = rw_lock_of(&b).read().await.expect("free");
    let first = rw.read().await.expect("shared");
    server.fail_over(Tail::Commands(1));
    network.inject_into(Call::Acquire, Fault::LoseReply);
    let (second, third) = tokio::join!(rw.read(), rw.read());
    let (second, third) = (second.expect("shared"), third.expect("nested"));
    assert!(first.is_valid(), "nobody has told it");
    second.release().await.expect("answered");
    third.release().await.expect("answered");
    assert_eq!(first.lost().now_or_never(), Some(Loss::Unknown));
}

/// The first holder has ended. A new one counts two holds, of which one was given up.
#[tokio::test(start_paused = true)]
async fn released_guard_lends_no_deadline_to_a_shorter_lease() {
    let (_, [(a, network)]) = connected();
    let long = reentrant_rw(&a);
    let short = long.clone().lease(secs(5)).fixed_lease();
    let first = long.read().await.expect("free");
    first.release().await.expect("answered");
    for _ in 0..3 {
        network.inject_into(Call::Release, Fault::LoseRequest);
    }
    network.inject_into(Call::Acquire, Fault::LoseReply);
    let given_up = short.try_read_for(ms(500)).await;
    timed_out(&given_up, ms(500));
    let reader = short.read().await.expect("nested");
    assert!(reader.valid_for() <= secs(5), "{:?}", reader.valid_for());
    drop(first);
}

/// The token of readers grows when the last write hold beside them is released, which the client doesn't know yet.
#[tokio::test(start_paused = true)]
async fn reader_that_enters_again_spares_the_reader_before() {
    let (server, [(a, network)]) = connected();
    let rw = reentrant_rw(&a);
    let writer = rw.write().await.expect("free");
    let reader = rw.read().await.expect("nested");
    network.inject_into(Call::Release, Fault::LoseReply);
    let releasing = tokio::spawn(async move { writer.release().await });
    server.advance(ms(100)).await;
    let again = rw.read().await.expect("nested");
    assert_eq!(again.fencing_token(), reader.fencing_token());
    drop(releasing.await.expect("no panic"));
    server.advance(secs(60)).await;
    assert!(reader.is_valid() && again.is_valid());
}

/// The same, and the answer to the reader is older than that release, and arrives later.
#[tokio::test(start_paused = true)]
async fn late_answer_to_a_reader_is_a_hold() {
    let (server, [(a, network)]) = connected();
    let rw = reentrant_rw(&a);
    let writer = rw.write().await.expect("free");
    let _reader = rw.read().await.expect("nested");
    network.inject_into(Call::Acquire, Fault::DelayReply(ms(300)));
    let entering = tokio::spawn({
        let rw = rw.clone();
        async move { rw.read().await }
    });
    server.advance(ms(100)).await;
    writer.release().await.expect("answered");
    let late = entering.await.expect("no panic").expect("nested");
    server.advance(secs(60)).await;
    assert!(late.is_valid());
}
