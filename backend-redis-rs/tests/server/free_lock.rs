//! What a free lock sends: a compare-and-set on servers that have it, scripts on others.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold_api::{LockClient, Outcome};
use leasehold_redis_common::Options;
use leasehold_test_servers::{RedisServer, ServerOptions, eventually};

use crate::shared::support::{client, connected_with};

/// How many scripts the server has run for its clients.
fn scripts(server: &RedisServer) -> u64 {
    let stats = server.run(&["INFO", "commandstats"]);
    let calls = |line: &str| -> Option<u64> {
        let (_, calls) = line.split_once("calls=")?;
        calls.split(',').next()?.parse().ok()
    };
    let scripts = stats
        .lines()
        .filter(|line| line.starts_with("cmdstat_eval"));
    scripts.filter_map(calls).sum()
}

async fn pairs(locks: &LockClient, key: &str, count: usize) {
    for _ in 0..count {
        let guard = locks.mutex(key).expect("a good key").try_lock().await;
        let guard = guard.expect("the server answers").into_guard();
        guard.expect("free").release().await.expect("released");
    }
}

/// The scripts of ten pairs on a key that the client knows. In the background, a client runs one more when it has
/// prepared its connection for renewals, so the smallest of three counts is the one of the pairs.
async fn scripts_of_ten_pairs(server: &RedisServer, options: Options) -> u64 {
    let locks = LockClient::new(connected_with(&server.url(), options).await);
    pairs(&locks, "own", 5).await;
    let mut fewest = u64::MAX;
    for _ in 0..3 {
        let before = scripts(server);
        pairs(&locks, "own", 10).await;
        fewest = fewest.min(scripts(server) - before);
    }
    fewest
}

#[tokio::test]
async fn free_lock_needs_no_script_where_the_server_compares() {
    let server = RedisServer::start();
    // Of the servers that these tests run on, Valkey's have it.
    let compares = server.run(&["INFO", "server"]).contains("valkey_version");
    let expected = if compares { 0 } else { 20 };
    assert_eq!(
        scripts_of_ten_pairs(&server, Options::new()).await,
        expected
    );
    let options = Options::new().compare_and_set(false).key_prefix("off:");
    assert_eq!(scripts_of_ten_pairs(&server, options).await, 20);
    let locks = client(&server.url()).await;
    pairs(&locks, "first", 1).await;
    let before = scripts(&server);
    for n in 0..10 {
        pairs(&locks, &format!("new-{n}"), 1).await;
    }
    // In the background, the client may have connected for renewals, which takes two: it asks for its rights, and
    // whether there is an EVALSHA.
    let new_keys = scripts(&server) - before;
    assert!((expected..=expected + 2).contains(&new_keys), "{new_keys}");
}

#[tokio::test]
async fn foreign_value_is_an_error_as_ever() {
    let server = RedisServer::start();
    let locks = client(&server.url()).await;
    pairs(&locks, "a", 3).await;
    // The key becomes one that another program uses, then it is free again.
    let name = "leasehold:{a}";
    server.run(&["DEL", name]);
    server.run(&["LPUSH", name, "foreign"]);
    let refused = locks.mutex("a").expect("a good key").try_lock().await;
    let error = refused
        .map(Outcome::into_guard)
        .expect_err("a foreign value");
    assert!(error.to_string().contains("foreign"), "{error}");
    server.run(&["DEL", name]);
    pairs(&locks, "a", 3).await;
    pairs(&locks, "b", 5).await;
    locks.shutdown().await.expect("closed");
}

#[tokio::test]
async fn busy_server_keeps_the_connection() {
    let options = ServerOptions::default().with_config("busy-reply-threshold", ["5"]);
    let server = options.start();
    let locks = client(&server.url()).await;
    pairs(&locks, "own", 5).await;
    let clients = || -> BTreeSet<String> {
        let list = server.run(&["CLIENT", "LIST"]);
        list.lines()
            .filter_map(|it| it.split(' ').next().map(Into::into))
            .collect()
    };
    let before = clients();
    let client = redis::Client::open(server.url()).expect("a URL");
    let connect = || client.get_connection().expect("connected");
    let (mut watching, mut running) = (connect(), connect());
    let endless = std::thread::spawn(move || {
        let script = "while true do end";
        redis::cmd("EVAL").arg(script).arg(0).exec(&mut running)
    });
    eventually("it is busy", async || {
        redis::cmd("PING").exec(&mut watching).is_err()
    })
    .await;
    // `lock` tries again whatever the busy server refuses.
    let end = async {
        #[expect(
            clippy::disallowed_methods,
            reason = "a busy server doesn't tell that it has refused a try"
        )]
        tokio::time::sleep(Duration::from_secs(2)).await;
        server.run(&["SCRIPT", "KILL"]);
    };
    let mutex = locks.mutex("own").expect("a good key");
    let (guard, ()) = futures_util::future::join(mutex.lock(), end).await;
    guard.expect("acquired").release().await.expect("released");
    assert!(endless.join().expect("no panic").is_err(), "it was killed");
    pairs(&locks, "own", 5).await;
    let errors = server.run(&["INFO", "errorstats"]);
    let refused = errors
        .lines()
        .find_map(|line| line.strip_prefix("errorstat_BUSY:count="));
    let refused: u64 = refused.expect("a line").trim().parse().expect("a number");
    assert!(refused > 1, "only the PING was refused");
    // The one that listed them has ended.
    let ended = before.difference(&clients()).count();
    assert_eq!(ended, 1, "no other connection was replaced");
}
