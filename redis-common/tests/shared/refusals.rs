//! Errors of the server: transient, permanent, or a foreign value. "Not executed" is reported only
//! if it is certain.

use std::future::poll_fn;
use std::pin::pin;
use std::slice::from_ref;
use std::task::Poll;
use std::time::Duration;

use leasehold_api::ConnectError;
use leasehold_api::{
    AcquireReply, BackendError, Key, Release, ReleaseReply, Renew, RenewReply, SessionId,
};
use leasehold_redis_common::Options;
use leasehold_test_servers::{RedisServer, ServerOptions};

use super::support::{
    Backend, RECOVERY, admin, connect, eventually, key, mutex, operation, session, soon,
    time_to_success,
};
use crate::client::connect_with;
use crate::constructors::CONSTRUCTORS;

/// A script that keeps the server busy for half a second or more.
const BUSY: &str = "for _ = 1, 5e7 do end";

async fn try_acquire(backend: &Backend, key: &Key, sequence: u64) -> Result<(), BackendError> {
    let before = soon(backend).await;
    let request = mutex(key, operation(session(1), sequence), before);
    match backend.acquire(from_ref(&request)).await.remove(0)?.reply {
        AcquireReply::Acquired(_) => Ok(()),
        other => panic!("{other:?}"),
    }
}

async fn release(backend: &Backend, key: &Key, sequence: u64) {
    let release = Release::new(key.clone(), operation(session(1), sequence));
    let answer = backend
        .release(&[release])
        .await
        .remove(0)
        .expect("an answer");
    assert!(
        matches!(answer.reply, ReleaseReply::Released { .. }),
        "{answer:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_scripts_are_sent_again() {
    let server = RedisServer::start();
    for (constructor, sequence) in CONSTRUCTORS.iter().zip(1..) {
        let backend = constructor.open(&server.url()).await;
        for _ in 0..3 {
            admin(&server.url(), &["SCRIPT", "FLUSH"]).await;
            try_acquire(&backend, &key("forgotten"), sequence)
                .await
                .expect("acquired");
        }
        admin(&server.url(), &["SCRIPT", "FLUSH"]).await;
        release(&backend, &key("forgotten"), sequence).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_value_is_untouched() {
    let server = RedisServer::start();
    let url = server.url();
    admin(&url, &["RPUSH", "leasehold:{foreign}", "mine"]).await;
    for constructor in &CONSTRUCTORS {
        let backend = constructor.open(&url).await;
        let error = try_acquire(&backend, &key("foreign"), 1).await;
        match error {
            Err(BackendError::ForeignValue { found, .. }) => {
                assert!(found.contains("list"), "{found}");
            }
            other => panic!("{}: {other:?}", constructor.name),
        }
        let value = admin(&url, &["LRANGE", "leasehold:{foreign}", "0", "-1"]).await;
        assert!(value.contains("mine"), "{value}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_server_refuses_new_holds_and_serves_old_ones() {
    let server = RedisServer::start();
    let url = server.url();
    for (constructor, sequence) in CONSTRUCTORS.iter().zip(1..) {
        let backend = constructor.open(&url).await;
        try_acquire(&backend, &key("held"), sequence)
            .await
            .expect("acquired");
        admin(&url, &["CONFIG", "SET", "maxmemory", "1"]).await;
        let error = try_acquire(&backend, &key("more"), sequence + 100).await;
        let error = error.expect_err("out of memory");
        assert!(matches!(error, BackendError::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("OOM"), "{error}");
        let held = operation(session(1), sequence);
        let renew = Renew::new(key("held"), held, Duration::from_secs(30)).expect("a good lease");
        let renewed = backend.renew(&[renew]).await.remove(0).expect("an answer");
        assert!(
            matches!(renewed.reply, RenewReply::Renewed { .. }),
            "{renewed:?}"
        );
        release(&backend, &key("held"), sequence).await;
        admin(&url, &["CONFIG", "SET", "maxmemory", "0"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_keys_are_lost_at_the_next_renewal() {
    let server = RedisServer::start();
    let url = server.url();
    for (constructor, sequence) in CONSTRUCTORS.iter().zip(1..) {
        let backend = constructor.open(&url).await;
        let held = mutex(
            &key(&format!("flushed {sequence}")),
            operation(session(1), sequence),
            soon(&backend).await,
        );
        let token = |reply: AcquireReply| match reply {
            AcquireReply::Acquired(acquired) => acquired.token,
            other => panic!("not acquired: {other:?}"),
        };
        let acquired = backend.acquire(from_ref(&held)).await.remove(0);
        let before = token(acquired.expect("an answer").reply);
        admin(&url, &["FLUSHALL"]).await;
        let renew = Renew::new(held.key.clone(), held.operation, Duration::from_secs(30));
        let renewed = backend
            .renew(&[renew.expect("a good lease")])
            .await
            .remove(0);
        let reply = renewed.expect("an answer").reply;
        assert!(matches!(reply, RenewReply::Lost(_)), "{reply:?}");
        let next = mutex(
            &held.key,
            operation(session(2), sequence),
            soon(&backend).await,
        );
        let acquired = backend.acquire(&[next]).await.remove(0);
        let after = token(acquired.expect("an answer").reply);
        assert!(after > before, "{}: {before} {after}", constructor.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_is_unavailable_until_it_is_promoted() {
    let server = RedisServer::start();
    let url = server.url();
    for (constructor, sequence) in CONSTRUCTORS.iter().zip(1..) {
        let backend = constructor.open(&url).await;
        try_acquire(&backend, &key("replica"), sequence)
            .await
            .expect("acquired");
        release(&backend, &key("replica"), sequence).await;
        admin(&url, &["REPLICAOF", "127.0.0.1", "1"]).await;
        let error = try_acquire(&backend, &key("replica"), sequence + 100).await;
        let error = error.expect_err("read-only");
        assert!(matches!(error, BackendError::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("READONLY"), "{error}");
        admin(&url, &["REPLICAOF", "NO", "ONE"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_server_is_unavailable() {
    let server = RedisServer::start();
    let url = server.url();
    admin(&url, &["CONFIG", "SET", "lua-time-limit", "20"]).await;
    for (constructor, sequence) in CONSTRUCTORS.iter().zip(1..) {
        let backend = constructor.open(&url).await;
        let request = mutex(
            &key("busy"),
            operation(session(1), sequence),
            soon(&backend).await,
        );
        let busy = url.clone();
        let busy = tokio::spawn(async move { admin(&busy, &["EVAL", BUSY, "0"]).await });
        let error = loop {
            // Until the server is busy, the same request is acquired again.
            match backend.acquire(from_ref(&request)).await.remove(0) {
                Ok(_) => assert!(!busy.is_finished(), "it was never busy"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, BackendError::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("BUSY"), "{error}");
        busy.await.expect("it ends");
        backend
            .acquire(from_ref(&request))
            .await
            .remove(0)
            .expect("an answer");
        release(&backend, &key("busy"), sequence).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_rights_are_named() {
    let server = RedisServer::start();
    let url = format!("redis://locker:pw@{}", server.address());
    for (rights, missing) in [
        (&["~*", "&*", "+@all", "-evalsha"][..], "+evalsha"),
        (&["~other:*", "&*", "+@all"][..], "~leasehold:*"),
    ] {
        let user = ["ACL", "SETUSER", "locker", "reset", "on", ">pw"];
        admin(&server.url(), &[&user[..], rights].concat()).await;
        for constructor in &CONSTRUCTORS {
            let backend = constructor.open(&url).await;
            let error = try_acquire(&backend, &key("forbidden"), 1).await;
            let error = error.expect_err("forbidden");
            assert!(
                matches!(error, BackendError::Rejected { .. }),
                "{}: {error}",
                constructor.name
            );
            assert!(
                error.to_string().contains(missing),
                "{}: {error}",
                constructor.name
            );
        }
    }
}

/// A server repeats the arguments of an unknown command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_in_no_error() {
    const SESSION: &[u8; 16] = b"SecretOfASession";
    let options = ServerOptions::default().with_config("rename-command", ["EVALSHA", ""]);
    let server = options.start();
    for constructor in &CONSTRUCTORS {
        let backend = constructor.open(&server.url()).await;
        let operation = operation(SessionId::from_bytes(*SESSION), 1);
        // The server repeats 128 bytes. The name is so long that they end with the session, before the id of
        // the clock: the libraries can't read an error that is no text.
        let request = mutex(&key(&"repeated".repeat(6)), operation, soon(&backend).await);
        let error = backend
            .acquire(from_ref(&request))
            .await
            .remove(0)
            .expect_err("unknown command");
        let mut text = format!("{error} {error:?}");
        let mut below = std::error::Error::source(&error);
        while let Some(error) = below {
            text += &format!(" {error} {error:?}");
            below = error.source();
        }
        assert!(text.contains("unknown command"), "{text}");
        assert!(!text.contains("Secret"), "{}: {text}", constructor.name);
    }
}

/// A library that queues unsent commands would acquire locks here for calls that were dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_dropped_during_an_outage_is_not_sent_later() {
    let key = key("zombie");
    for constructor in CONSTRUCTORS
        .iter()
        .filter(|constructor| constructor.reconnects)
    {
        let mut server = RedisServer::start();
        let backend = constructor.open(&server.url()).await;
        let before = soon(&backend).await;
        server.kill();
        for sequence in 1..=50 {
            let request = mutex(&key, operation(session(1), sequence), before);
            let mut call = pin!(backend.acquire(from_ref(&request)));
            poll_fn(|context| {
                let _ = call.as_mut().poll(context);
                Poll::Ready(())
            })
            .await;
        }
        tokio::task::block_in_place(|| server.start_again());
        time_to_success(&backend, RECOVERY * 5).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let direct = connect(&server.url()).await.expect("connected");
        let seen = direct.inspect(&key).await.expect("an answer").reply;
        assert_eq!(seen.holder_count, 0, "{}", constructor.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_cleans_up_after_dropped_calls() {
    let server = RedisServer::start();
    let key = key("dropped");
    for constructor in &CONSTRUCTORS {
        let backend = constructor.open(&server.url()).await;
        for sequence in 1..=200_u64 {
            let operation = operation(session(1), sequence);
            let request = mutex(&key, operation, soon(&backend).await);
            let limit = Duration::from_micros(sequence % 50 * 10);
            let _ = tokio::time::timeout(limit, backend.acquire(from_ref(&request))).await;
            let release = Release::new(key.clone(), operation);
            backend
                .release(&[release])
                .await
                .remove(0)
                .expect("an answer");
        }
        eventually("nothing is left", async || {
            let seen = backend.inspect(&key).await.expect("an answer").reply;
            seen.holder_count == 0
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_share_one_attempt_to_connect() {
    let mut server = RedisServer::start();
    let url = server.url();
    for constructor in CONSTRUCTORS.iter().filter(|constructor| constructor.push) {
        let backend = constructor.open(&url).await;
        server.kill();
        let calls = (0..64).map(|_| {
            let backend = backend.clone();
            tokio::spawn(async move { time_to_success(&backend, RECOVERY * 5).await })
        });
        let calls: Vec<_> = calls.collect();
        tokio::time::sleep(Duration::from_millis(200)).await;
        tokio::task::block_in_place(|| server.start_again());
        for call in calls {
            call.await.expect("each succeeds");
        }
        // Includes the connections of the server's start, of the backend, and of this query.
        let stats = admin(&url, &["INFO", "stats"]).await;
        let (_, count) = stats
            .split_once("total_connections_received:")
            .expect("it is counted");
        let digits = count
            .find(|c: char| !c.is_ascii_digit())
            .expect("more lines");
        let count: u32 = count[..digits].parse().expect("a number");
        assert!(count < 12, "{}: {count} connections", constructor.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_error_names_the_server_without_password() {
    let server = RedisServer::start();
    let url = server.url();
    admin(&url, &["CONFIG", "SET", "requirepass", "hunter2"]).await;
    let address = url.rsplit('/').next().expect("an address").to_owned();
    let wrong = format!("redis://me:swordfish@{address}");
    let refused = connect(&wrong).await.expect_err("a wrong password");
    drop(server);
    let options = Options::new().initial_connect_timeout(Duration::from_millis(100));
    let gone = match connect_with(&wrong, options).await {
        Err(ConnectError::Backend(error)) => error,
        other => panic!("{other:?}"),
    };
    for error in [refused, gone] {
        let text = format!("{error} {error:?}");
        assert!(text.contains(&address), "{text}");
        assert!(!text.contains("swordfish"), "{text}");
        // A report prints the whole chain, so no source repeats a part of the message.
        let message = error.to_string();
        let mut below = std::error::Error::source(&error);
        while let Some(error) = below {
            assert!(
                !message.contains(&error.to_string()),
                "{error} in {message}"
            );
            assert!(!error.to_string().contains("swordfish"), "{error}");
            below = error.source();
        }
    }
    for url in ["localhost:6379", "me:swordfish@localhost"] {
        let refused = connect_with(url, Options::new()).await;
        let text = refused.expect_err("no scheme").to_string();
        assert!(text.contains("it has no scheme; write redis://"), "{text}");
        assert!(!text.contains("swordfish"), "{text}");
    }
}
