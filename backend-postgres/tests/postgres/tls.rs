//! Connections with TLS, and readable errors for each way in which they can fail.

use std::time::{Duration, SystemTime};

use leasehold_api::LockBackend as _;
use leasehold_postgres::tokio_postgres::{Config, NoTls};
use leasehold_postgres::{ConnectError, Options, PostgresBackend};
use leasehold_test_servers::{Authority, Identity, PostgresOptions, Stopwatch, eventually};

use crate::connections::kill;
use crate::lock_is_handed_over;
use crate::support::{Server, connect_with, patient, rejected};

/// The host in the URL of a test server.
const HOST: &str = "127.0.0.1";
/// The connect timeout of a patient client.
const LIMIT: Duration = Duration::from_secs(5);

fn server(identity: Identity) -> Server {
    Server::start_with(PostgresOptions::default().with_tls(identity, None))
}

fn required(server: &Server) -> String {
    server.tcp_url() + "?sslmode=require"
}

fn trusting(authority: &Authority) -> Options {
    patient().root_certificates(authority.certificate())
}

fn with_client(options: Options, identity: &Identity) -> Options {
    options.client_certificate(identity.certificate.as_str(), identity.key.as_str())
}

/// Connects, and checks that this fails for good and in time, with an error that says what to check and
/// doesn't show the password.
async fn refused(server: &Server, mode: &str, options: Options, check: &str) {
    let url = server.tcp_url().replace("locks@", "locks:hunter2@") + mode;
    let begun = Stopwatch::start();
    let text = rejected(PostgresBackend::connect_with(&url, options).await);
    assert!(text.contains(check), "{text}");
    let address = format!("{HOST}:{}", server.postgres.port());
    assert!(text.contains(&address), "{text}");
    assert!(begun.elapsed() < LIMIT, "{text}");
}

/// Commands, renewals and notifications use TLS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_connections_use_tls() {
    let authority = Authority::new();
    let server = server(authority.issue(HOST));
    let (url, options) = (required(&server), trusting(&authority));
    let backend = connect_with(&url, options.clone()).await;
    let session = leasehold_api::SessionId::from_bytes([1; 16]);
    let stream = leasehold_api::LockBackend::listen(&backend, session).await;
    let stream = stream.expect("a stream");
    let kinds = "SELECT string_agg(DISTINCT ssl::text, ' ') || ' ' || count(*) FROM pg_stat_ssl
        JOIN pg_stat_activity USING (pid) WHERE usename = 'locks'";
    assert_eq!(server.execute(kinds), "true 3");
    drop(stream);
    lock_is_handed_over(backend, connect_with(&url, options).await).await;
}

/// A resumed session would not show the certificate again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_certificate_is_noticed_by_the_next_connection() {
    /// Long enough for a busy machine to start the server and to connect.
    const LIFETIME: Duration = Duration::from_secs(30);
    let authority = Authority::new();
    let expires = SystemTime::now() + LIFETIME;
    let server = server(authority.issue_until(HOST, expires));
    let backend = connect_with(&required(&server), trusting(&authority)).await;
    backend.hello().await.expect("an answer");
    let expired = || expires.elapsed().is_ok_and(|since| since.as_secs() >= 1);
    eventually("it has expired", async || expired()).await;
    kill(&server, "true");
    eventually("its certificate is refused", async || {
        let error = backend.hello().await.err();
        error.is_some_and(|it| !it.is_transient() && it.to_string().contains("has expired"))
    })
    .await;
}

/// `prefer` uses TLS if the server has it, and then checks it. Without it, it connects in plain text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sslmode_decides_about_tls() {
    let tls = server(Authority::new().issue(HOST));
    let check = "not issued by a known authority";
    refused(&tls, "?sslmode=prefer", patient(), check).await;
    refused(&tls, "", patient(), check).await;
    refused(&tls, "?sslmode=disable", patient(), "set sslmode=require").await;

    let plain = Server::start_with(PostgresOptions::default().with_access("trust"));
    for mode in ["", "?sslmode=prefer", "?sslmode=disable"] {
        connect_with(&(plain.tcp_url() + mode), patient()).await;
    }
    let check = "the server doesn't use TLS";
    let required = || trusting(&Authority::new());
    refused(&plain, "?sslmode=require", required(), check).await;
    let socket = plain.url() + " sslmode=require";
    let error = rejected(PostgresBackend::connect_with(&socket, required()).await);
    let is_named = error.contains(check) && error.contains(".s.PGSQL.");
    assert!(is_named, "a Unix socket has no TLS: {error}");
}

/// The login is bound to the certificate, so a wrong hash of it fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn password_is_bound_to_the_tls_connection() {
    let authority = Authority::new();
    let options = PostgresOptions::default().with_tls(authority.issue(HOST), None);
    let server = Server::start_with(options.with_access("scram-sha-256"));
    server.execute("ALTER USER locks PASSWORD 'hunter2'");
    let mode = "?sslmode=require&channel_binding=require";
    let url = server.tcp_url().replace("locks@", "locks:hunter2@") + mode;
    connect_with(&url, trusting(&authority)).await;
    let wrong = url.replace("hunter2", "hunter3");
    let error = rejected(PostgresBackend::connect_with(&wrong, trusting(&authority)).await);
    assert!(error.contains("password authentication failed"), "{error}");
    assert!(!error.contains("hunter"), "{error}");
    let without = required(&server);
    let error = rejected(PostgresBackend::connect_with(&without, trusting(&authority)).await);
    assert!(error.contains("the server asks for a password"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_certificate_is_refused() {
    let authority = Authority::new();
    let unknown = "set the authority's certificate with Options::root_certificates";
    let other_host = "the server's certificate is for another host";
    let expired = "the server's certificate has expired";
    let trusting = || trusting(&authority);
    for (identity, options, check) in [
        (Authority::new().issue(HOST), trusting(), unknown),
        // The machine doesn't know it either.
        (authority.issue(HOST), patient(), unknown),
        (authority.issue("db.example"), trusting(), other_host),
        (authority.issue_expired(HOST), trusting(), expired),
    ] {
        refused(&server(identity), "?sslmode=require", options, check).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_certificates_are_shown_or_named() {
    let (authority, of_clients) = (Authority::new(), Authority::new());
    let tls = PostgresOptions::default().with_tls(authority.issue(HOST), Some(&of_clients));
    let server = Server::start_with(tls.with_access("trust clientcert=verify-ca"));
    let trusting = || trusting(&authority);
    let known = with_client(trusting(), &of_clients.issue("locks"));
    connect_with(&required(&server), known).await;
    let check = "set it with Options::client_certificate";
    refused(&server, "?sslmode=require", trusting(), check).await;
    let unknown = with_client(trusting(), &Authority::new().issue("locks"));
    let check = "the server refused the client certificate";
    refused(&server, "?sslmode=require", unknown, check).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_server_fails_in_time() {
    let listener = std::net::TcpListener::bind((HOST, 0)).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let url = format!("postgres://locks@{HOST}:{port}/shop?sslmode=require");
    let begun = Stopwatch::start();
    let options = Options::new()
        .connect_timeout(Duration::from_millis(300))
        .initial_connect_timeout(Duration::from_millis(300));
    let error = PostgresBackend::connect_with(&url, options).await;
    let error = error.expect_err("no answer").to_string();
    assert!(error.contains("no connection in time"), "{error}");
    assert!(begun.elapsed() < LIMIT, "{error}");
}

async fn invalid(url: &str, options: Options, reason: &str) {
    let error = PostgresBackend::connect_with(url, options).await;
    let error = error.expect_err(reason);
    assert!(matches!(error, ConnectError::Invalid(_)), "{error:?}");
    assert!(error.to_string().contains(reason), "{error}");
}

#[tokio::test]
async fn unusable_settings_are_refused_before_any_io() {
    let (authority, nobody) = (Authority::new(), "postgres://locks@127.0.0.1:1/shop");
    let identity = authority.issue("client");
    let other_key = Identity {
        key: authority.issue("another").key,
        ..identity.clone()
    };
    let no_key = Identity {
        key: "hunter2".into(),
        ..identity.clone()
    };
    let require = format!("{nobody}?sslmode=require");
    let trusting = || trusting(&authority);
    let no_root = Options::new().root_certificates("hunter2");
    let other_key = with_client(trusting(), &other_key);
    let no_key = with_client(trusting(), &no_key);
    for (options, reason) in [
        (no_root, "root certificates: there is no"),
        (other_key, "client certificate: "),
        (no_key, "it is not a key"),
    ] {
        let shown = format!("{options:?}");
        let is_hidden = !shown.contains("hunter2") && !shown.contains("PRIVATE");
        assert!(is_hidden, "{shown}");
        invalid(&require, options, reason).await;
    }
    invalid(nobody, trusting(), "they need sslmode=require").await;
    let direct = format!("{nobody}?sslnegotiation=direct");
    invalid(&direct, Options::new(), "direct needs sslmode=require").await;
    let config: Config = nobody.parse().expect("valid");
    let error = PostgresBackend::from_config(config, NoTls, trusting()).await;
    assert_matches!(error, Err(ConnectError::Invalid(_)));
}
