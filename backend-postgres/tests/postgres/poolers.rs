//! PgBouncer in each of its modes, and a configuration of your own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use leasehold_api::{LockBackend, LockClient};
use leasehold_postgres::PostgresBackend;
use leasehold_postgres::tokio_postgres::tls::MakeTlsConnect;
use leasehold_postgres::tokio_postgres::{self, Config, NoTls, Socket};

use leasehold_test_servers::eventually;

use crate::lock_is_handed_over;
use crate::requests::session;
use crate::support::{Server, connect_to, hold, patient, rejected, sql_client};

/// Connects another program to the same pool. If `busy`, it uses all connections of the pool all the time.
async fn others(url: &str, count: usize, busy: bool) -> Vec<tokio_postgres::Client> {
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(sql_client(url).await);
    }
    // All at once, so that the pool has as many connections.
    let sleeping = clients
        .iter()
        .map(|it| it.batch_execute("SELECT pg_sleep(0.2)"));
    for slept in futures_util::future::join_all(sleeping).await {
        slept.expect("executed");
    }
    if !busy {
        return clients;
    }
    for client in clients {
        tokio::spawn(async move { while client.batch_execute("SELECT 1").await.is_ok() {} });
    }
    Vec::new()
}

/// The error names the server behind the pooler. No setting has reached the pool's connections, which
/// other programs use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pool_that_shares_connections_is_refused() {
    let server = Server::start();
    for mode in ["transaction", "statement"] {
        let (_pooler, url) = server.pooler(&format!("pool_mode = {mode}"));
        let error = rejected(PostgresBackend::connect_with(&url, patient()).await);
        let port = server.postgres.port();
        assert!(error.contains("a pool in session mode"), "{error}");
        assert!(error.contains("pgbouncer=true"), "{error}");
        assert!(error.contains(&format!("(port {port})")), "{error}");
        let client = sql_client(&url).await;
        let answer = client.simple_query("SHOW lock_timeout").await;
        let answer = format!("{:?}", answer.expect("an answer"));
        assert!(!answer.contains("250ms"), "{answer}");
    }
}

/// The pool has several connections, idle or busy, and hands them out in either order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_pool_that_shares_connections_is_refused() {
    let server = Server::start();
    for round_robin in [0, 1] {
        for (count, busy) in [(2, false), (3, false), (4, true)] {
            let settings = format!("pool_mode = transaction\nserver_round_robin = {round_robin}");
            let (_pooler, url) = server.pooler(&settings);
            let clients = others(&url, count, busy).await;
            let error = rejected(PostgresBackend::connect_with(&url, patient()).await);
            let is_first = error.contains("(port ");
            assert!(is_first, "found before anything else: {error}");
            drop(clients);
        }
    }
}

/// The pooler is told to share connections while the backend uses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_to_shared_connections_is_noticed() {
    let server = Server::start();
    let (mut pooler, url) = server.pooler("pool_mode = session");
    let locks = LockClient::new(connect_to(&url).await);
    let guard = hold(&locks, "a").await;
    guard.release().await.expect("released");
    pooler.reconfigure("pool_mode = transaction\nserver_round_robin = 1");
    let _clients = others(&url, 3, false).await;
    let mutex = locks.mutex("b").expect("valid");
    eventually("it is noticed", async || {
        let error = mutex.try_lock().await.err();
        error.is_some_and(|it| it.to_string().contains("pool in session mode"))
    })
    .await;
}

/// A session of the pool is a session of the server: prepared statements, notifications, advisory locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_through_a_pool_of_sessions() {
    let server = Server::start();
    let (_pooler, url) = server.pooler("pool_mode = session");
    let (one, two) = (connect_to(&url).await, connect_to(&url).await);
    let mut stream = one.listen(session(7)).await.expect("a stream");
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(server.execute(held), "1");
    let next = tokio::time::timeout(Duration::from_millis(300), stream.next());
    assert!(next.await.is_err(), "nothing is missed");
    drop(stream);
    lock_is_handed_over(one, two).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pool_with_too_few_sessions_is_named() {
    let server = Server::start();
    let (_pooler, url) = server.pooler("pool_mode = session\ndefault_pool_size = 1");
    let error = PostgresBackend::connect_with(&url, patient()).await;
    let error = error.expect_err("one connection").to_string();
    assert!(error.contains("no second connection in time"), "{error}");
}

/// Counts the connections that are opened with it, as a TLS library of your own would.
#[derive(Clone, Debug, Default)]
struct CountedNoTls(Arc<AtomicU32>);

impl MakeTlsConnect<Socket> for CountedNoTls {
    type Stream = tokio_postgres::tls::NoTlsStream;
    type TlsConnect = NoTls;
    type Error = tokio_postgres::tls::NoTlsError;

    fn make_tls_connect(&mut self, host: &str) -> Result<NoTls, Self::Error> {
        self.0.fetch_add(1, Ordering::Relaxed);
        <NoTls as MakeTlsConnect<Socket>>::make_tls_connect(&mut NoTls, host)
    }
}

/// The values that a pool is made from: a configuration and a maker of TLS streams.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_configuration_makes_every_connection() {
    let server = Server::start();
    let mut config: Config = server.url().parse().expect("valid");
    config.application_name("billing");
    let tls = CountedNoTls::default();
    let one = PostgresBackend::from_config(config.clone(), tls.clone(), patient()).await;
    let one = one.expect("a server");
    let listening = one.listen(session(1)).await.expect("a stream");
    assert_eq!(tls.0.load(Ordering::Relaxed), 3);
    let named = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'billing'";
    assert_eq!(server.execute(named), "3");
    drop(listening);
    let two = PostgresBackend::from_config(config.clone(), NoTls, patient()).await;
    lock_is_handed_over(one, two.expect("a server")).await;

    config.ssl_mode(tokio_postgres::config::SslMode::Require);
    rejected(PostgresBackend::from_config(config, NoTls, patient()).await);
}
