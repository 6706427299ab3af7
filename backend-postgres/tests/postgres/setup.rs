//! What a wrong set-up answers, before anything is locked.

use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_api::{BackendError, Error, LockBackend, LockClient};
use leasehold_postgres::{ConnectError, Options, PostgresBackend, tokio_postgres};
use leasehold_test_servers::{PostgresOptions, PostgresServer, eventually, throughout};

use crate::events;
use crate::support::{PRIVILEGES, Server, connect_to, patient, rejected, sql_client};

#[tokio::test]
async fn missing_schema_rights_and_databases_are_rejected() {
    let postgres = PostgresServer::start();
    postgres.execute("postgres", "CREATE USER locks");
    let refused = async |user, database| {
        let url = postgres.url(user, database);
        rejected(PostgresBackend::connect(&url).await)
    };
    let error = refused("locks", "postgres").await;
    assert!(error.contains("run the schema"), "{error}");
    postgres.execute("postgres", leasehold_postgres::SCHEMA);
    let error = refused("locks", "postgres").await;
    assert!(error.contains("permission denied"), "{error}");
    refused("locks", "nothing").await;
    refused("nobody", "postgres").await;
}

/// Its calls would fail after some milliseconds, and say that the server hasn't answered.
#[tokio::test(start_paused = true)]
async fn paused_clock_is_refused_before_any_io() {
    let url = "postgres://locks@127.0.0.1:1/shop";
    let connected = PostgresBackend::connect(url).await.map(drop);
    let lazy = PostgresBackend::connect_lazy(url, Options::new()).map(drop);
    for made in [connected, lazy] {
        let error = made.expect_err("the clock is paused");
        assert_matches!(error, ConnectError::Invalid(_));
        let text = error.to_string();
        assert!(
            text.starts_with("the clock of tokio: it is paused"),
            "{text}"
        );
    }
}

/// Not for each connection, but again after a restart.
#[tokio::test]
async fn server_is_reported_once() {
    events::record();
    let mut server = Server::start();
    let backend = connect_to(&server.url()).await;
    let folder = server.postgres.folder().display().to_string();
    let told = || events::lines("INFO connected", &folder);
    let is_told =
        |line: &String| line.starts_with("INFO connected backend=\"postgres\" server=PostgreSQL 1");
    assert!(
        matches!(&told()[..], [line] if is_told(line)),
        "{:?}",
        told()
    );
    backend.hello().await.expect("an answer");
    server.postgres.restart();
    eventually("it is connected again", async || {
        backend.hello().await.is_ok()
    })
    .await;
    assert_eq!(told().len(), 2, "{:?}", told());
}

/// The programs of a deployment, each of which applies the schema when it starts.
const STARTING: usize = 10;

/// Each of [`STARTING`] programs executes the statements at the same time, as one transaction or as each tool does
/// by itself.
async fn apply_at_once(clients: &[tokio_postgres::Client], statements: &str) {
    let in_transaction = format!("BEGIN;{statements};COMMIT");
    for statements in [statements, &in_transaction] {
        let applying = clients.iter().map(|it| it.batch_execute(statements));
        for applied in join_all(applying).await {
            applied.expect("applied");
        }
    }
}

#[tokio::test]
async fn programs_apply_the_schema_at_the_same_time() {
    let postgres = PostgresServer::start();
    postgres.execute("postgres", "CREATE USER locks");
    for round in 0..5 {
        let database = format!("round{round}");
        postgres.execute("postgres", &format!("CREATE DATABASE {database}"));
        let url = postgres.url("owner", &database);
        let clients = join_all((0..STARTING).map(|_| sql_client(&url))).await;
        let all = [leasehold_postgres::SCHEMA, PRIVILEGES].concat();
        apply_at_once(&clients, &all).await;
        for again in [leasehold_postgres::FENCE_SCHEMA, PRIVILEGES] {
            apply_at_once(&clients, again).await;
        }
        connect_to(&postgres.url("locks", &database)).await;
    }
}

#[tokio::test]
async fn dangerous_settings_are_named() {
    let dangers = async |server: &Server| {
        let backend = PostgresBackend::connect(&server.url()).await;
        let backend = backend.expect("connected");
        let found = backend.dangerous_settings().await.expect("an answer");
        let names = found.iter().filter_map(|text| text.split(' ').next());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    // Servers of tests don't sync, because that takes time.
    let good = Server::start_with(PostgresOptions::default().with_setting("fsync=on"));
    assert_eq!(dangers(&good).await, [""; 0]);
    let alter = |how| good.execute(&format!("ALTER TABLE leasehold.locks {how}"));
    alter("SET (autovacuum_enabled = off)");
    assert_eq!(dangers(&good).await, ["autovacuum"]);
    alter("RESET (autovacuum_enabled)");
    alter("SET UNLOGGED");
    assert_eq!(dangers(&good).await, ["the"]);

    let bad = PostgresOptions::default()
        .with_setting("full_page_writes=off")
        .with_setting("autovacuum=off")
        .with_setting("synchronous_standby_names=none")
        .with_setting("synchronous_commit=local");
    let bad = Server::start_with(bad);
    let expected = [
        "fsync",
        "full_page_writes",
        "autovacuum",
        "synchronous_commit",
    ];
    assert_eq!(dangers(&bad).await, expected);
}

#[tokio::test]
async fn unreachable_server_is_unavailable_and_no_secret_is_shown() {
    let url = "postgres://locks:hunter2@127.0.0.1:1/shop";
    let options = Options::new().initial_connect_timeout(Duration::from_millis(200));
    let unreachable = PostgresBackend::connect_with(url, options).await;
    let unreachable = unreachable.expect_err("port 1");
    let no_url = PostgresBackend::connect("postgres://a:hunter2@[").await;
    let no_url = no_url.expect_err("no URL");
    let shown = format!("{unreachable:?} {unreachable} {no_url:?} {no_url}");
    assert!(!shown.contains("hunter2"), "{shown}");
    assert_matches!(
        unreachable,
        ConnectError::Backend(BackendError::Unavailable { .. })
    );
    assert_matches!(no_url, ConnectError::Invalid(_));
}

fn stopped() -> Server {
    let mut server = Server::start();
    server.postgres.stop();
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_waits_for_a_server_that_starts() {
    let mut server = stopped();
    let url = server.url();
    let options = Options::new().initial_connect_timeout(Duration::from_secs(60));
    let connecting =
        tokio::spawn(async move { PostgresBackend::connect_with(&url, options).await });
    throughout(Duration::from_millis(300), "it tries again", async || {
        !connecting.is_finished()
    })
    .await;
    tokio::task::block_in_place(|| server.postgres.restart());
    let backend = connecting.await.expect("no panic").expect("connected");
    let mutex = LockClient::new(backend).mutex("k").expect("a good key");
    drop(mutex.lock().await.expect("acquired"));
}

/// It has not replayed the schema yet, or the rights. It may be promoted soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standby_without_the_schema_is_unavailable() {
    let mut postgres = PostgresServer::start();
    postgres.execute("postgres", "CREATE USER locks");
    tokio::task::block_in_place(|| postgres.restart_as_standby());
    let url = postgres.url("locks", "postgres");
    let brief = patient().initial_connect_timeout(Duration::from_secs(3));
    let error = PostgresBackend::connect_with(&url, brief).await;
    let error = error.expect_err("a standby");
    assert_matches!(
        &error,
        ConnectError::Backend(BackendError::Unavailable { .. })
    );
    assert!(error.to_string().contains("is a standby"), "{error}");
    postgres.execute("postgres", "SELECT pg_promote()");
    postgres.execute(
        "postgres",
        &[leasehold_postgres::SCHEMA, PRIVILEGES].concat(),
    );
    connect_to(&url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lazy_backend_needs_no_server_to_start_with() {
    let mut server = stopped();
    let backend = PostgresBackend::connect_lazy(&server.url(), Options::new());
    let backend = backend.expect("a good URL");
    let mutex = LockClient::new(backend).mutex("k").expect("a good key");
    let error = mutex.try_lock().await.expect_err("the server is down");
    assert_matches!(error, Error::Unavailable { .. });
    tokio::task::block_in_place(|| server.postgres.restart());
    let guard = mutex.lock().await.expect("acquired");
    let renewed = guard.renew().await;
    renewed.expect("renewals have a connection too");
    guard.release().await.expect("released");
}

#[tokio::test]
async fn wrong_options_are_refused_before_any_io() {
    for options in [
        Options::new().call_timeout(Duration::from_secs(60)),
        Options::new().connect_timeout(Duration::ZERO),
        Options::new().initial_connect_timeout(Duration::from_secs(61)),
    ] {
        let result = PostgresBackend::connect_with("host=/nowhere", options).await;
        assert_matches!(result, Err(ConnectError::Invalid(_)));
    }
}

#[tokio::test]
async fn debug_shows_no_password() {
    let server = Server::start();
    let url = format!("{} password='hunter2'", server.url());
    let backend = connect_to(&url).await;
    assert!(!format!("{backend:?}").contains("hunter2"));
}

#[test]
fn test_server_keeps_its_data_and_leaves_nothing() {
    let mut server = PostgresServer::start();
    server.execute("postgres", "CREATE TABLE one AS SELECT 1 AS number");
    server.restart();
    assert_eq!(server.execute("postgres", "SELECT number FROM one"), "1");
    let url = server.url("owner", "postgres");
    let folder = url.split('\'').nth(1).expect("the folder of its socket");
    assert!(Path::new(folder).exists());
    drop(server);
    assert!(!Path::new(folder).exists());
}

/// A primary that needs a standby's answer for each commit, and is cut off from it. It renews nothing, so nobody
/// is misled when the standby is promoted.
#[tokio::test]
async fn primary_without_its_synchronous_standby_keeps_no_guard_valid() {
    let server = Server::start();
    let locks = server.locks().await;
    let mutex = locks.mutex("a").expect("valid");
    let guard = mutex.lease(Duration::from_secs(3)).lock().await;
    let guard = guard.expect("a lock");
    server.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    server.execute("SELECT pg_reload_conf()");
    let lost = tokio::time::timeout(Duration::from_secs(30), guard.lost()).await;
    assert_eq!(lost.expect("lost"), leasehold_api::Loss::Deadline);
    let other = server.locks().await.mutex("b").expect("valid");
    let tried = other.try_lock().await;
    assert!(tried.expect_err("no commit").is_transient());
}
