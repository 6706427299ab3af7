//! Several keys at once: order, all or nothing, one deadline, one guard.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_api::bounds::MAX_KEYS_AT_ONCE;
use leasehold_api::{
    Error, ForceHow, InvalidInput, LockClient, Loss, Many, ManyGuard, ManyOutcome, Policy, Refused,
    ReleaseOutcome,
};
use leasehold_sim::{Call, Content, Fault, Latency, SimOptions, SimServer};

use crate::support::{client, contended, held, ms, secs, server};

fn mutexes(locks: &LockClient, keys: &[&str]) -> Many {
    locks.many().mutexes(keys).expect("valid keys")
}

async fn nothing_is_left(locks: &LockClient, keys: &[&str]) {
    for key in keys {
        let view = locks.inspect(key).await.expect("answered");
        let left = (view.holder_count(), view.waiter_count());
        assert_eq!(left, (0, 0), "{view}");
    }
}

async fn force(locks: &LockClient, key: &str) {
    let tokens = locks.inspect(key).await.expect("answered").held_tokens();
    let forced = locks.force_release(key, tokens, ForceHow::Now).await;
    forced.expect("answered");
}

#[tokio::test(start_paused = true)]
async fn all_kinds_are_taken_in_order_and_released_in_one_batch() {
    let server = server();
    let (a, _) = client(&server, "a");
    let (b, _) = client(&server, "b");
    let many = a.many().permits("d", 4, 1).expect("valid");
    let many = many.write("c").expect("valid").mutex("a").expect("valid");
    let many = many.read("b").expect("valid");
    let order: Vec<&str> = many.keys().map(|key| key.as_str()).collect();
    assert_eq!(order, ["a", "b", "c", "d"]);
    let guard = many.lock().await.expect("free");
    contended(&b.mutex("a").expect("valid").try_lock().await);
    contended(&b.rw_lock("c").expect("valid").try_read().await);
    drop(held(b.rw_lock("b").expect("valid").try_read().await));
    drop(held(
        b.semaphore("d", 4).expect("valid").try_acquire(3).await,
    ));
    let tokens: Vec<_> = guard
        .fencing_tokens()
        .expect("tokens")
        .into_iter()
        .map(|(_, token)| token)
        .collect();
    assert_eq!(guard.fencing_token("c").expect("tokens"), tokens[2]);
    let not_held = guard.fencing_token("e");
    assert!(
        matches!(not_held, Err(Error::InvalidInput(_))),
        "{not_held:?}"
    );
    server.advance(secs(100)).await;
    assert!(guard.is_valid(), "renewed in the background");

    let before = releases_sent(&server);
    let report = guard.release().await;
    assert_eq!(releases_sent(&server) - before, 1, "one batch");
    for ((key, release), expected) in report.iter().zip(order) {
        assert_eq!(key.as_str(), expected);
        assert!(matches!(
            release,
            Ok(ReleaseOutcome::Released { holds_left: 0 })
        ));
    }
    assert_eq!(guard.release().await.len(), 4, "the same again");
    assert!(matches!(guard.renew().await, Err(Error::Released { .. })));
    nothing_is_left(&b, &["a", "b", "c", "d"]).await;
}

/// Calls that end something.
fn releases_sent(server: &SimServer) -> usize {
    let is_end = |content: &Content| {
        matches!(
            content,
            Content::Request {
                call: Call::Release,
                ..
            }
        )
    };
    let messages = server.messages();
    messages
        .iter()
        .filter(|message| is_end(&message.content))
        .count()
}

#[tokio::test(start_paused = true)]
async fn bad_input_is_found_before_any_io() {
    let server = server();
    let (a, _) = client(&server, "a");
    let invalid = |result: Result<Many, Error>| match result {
        Err(Error::InvalidInput(problem)) => problem,
        other => panic!("{other:?}"),
    };
    let twice = mutexes(&a, &["a", "b"]).read("a");
    assert!(matches!(invalid(twice), InvalidInput::RepeatedKey { key } if key.as_str() == "a"));
    let names: Vec<String> = (0..=MAX_KEYS_AT_ONCE).map(|n| format!("k{n}")).collect();
    assert!(a.many().mutexes(&names[1..]).is_ok());
    assert_eq!(
        invalid(a.many().mutexes(&names)),
        InvalidInput::KeyCount {
            asked: MAX_KEYS_AT_ONCE + 1
        }
    );
    invalid(a.many().mutex(""));
    invalid(a.many().permits("s", 4, 5));
    let none = a.many().try_lock().await;
    assert!(matches!(
        none,
        Err(Error::InvalidInput(InvalidInput::KeyCount { asked: 0 }))
    ));
    let mixed = mutexes(&a, &["a"]).policy(Policy::ReaderPreference);
    assert!(matches!(
        mixed.lock().await,
        Err(Error::InvalidInput(InvalidInput::PolicyForKind { .. }))
    ));
    let short = mutexes(&a, &["a"]).lease(ms(1));
    assert!(matches!(short.lock().await, Err(Error::InvalidInput(_))));
    assert!(server.log().is_empty(), "{}", server.timeline());
}

#[tokio::test(start_paused = true)]
async fn a_try_says_which_key_is_held_and_keeps_nothing() {
    let server = server();
    let (a, _) = client(&server, "a");
    let (b, _) = client(&server, "b");
    let _guard = b.mutex("m").expect("valid").lock().await.expect("free");
    let began = server.elapsed();
    match mutexes(&a, &["a", "m", "z"]).try_lock().await {
        Ok(ManyOutcome::Contention { key, held }) => {
            assert_eq!(key.as_str(), "m");
            assert_eq!(held.holder.expect("told").as_str(), "b");
        }
        other => panic!("{other:?}"),
    }
    assert!(server.elapsed() - began < ms(20), "it did not wait");
    server.advance(ms(20)).await;
    nothing_is_left(&b, &["a", "z"]).await;
}

#[tokio::test(start_paused = true)]
async fn one_deadline_is_over_all_of_it() {
    let server = server();
    let (a, _) = client(&server, "a");
    let (b, _) = client(&server, "b");
    let first = b.mutex("a").expect("valid").lock().await.expect("free");
    let _second = b.mutex("b").expect("valid").lock().await.expect("free");
    let releases = async {
        server.advance(secs(2)).await;
        first.release().await.expect("answered");
    };
    let many = mutexes(&a, &["a", "b"]);
    let (outcome, ()) = tokio::join!(many.lock_within(secs(3)), releases);
    match outcome {
        Ok(ManyOutcome::TimedOut { key, timed_out }) => {
            assert_eq!(key.as_str(), "b");
            assert_eq!(timed_out.waited, secs(3));
        }
        other => panic!("{other:?}"),
    }
    server.advance(ms(20)).await;
    nothing_is_left(&b, &["a"]).await;
    let view = b.inspect("b").await.expect("answered");
    assert_eq!(view.waiter_count(), 0, "{view}");
    let none = many.lock_within(Duration::ZERO).await;
    assert!(matches!(none, Ok(ManyOutcome::TimedOut { key, .. }) if key.as_str() == "b"));
}

#[tokio::test(start_paused = true)]
async fn dropped_while_it_waits_it_leaves_nothing() {
    let server = server();
    let (a, _) = client(&server, "a");
    let (b, _) = client(&server, "b");
    let guard = b.mutex("b").expect("valid").lock().await.expect("free");
    let many = mutexes(&a, &["a", "b", "c"]);
    let waited = tokio::time::timeout(secs(2), many.lock()).await;
    assert!(waited.is_err());
    drop(guard);
    server.advance(ms(20)).await;
    nothing_is_left(&b, &["a", "b", "c"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_error_at_one_key_names_it_and_gives_the_others_back() {
    let server = server();
    let (a, _) = client(&server, "a");
    let (b, _) = client(&server, "b");
    let _other = b.rw_lock("b").expect("valid").read().await.expect("free");
    let refused = mutexes(&a, &["a", "b"]).lock().await.expect_err("a mutex?");
    assert_eq!(refused.key().expect("named").as_str(), "b");
    assert!(matches!(
        refused,
        Error::Refused {
            reason: Refused::Mismatch { .. },
            ..
        }
    ));
    server.advance(ms(20)).await;
    nothing_is_left(&b, &["a"]).await;
}

#[tokio::test(start_paused = true)]
async fn one_lost_while_another_is_waited_for_spoils_the_round() {
    let server = server();
    let (a, _) = client(&server, "a");
    let (b, _) = client(&server, "b");
    let last = b.mutex("c").expect("valid").lock().await.expect("free");
    let many = mutexes(&a, &["a", "b", "c"]);
    let meanwhile = async {
        server.advance(secs(2)).await;
        force(&b, "a").await;
        let thief = held(b.mutex("a").expect("valid").try_lock().await);
        server.advance(secs(60)).await;
        nothing_is_left(&b, &["b"]).await;
        let view = b.inspect("c").await.expect("answered");
        assert_eq!(view.waiter_count(), 0, "given up: {view}");
        let stolen = thief.fencing_token().expect("tokens");
        thief.release().await.expect("answered");
        server.advance(secs(1)).await;
        last.release().await.expect("answered");
        stolen
    };
    let (outcome, stolen) = tokio::join!(many.lock_within(secs(100)), meanwhile);
    let guard = outcome.expect("answered").acquired().expect("all at once");
    assert!(guard.is_valid());
    assert!(guard.fencing_token("a").expect("tokens") > stolen);
}

async fn all_at_once(many: &Many) -> ManyGuard {
    many.lock().await.expect("free")
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_one_is_the_loss_of_all() {
    let server = server();
    let (a, _) = client(&server, "a");
    let (b, _) = client(&server, "b");
    let many = mutexes(&a, &["a", "b"]);
    let guard = all_at_once(&many).await;
    let lost = guard.lost();
    let body = guard.protect(std::future::pending::<()>());
    let forces = async {
        server.advance(secs(1)).await;
        force(&b, "b").await;
    };
    let (stopped, (key, loss), ()) = tokio::join!(body, lost, forces);
    assert_eq!((key.as_str(), loss), ("b", Loss::Forced));
    let stopped = stopped.expect_err("it never ends by itself");
    assert_eq!(
        stopped.to_string(),
        "key \"b\": the lock was lost: it was released by force"
    );
    assert!(!guard.is_valid());
    assert_eq!(guard.valid_for(), Duration::ZERO);
    assert!(matches!(guard.renew().await, Err(Error::Lost { .. })));
    server.advance(secs(60)).await;
    contended(&b.mutex("a").expect("valid").try_lock().await);
    drop(guard);
    server.advance(ms(20)).await;
    drop(held(b.mutex("a").expect("valid").try_lock().await));

    let with = many.with(async |_| {
        force(&b, "a").await;
        std::future::pending::<()>().await;
    });
    assert!(matches!(with.await, Err(Error::Lost { key, .. }) if key.as_str() == "a"));
    let done = many.with(async |guard| guard.keys().len()).await;
    assert_eq!(done.expect("nobody interferes"), 2);
    nothing_is_left(&b, &["a", "b"]).await;
}

#[tokio::test(start_paused = true)]
async fn one_renewal_by_hand_renews_all_and_the_least_is_told() {
    let server = server();
    let (a, backend) = client(&server, "a");
    let many = mutexes(&a, &["a", "b"]).lease(secs(10)).fixed_lease();
    let guard = all_at_once(&many).await;
    server.advance(secs(5)).await;
    assert!(guard.valid_for() < secs(5));
    assert!(guard.renew().await.expect("answered") > secs(9));
    backend.inject_into(Call::Renew, Fault::LoseReply);
    let failed = guard.renew().await.expect_err("no answer");
    assert!(failed.is_transient(), "{failed}");
    assert!(guard.is_valid(), "a transient error is no loss");
}

/// Two sorts of clients name the same keys in opposite order, some in any order, some the mixed
/// kinds; everybody comes through, and nobody is inside together with another.
#[tokio::test(start_paused = true)]
async fn opposite_order_does_not_deadlock() {
    for seed in 0..60 {
        let latency = Latency::between(Duration::ZERO, ms(3));
        let server = SimServer::with_options(SimOptions::new(seed).with_latency(latency));
        let inside = Arc::new(AtomicU32::new(0));
        let tasks: Vec<_> = (0..6)
            .map(|n| {
                let (locks, _) = client(&server, &format!("c{n}"));
                tokio::spawn(worker(locks, n, Arc::clone(&inside)))
            })
            .collect();
        let all = futures_util::future::try_join_all(tasks);
        let ended = tokio::time::timeout(secs(60), all).await;
        assert!(
            ended.is_ok(),
            "seed {seed} deadlocks:\n{}",
            server.timeline()
        );
        ended.expect("just seen").expect("no panic");
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
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone inside");
        tokio::time::sleep(ms(5)).await;
        assert!(guard.is_valid());
        inside.fetch_sub(1, Ordering::SeqCst);
        drop(guard);
    }
}
