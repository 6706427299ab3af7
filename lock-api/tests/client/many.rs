//! Several keys under one guard: acquired in order, all or none, with one deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_api::{
    Error, ForceMode, Key, LockClient, Loss, MultiGuard, MultiLock, Outcome, Refused,
};
use leasehold_sim::tools::Content;
use leasehold_sim::{Call, Fault, Latency, SimOptions, SimServer};

use crate::support::{
    assert_error, assert_is, client, clients, connected, contended, force, held, invalid, ms,
    refused_by, secs,
};

fn mutexes(locks: &LockClient, keys: &[&str]) -> MultiLock {
    locks.mutexes(keys).expect("valid keys")
}

async fn assert_free(locks: &LockClient, keys: &[&str]) {
    for key in keys {
        let view = locks.inspect(key).await.expect("answered");
        let left = (view.holder_count(), view.waiter_count());
        assert_eq!(left, (0, 0), "{view}");
    }
}

#[tokio::test(start_paused = true)]
async fn keys_are_acquired_in_order_and_released_in_one_batch() {
    let (server, [a, b]) = clients();
    let many = mutexes(&a, &["d", "c", "a", "b"]);
    let order: Vec<&str> = many.keys().map(|key| key.as_str()).collect();
    assert_eq!(order, ["a", "b", "c", "d"]);
    let guard = many.lock().await.expect("free");
    let tokens: Vec<_> = guard.fencing_tokens().map(|(_, token)| token).collect();
    assert_eq!(guard.fencing_token("c").expect("its key"), tokens[2]);
    let other = guard.fencing_token("e").expect_err("not its key");
    assert_eq!(other.key().map(Key::as_str), Some("e"), "{other:?}");
    assert_eq!(other.to_string(), "key \"e\": the guard does not hold it");
    invalid(guard.fencing_token(""));
    server.advance(secs(100)).await;
    assert!(guard.is_valid(), "renewed in the background");

    let before = sent(&server, Call::Release);
    let batches = || sent(&server, Call::Release) - before;
    guard.release().await.expect("answered");
    assert_eq!(batches(), 1);
    guard.release().await.expect("the same result again");
    assert_eq!(batches(), 1, "nothing is sent twice");
    assert_error!(guard.renew().await, Released);
    assert_free(&b, &["a", "b", "c", "d"]).await;
}

#[tokio::test(start_paused = true)]
async fn failed_release_names_the_keys() {
    let (_, [(a, network)]) = connected();
    let guard = lock_all(&mutexes(&a, &["a", "b"])).await;
    network.isolate();
    let failed = guard.release().await.expect_err("no answer");
    let keys = failed.failed().iter().map(|(key, _)| key.as_str());
    assert_eq!(keys.collect::<Vec<_>>(), ["a", "b"]);
    assert!(failed.released().is_empty(), "{failed:?}");
    let says = "2 of 2 keys were lost or not released, such as \"a\"";
    assert_eq!(failed.to_string(), says);
    let source = std::error::Error::source(&failed).expect("the first error");
    let (_, first) = &failed.failed()[0];
    assert_eq!(source.to_string(), first.to_string());
    assert!(Error::from(failed).is_transient());
    network.rejoin();
    guard.release().await.expect("answered");
}

/// The number of calls of one kind.
fn sent(server: &SimServer, kind: Call) -> usize {
    let messages = server.messages();
    let calls = messages.iter().filter(
        |message| matches!(&message.content, Content::Request { call, .. } if *call == kind),
    );
    calls.count()
}

#[tokio::test(start_paused = true)]
async fn invalid_input_is_refused_before_any_io() {
    let (server, [a]) = clients();
    invalid(a.mutexes(["a", ""]));
    let short = mutexes(&a, &["a"]).lease(ms(1));
    invalid(short.lock().await);
    assert!(server.log().is_empty(), "{}", server.timeline());
}

#[tokio::test(start_paused = true)]
async fn one_deadline_applies_to_all_keys() {
    let (server, [a, b]) = clients();
    let first = b.mutex("a").expect("valid").lock().await.expect("free");
    let _second = b.mutex("b").expect("valid").lock().await.expect("free");
    let releases = async {
        server.advance(secs(2)).await;
        first.release().await.expect("answered");
    };
    let many = mutexes(&a, &["a", "b"]);
    let (outcome, ()) = tokio::join!(many.try_lock_for(secs(3)), releases);
    match outcome {
        Ok(Outcome::Contended(timed_out)) => {
            assert_eq!((timed_out.key.as_str(), timed_out.timed_out), ("b", true));
            assert_eq!(timed_out.ahead, Some(0));
            assert!(timed_out.retry_after < secs(1), "{timed_out:?}");
            assert_eq!(timed_out.waited, secs(3));
        }
        other => panic!("{other:?}"),
    }
    server.advance(ms(20)).await;
    assert_free(&b, &["a"]).await;
    let view = b.inspect("b").await.expect("answered");
    assert_eq!(view.waiter_count(), 0, "{view}");
    let none = many.try_lock_for(Duration::ZERO).await;
    assert_is!(none => Ok(Outcome::Contended(none)) if none.key.as_str() == "b" && !none.timed_out);
}

#[tokio::test(start_paused = true)]
async fn error_names_its_key_and_releases_the_others() {
    let (server, [a, b]) = clients();
    let _other = b.rw_lock("b").expect("valid").read().await.expect("free");
    let result = mutexes(&a, &["a", "b"]).lock().await;
    assert_is!(refused_by(&result) => Refused::Mismatch { .. });
    let refused = result.expect_err("a mismatch");
    assert_eq!(refused.key().expect("named").as_str(), "b");
    server.advance(ms(20)).await;
    assert_free(&b, &["a"]).await;
}

#[tokio::test(start_paused = true)]
async fn loss_during_the_wait_starts_over() {
    let (server, [a, b]) = clients();
    let last = b.mutex("c").expect("valid").lock().await.expect("free");
    let many = mutexes(&a, &["a", "b", "c"]);
    let meanwhile = async {
        server.advance(secs(2)).await;
        force(&b, "a", ForceMode::Now).await;
        let thief = held(b.mutex("a").expect("valid").try_lock().await);
        server.advance(secs(60)).await;
        assert_free(&b, &["b"]).await;
        let view = b.inspect("c").await.expect("answered");
        assert_eq!(view.waiter_count(), 0, "the waiter is gone: {view}");
        let stolen = thief.fencing_token();
        thief.release().await.expect("answered");
        server.advance(secs(1)).await;
        last.release().await.expect("answered");
        stolen
    };
    let (outcome, stolen) = tokio::join!(many.try_lock_for(secs(100)), meanwhile);
    let guard = outcome.expect("answered").into_guard().expect("all keys");
    assert!(guard.is_valid());
    assert!(guard.fencing_token("a").expect("its key") > stolen);
}

/// The news of the forced release is lost, as over a connection of its own. The grant of the last key comes
/// with a poll, or at once.
#[tokio::test(start_paused = true)]
async fn key_that_was_removed_during_the_wait_is_not_in_the_guard() {
    for fixed in [false, true] {
        let (server, [a, b]) = clients();
        server.refuse_publish();
        let wait = b.mutex("b").expect("valid").lock().await.expect("free");
        let many = mutexes(&a, &["a", "b", "c"]).lease(secs(9));
        let many = if fixed { many.fixed_lease() } else { many };
        let meanwhile = async {
            server.advance(ms(1_500)).await;
            let removed = b.inspect("a").await.expect("answered").held_tokens();
            force(&b, "a", ForceMode::Now).await;
            wait.release().await.expect("answered");
            removed[0]
        };
        let (guard, removed) = tokio::join!(many.lock(), meanwhile);
        let guard = guard.expect("all keys");
        assert!(guard.fencing_token("a").expect("its key") > removed);
        contended(&b.mutex("a").expect("valid").try_lock().await);
        guard.release().await.expect("answered");
    }
}

/// A call that waited sends one renewal for the keys that it had before. One that didn't wait sends none.
#[tokio::test(start_paused = true)]
async fn only_a_call_that_waited_checks_its_keys() {
    for (busy, checks) in [(None, 0), (Some("a"), 0), (Some("c"), 1)] {
        let (server, [a, b]) = clients();
        let many = mutexes(&a, &["a", "b", "c"]);
        let mut other = None;
        if let Some(key) = busy {
            other = Some(held(b.mutex(key).expect("valid").try_lock().await));
        }
        let releases = async {
            server.advance(secs(1)).await;
            drop(other);
        };
        let (guard, ()) = tokio::join!(many.lock(), releases);
        let guard = guard.expect("all keys");
        assert_eq!(sent(&server, Call::Renew), checks, "{busy:?}");
        guard.release().await.expect("answered");
    }
}

#[tokio::test(start_paused = true)]
async fn check_after_a_wait_does_not_extend_a_fixed_lease() {
    let (server, [a, b]) = clients();
    let wait = b.mutex("b").expect("valid").lock().await.expect("free");
    let many = mutexes(&a, &["a", "b"]).lease(secs(9)).fixed_lease();
    let released = async {
        server.advance(secs(3)).await;
        wait.release().await.expect("answered");
    };
    let (guard, ()) = tokio::join!(many.lock(), released);
    let guard = guard.expect("both keys");
    let left = guard.valid_for();
    assert!(left > ms(5_500) && left < secs(6), "{left:?}");
    server.advance(left).await;
    assert!(!guard.is_valid());
}

async fn lock_all(many: &MultiLock) -> MultiGuard {
    many.lock().await.expect("free")
}

#[tokio::test(start_paused = true)]
async fn loss_of_one_key_loses_the_guard() {
    let (server, [a, b]) = clients();
    let many = mutexes(&a, &["a", "b"]);
    let guard = lock_all(&many).await;
    let lost = guard.lost();
    let body = guard.protect(std::future::pending::<()>());
    let forces = async {
        server.advance(secs(1)).await;
        force(&b, "b", ForceMode::Now).await;
    };
    let (stopped, (key, loss), ()) = tokio::join!(body, lost, forces);
    assert_eq!((key.as_str(), loss), ("b", Loss::Forced));
    let stopped = stopped.expect_err("the body never completes");
    let says = "key \"b\": the lock was lost: it was released by force";
    assert_eq!(stopped.to_string(), says);
    assert!(!guard.is_valid());
    let (key, loss) = guard.loss_reason().expect("lost");
    assert_eq!((key.as_str(), loss), ("b", Loss::Forced));
    assert_eq!(guard.valid_for(), Duration::ZERO);
    assert_error!(guard.renew().await, Lost);
    server.advance(secs(60)).await;
    contended(&b.mutex("a").expect("valid").try_lock().await);
    drop(guard);

    let with = many.with(async |_| {
        force(&b, "a", ForceMode::Now).await;
        std::future::pending::<()>().await;
    });
    assert_is!(with.await => Err(Error::Lost { key, .. }) if key.as_str() == "a");
}

#[tokio::test(start_paused = true)]
async fn renew_renews_all_and_returns_the_shortest_validity() {
    let (server, [(a, backend)]) = connected();
    let many = mutexes(&a, &["a", "b"]).lease(secs(10)).fixed_lease();
    let guard = lock_all(&many).await;
    server.advance(secs(5)).await;
    assert!(guard.valid_for() < secs(5));
    assert!(guard.renew().await.expect("answered") > secs(9));
    backend.inject_into(Call::Renew, Fault::LoseReply);
    let failed = guard.renew().await.expect_err("no reply");
    assert!(failed.is_transient(), "{failed}");
    assert!(guard.is_valid(), "a transient error is no loss");
}

/// Clients name the same keys in different orders. All of them finish, and one at a time holds the
/// keys.
#[tokio::test(start_paused = true)]
async fn opposite_order_does_not_deadlock() {
    for seed in 0..20 {
        let latency = Latency::between(Duration::ZERO, ms(3));
        let server = SimServer::with_options(SimOptions::new(seed).latency(latency));
        let inside = Arc::new(AtomicU32::new(0));
        let tasks: Vec<_> = (0..6)
            .map(|n| {
                let (locks, _) = client(&server, &format!("c{n}"));
                tokio::spawn(worker(locks, n, Arc::clone(&inside)))
            })
            .collect();
        let all = futures_util::future::try_join_all(tasks);
        let finished = tokio::time::timeout(secs(60), all).await;
        let finished =
            finished.unwrap_or_else(|_| panic!("seed {seed} deadlocks:\n{}", server.timeline()));
        finished.expect("no panic");
        server.advance(ms(50)).await;
        server.assert_idle();
    }
}

async fn worker(locks: LockClient, n: u32, inside: Arc<AtomicU32>) {
    let keys = match n % 3 {
        0 => ["a", "b", "c"],
        1 => ["c", "b", "a"],
        _ => ["b", "c", "a"],
    };
    let many = mutexes(&locks, &keys);
    for _ in 0..4 {
        let guard = many.lock().await.expect("granted");
        let others = inside.fetch_add(1, Ordering::SeqCst);
        assert_eq!(others, 0, "one client at a time");
        tokio::time::sleep(ms(5)).await;
        assert!(guard.is_valid());
        inside.fetch_sub(1, Ordering::SeqCst);
        drop(guard);
    }
}
