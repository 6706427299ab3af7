//! Connections with TLS, and readable errors for each way in which they can fail.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, SystemTime};

use leasehold_api::{BackendError, LockClient};
use leasehold_mysql::{ConnectError, MysqlBackend, Options};
use leasehold_test_servers::{Authority, Identity, MariaDb, Stopwatch, eventually};

use super::support::{USER, prepared, server};
use super::use_once;

const HOST: &str = "127.0.0.1";
/// A client that tried again would give up after 5 s.
const AT_ONCE: Duration = Duration::from_secs(4);

/// A server that requires TLS, its authority, and that of its clients.
fn server_of(host: &str) -> (MariaDb, Authority, Authority) {
    let (authority, of_clients) = (Authority::new(), Authority::new());
    let server = MariaDb::start_with_tls(&authority.issue(host), &of_clients);
    (prepared(server), authority, of_clients)
}

fn url(server: &MariaDb) -> String {
    server.url(USER) + "?require_ssl=true"
}

fn trusting(authority: &Authority) -> Options {
    Options::new().root_certificates(authority.certificate())
}

fn with_client(options: Options, identity: &Identity) -> Options {
    options.client_certificate(identity.certificate.as_str(), identity.key.as_str())
}

/// Connects, and checks that this fails at once and for good, with an error that says what to check.
async fn refused(url: &str, options: Options, check: &str) {
    let begun = Stopwatch::start();
    match MysqlBackend::connect_with(url, options).await {
        Err(ConnectError::Backend(error @ BackendError::Rejected { .. })) => {
            assert!(error.to_string().contains(check), "{error:?}");
        }
        other => panic!("{check}: {other:?}"),
    }
    assert!(begun.elapsed() < AT_ONCE, "{check}: {:?}", begun.elapsed());
}

/// A session that is resumed would not show the certificate again.
#[tokio::test]
async fn expired_certificate_is_noticed_by_the_next_connection() {
    /// Long enough for a busy machine to start the server and to connect.
    const LIFETIME: Duration = Duration::from_secs(30);
    let (authority, expires) = (Authority::new(), SystemTime::now() + LIFETIME);
    let identity = authority.issue_until(HOST, expires);
    let server = prepared(MariaDb::start_with_tls(&identity, &authority));
    let backend = MysqlBackend::connect_with(&url(&server), trusting(&authority)).await;
    let locks = LockClient::new(backend.expect("connected"));
    let once = |key| use_once(&locks, key);
    tokio::join!(once("a"), once("b"), once("c"), once("d"));
    let plain = "requires TLS";
    refused(&server.url(USER), Options::new(), plain).await;
    let expired = async || expires.elapsed().is_ok_and(|since| since.as_secs() >= 1);
    eventually("it has expired", expired).await;
    server.execute("mysql", &format!("KILL USER {USER}"));
    let error = locks.mutex("a").expect("a key").try_lock().await;
    let error = error.expect_err("no connection");
    let is_named = error.to_string().contains("has expired");
    assert!(!error.is_transient() && is_named, "{error:?}");
}

#[tokio::test]
async fn bad_certificates_are_refused() {
    let (server, authority, of_clients) = server_of(HOST);
    let (elsewhere, its_authority, _) = server_of("db.example");
    let unknown = "was not issued by a known authority";
    refused(&url(&server), trusting(&Authority::new()), unknown).await;
    // The machine doesn't know it either.
    refused(&url(&server), Options::new(), unknown).await;
    let other_host = "is for another host";
    refused(&url(&elsewhere), trusting(&its_authority), other_host).await;

    server.execute("mysql", &format!("ALTER USER {USER}@'{HOST}' REQUIRE X509"));
    let known = with_client(trusting(&authority), &of_clients.issue(USER));
    let connected = MysqlBackend::connect_with(&url(&server), known).await;
    use_once(&LockClient::new(connected.expect("connected")), "k").await;
    let strange = || with_client(trusting(&authority), &Authority::new().issue(USER));
    for _ in 0..5 {
        let check = "refused the client certificate";
        refused(&url(&server), strange(), check).await;
        let check = "or its certificate";
        refused(&url(&server), trusting(&authority), check).await;
    }
}

/// The server greets first, and the client leaves before it has said anything.
#[tokio::test]
async fn server_without_tls_hears_nothing() {
    let server = server(&[]);
    let check = "the server doesn't use TLS";
    refused(&url(&server), trusting(&Authority::new()), check).await;
    let listener = TcpListener::bind((HOST, 0)).expect("a port");
    let listening = listener.local_addr().expect("bound").port();
    let port = server.port();
    let heard = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        let mut greeting = [0; 1024];
        let mut server = TcpStream::connect((HOST, port)).expect("it runs");
        let length = server.read(&mut greeting).expect("a greeting");
        client.write_all(&greeting[..length]).expect("written");
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).map(|_| heard)
    });
    let url = format!("mysql://{USER}:s3cret@{HOST}:{listening}/shop?require_ssl=true");
    refused(&url, trusting(&Authority::new()), check).await;
    let heard = heard.join().expect("no panic").expect("the client leaves");
    assert_eq!(heard, b"", "{}", String::from_utf8_lossy(&heard));
}

#[tokio::test]
async fn unusable_certificates_are_refused_before_any_io() {
    let authority = Authority::new();
    let no_key = Identity {
        key: "s3cret".into(),
        ..authority.issue(USER)
    };
    let nobody = "mysql://locks@127.0.0.1:1/shop";
    let required = &format!("{nobody}?require_ssl=true");
    for (url, options, reason) in [
        (nobody, trusting(&authority), "they need require_ssl=true"),
        (
            required,
            Options::new().root_certificates(""),
            "root certificates: ",
        ),
        (
            required,
            with_client(trusting(&authority), &no_key),
            "it is not a key",
        ),
    ] {
        let shown = format!("{options:?}");
        assert!(
            !shown.contains("s3cret") && !shown.contains("CERTIFICATE"),
            "{shown}"
        );
        match MysqlBackend::connect_with(url, options).await {
            Err(ConnectError::Invalid(error)) if error.to_string().contains(reason) => {}
            other => panic!("{reason}: {other:?}"),
        }
    }
}
