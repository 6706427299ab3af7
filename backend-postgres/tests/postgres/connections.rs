//! Connections that are lost, and a server that is restarted.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use leasehold_api::{BackendError, LockBackend, LockClient, Notification};
use leasehold_test_servers::{Stopwatch, eventually, throughout};

use crate::requests::{Backend, key, operation, release, session};
use crate::support::{Server, connect_to, hold, sql_client};

pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) async fn next(stream: &mut leasehold_api::Notifications) -> Notification {
    let next = tokio::time::timeout(LONG, stream.next());
    next.await.expect("in time").expect("an open stream")
}

pub(crate) fn kill(server: &Server, whose: &str) -> String {
    server.execute(&format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
         WHERE application_name = 'leasehold' AND {whose}"
    ))
}

async fn clock(locks: &LockClient) -> leasehold_api::ClockId {
    let mut clock = None;
    // A call may fail if it is sent before the end of a connection is noticed.
    eventually("an answer", async || {
        clock = locks.backend().hello().await.ok().map(|it| it.clock);
        clock.is_some()
    })
    .await;
    clock.expect("waited for it")
}

#[tokio::test]
async fn subscription_survives_a_lost_connection() {
    let server = Server::start();
    let backend = connect_to(&server.url()).await;
    let mut stream = backend.listen(session(7)).await.expect("a stream");
    assert_eq!(kill(&server, "query LIKE 'SELECT pg_advisory%'"), "1");
    for listening in [false, true] {
        let missed = Notification::Missed { listening };
        assert_eq!(next(&mut stream).await, missed);
    }
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(server.execute(held), "1", "it is announced again");
    backend.close().await.expect("closes");
    assert_eq!(stream.next().await, None);
}

#[tokio::test]
async fn locks_survive_lost_connections_and_a_crash_of_the_server() {
    let mut server = Server::start();
    let (locks, others) = (server.locks().await, server.locks().await);
    let guard = hold(&locks, "a").await;
    assert!(kill(&server, "true").parse::<u32>().expect("a number") >= 2);
    // A call may fail if it is sent before the end of the connection is noticed.
    let renewed = async || guard.renew().await.is_ok();
    eventually("renewed on a new connection", renewed).await;
    let before = clock(&locks).await;
    server.postgres.restart();
    eventually("renewed after the restart", renewed).await;
    assert!(guard.is_valid());
    assert_ne!(before, clock(&locks).await);
    let other = others.mutex("a").expect("valid");
    eventually("an answer", async || {
        let tried = other.try_lock().await;
        assert!(!matches!(&tried, Ok(it) if it.is_acquired()), "it is held");
        tried.is_ok()
    })
    .await;
}

/// The name of the server leads to another one, and the old one goes on serving the connections that it has. Once
/// one connection has reached the new server, all of the client's do.
#[tokio::test]
async fn renewals_follow_the_commands_to_another_server() {
    let (old, new) = (Server::start(), Server::start());
    let name = old.postgres.folder().join("name");
    let lead_to = |server: &Server| {
        let _ = std::fs::remove_file(&name);
        std::os::unix::fs::symlink(server.postgres.folder(), &name).expect("a link");
    };
    lead_to(&old);
    let text = |path: &std::path::Path| path.to_str().expect("a plain name").to_owned();
    let url = old
        .url()
        .replace(&text(old.postgres.folder()), &text(&name));
    let locks = LockClient::new(connect_to(&url).await);
    let mutex = locks.mutex("a").expect("valid").lease(LONG * 10);
    let guard = mutex.lock().await.expect("a lock");
    guard.renew().await.expect("renewed");
    lead_to(&new);
    // The renewals have another connection, which was used later.
    kill(
        &old,
        "pid = (SELECT pid FROM pg_stat_activity WHERE query LIKE '%leasehold.locks%'
            AND application_name = 'leasehold' ORDER BY query_start LIMIT 1)",
    );
    let other = locks.mutex("b").expect("valid").try_lock_for(LONG).await;
    assert!(other.expect("an answer").is_acquired());
    assert_eq!(new.execute("SELECT count(*) FROM leasehold.locks"), "1");
    let renewed = guard.renew().await;
    assert!(
        !guard.is_valid(),
        "the new server has no such lock: {renewed:?}"
    );
}

/// Another program locks all rows until it ends its transaction.
async fn lock_rows(server: &Server) -> tokio_postgres::Client {
    let client = sql_client(&server.postgres.url("owner", "shop")).await;
    let lock = "BEGIN; SELECT FROM leasehold.locks FOR UPDATE";
    client.batch_execute(lock).await.expect("locked");
    client
}

/// Another program locks a row. The calls on other keys share the connection and go on.
#[tokio::test]
async fn stuck_statement_does_not_block_later_calls() {
    let server = Server::start();
    let locks = server.locks().await;
    let mutex = locks.mutex("stuck").expect("valid");
    let guard = mutex.lock().await.expect("a lock");
    guard.release().await.expect("released");
    let client = lock_rows(&server).await;
    let begun = Stopwatch::start();
    let stuck = mutex.try_lock().await.expect_err("stuck");
    assert!(begun.elapsed() < Duration::from_secs(6), "{stuck}");
    let other = hold(&locks, "other").await;
    other.release().await.expect("released");
    client.batch_execute("ROLLBACK").await.expect("unlocked");
    let outcome = mutex.try_lock_for(LONG).await.expect("an answer");
    let guard = outcome.into_guard();
    let guard = guard.expect("the lost attempt was released");
    guard.release().await.expect("released");
    locks.shutdown().await.expect("nothing is left");
}

/// Sends a release of an operation that holds nothing. It writes a row.
pub(crate) async fn write(backend: &Backend, sequence: u64) -> Result<(), BackendError> {
    let operation = operation(session(1), sequence);
    release(backend, &key("a"), operation).await.map(drop)
}

/// The processes of the server that serve a backend: its commands, and its renewals. While it removes rows, there is a
/// third one.
pub(crate) async fn processes(server: &Server) -> String {
    let mut found = String::new();
    eventually("no rows are removed", async || {
        found = server.execute(
            "SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity
             WHERE application_name = 'leasehold'",
        );
        found.split(' ').count() == 2
    })
    .await;
    found
}

#[tokio::test]
async fn read_only_server_is_unavailable_and_left() {
    let server = Server::start();
    server.execute("ALTER ROLE locks SET default_transaction_read_only = on");
    let backend: Backend = Arc::new(connect_to(&server.url()).await);
    let result = write(&backend, 1).await;
    assert_matches!(result, Err(BackendError::Unavailable { .. }));
    // Only new connections can write again.
    server.execute("ALTER ROLE locks RESET default_transaction_read_only");
    eventually("it is written on a new connection", async || {
        write(&backend, 1).await.is_ok()
    })
    .await;
}

/// Other calls share the connection.
#[tokio::test]
async fn statement_that_fails_keeps_the_connection() {
    let server = Server::start();
    let backend: Backend = Arc::new(connect_to(&server.url()).await);
    write(&backend, 1).await.expect("a row");
    let before = processes(&server).await;
    let _client = lock_rows(&server).await;
    let error = write(&backend, 2).await.expect_err("locked");
    assert!(matches!(error, BackendError::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("55P03"), "{error}");
    backend.hello().await.expect("an answer");
    assert_eq!(processes(&server).await, before);
}

/// Renewals have a thread and a connection of their own.
#[tokio::test(flavor = "current_thread")]
async fn blocked_runtime_keeps_its_locks() {
    let server = Server::start();
    let locks = server.locks().await;
    let mutex = locks.mutex("a").expect("valid");
    let guard = mutex.lease(Duration::from_secs(4)).lock().await;
    let guard = guard.expect("a lock");
    let task_starts = Duration::from_millis(100);
    throughout(task_starts, "it is held", async || guard.is_valid()).await;
    #[expect(clippy::disallowed_methods, reason = "it blocks the runtime")]
    std::thread::sleep(Duration::from_secs(6));
    assert!(guard.is_valid());
    guard.release().await.expect("released");
}
