//! Connections that are lost, and a server that is restarted.

use std::time::Duration;

use futures_util::StreamExt;
use leasehold_api::{BackendError, LockBackend, LockClient, Notification, SessionId};

use crate::support::{Server, connect_to};

const LONG: Duration = Duration::from_secs(20);

async fn next(stream: &mut leasehold_api::Notifications) -> Notification {
    let next = tokio::time::timeout(LONG, stream.next());
    next.await.expect("in time").expect("an open stream")
}

fn kill(server: &Server, whose: &str) -> String {
    server.execute(&format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
         WHERE application_name = 'leasehold' AND {whose}"
    ))
}

async fn clock(locks: &LockClient) -> leasehold_api::ClockId {
    locks.backend().hello().await.expect("an answer").clock
}

#[tokio::test]
async fn subscription_survives_a_lost_connection() {
    let server = Server::start();
    let backend = connect_to(&server.url()).await;
    let mut stream = backend
        .listen(SessionId::from_bytes([7; 16]))
        .await
        .expect("a stream");
    assert_eq!(kill(&server, "query LIKE 'SELECT pg_advisory%'"), "1");
    assert_eq!(
        next(&mut stream).await,
        Notification::Missed { listening: false }
    );
    assert_eq!(
        next(&mut stream).await,
        Notification::Missed { listening: true }
    );
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(server.execute(held), "1", "it is announced again");
    backend.close().await.expect("closes");
    assert_eq!(stream.next().await, None);
}

#[tokio::test]
async fn locks_survive_lost_connections_and_a_crash_of_the_server() {
    let mut server = Server::start();
    let connect = async || {
        let backend = connect_to(&server.url()).await;
        LockClient::new(backend)
    };
    let (locks, others) = (connect().await, connect().await);
    let guard = locks
        .mutex("a")
        .expect("valid")
        .lock()
        .await
        .expect("a lock");
    assert!(kill(&server, "true").parse::<u32>().expect("a number") >= 2);
    // A call may fail if it is sent before the end of the connection is noticed.
    let renewed = async || {
        tokio::time::timeout(LONG, async {
            while guard.renew().await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await
    };
    renewed().await.expect("renewed on a new connection");
    let before = clock(&locks).await;
    server.postgres.restart();
    renewed().await.expect("renewed after the restart");
    assert!(guard.is_valid());
    assert_ne!(before, clock(&locks).await);
    let other = others.mutex("a").expect("valid").try_lock().await;
    assert!(!other.expect("an answer").is_acquired());
}

/// Another program locks a row. The calls on other keys share the connection and go on.
#[tokio::test]
async fn stuck_statement_does_not_block_later_calls() {
    let server = Server::start();
    let backend = connect_to(&server.url()).await;
    let locks = LockClient::new(backend);
    let mutex = locks.mutex("stuck").expect("valid");
    let guard = mutex.lock().await.expect("a lock");
    guard.release().await.expect("released");
    let (client, connection) = {
        let url = server.postgres.url("owner", "shop");
        let connected = tokio_postgres::connect(&url, tokio_postgres::NoTls).await;
        connected.expect("a server")
    };
    tokio::spawn(connection);
    client
        .batch_execute("BEGIN; SELECT FROM leasehold.locks FOR UPDATE")
        .await
        .expect("locked");
    let begun = std::time::Instant::now();
    let stuck = mutex.try_lock().await.expect_err("stuck");
    assert!(begun.elapsed() < Duration::from_secs(6), "{stuck}");
    let other = locks
        .mutex("other")
        .expect("valid")
        .lock()
        .await
        .expect("a lock");
    other.release().await.expect("released");
    client.batch_execute("ROLLBACK").await.expect("unlocked");
    let guard = mutex
        .try_lock_for(LONG)
        .await
        .expect("an answer")
        .into_guard();
    guard
        .expect("the lost attempt was released")
        .release()
        .await
        .expect("released");
    locks.shutdown().await.expect("nothing is left");
}

#[tokio::test]
async fn read_only_server_is_unavailable() {
    let server = Server::start();
    server.execute("ALTER ROLE locks SET default_transaction_read_only = on");
    let backend = connect_to(&server.url()).await;
    let key = leasehold_api::Key::new("a").expect("valid");
    let session = SessionId::from_bytes([1; 16]);
    let owner = leasehold_api::OwnerId::from_u64(1);
    let operation = leasehold_api::Operation {
        session,
        sequence: 1,
        owner,
    };
    let release = leasehold_api::Release::new(key, operation);
    let result = backend.release(&[release]).await.remove(0);
    assert!(
        matches!(result, Err(BackendError::Unavailable { .. })),
        "{result:?}"
    );
}

/// Renewals have a thread and a connection of their own.
#[tokio::test(flavor = "current_thread")]
async fn blocked_runtime_keeps_its_locks() {
    let server = Server::start();
    let backend = connect_to(&server.url()).await;
    let locks = LockClient::new(backend);
    let mutex = locks
        .mutex("a")
        .expect("valid")
        .lease(Duration::from_secs(2));
    let guard = mutex.lock().await.expect("a lock");
    // Let the renewal task start.
    tokio::time::sleep(Duration::from_millis(100)).await;
    std::thread::sleep(Duration::from_secs(5));
    assert!(guard.is_valid());
    guard.release().await.expect("released");
}
