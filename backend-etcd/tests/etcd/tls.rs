//! Connections with TLS, and readable errors for each way in which they can fail.

use std::time::Duration;

use leasehold_api::{BackendError, LockClient};
use leasehold_etcd::{ConnectError, EtcdBackend, Options};
use leasehold_test_servers::{Authority, EtcdServer, Identity, Stopwatch};

use super::{calls, connect, execute, patient, use_once};

const HOST: &str = "127.0.0.1";
/// A client that tried again would give up after 5 s.
const AT_ONCE: Duration = Duration::from_secs(4);

/// A server, its authority, and that of its clients.
fn server_of(host: &str) -> (EtcdServer, Authority, Authority) {
    let (authority, of_clients) = (Authority::new(), Authority::new());
    let server = EtcdServer::start_with_tls(&authority.issue(host), &of_clients);
    (server, authority, of_clients)
}

fn trusting(authority: &Authority, client: &Identity) -> Options {
    let options = patient().root_certificates(authority.certificate());
    options.client_certificate(client.certificate.as_str(), client.key.as_str())
}

/// Connects, and checks that this fails at once and for good, with an error that says what to check.
async fn refused(url: &str, options: Options, check: &str) {
    let begun = Stopwatch::start();
    match EtcdBackend::connect_with(url, options).await {
        Err(ConnectError::Backend(error @ BackendError::Rejected { .. })) => {
            assert!(error.to_string().contains(check), "{error}");
        }
        other => panic!("{check}: {other:?}"),
    }
    assert!(begun.elapsed() < AT_ONCE, "{check}: {:?}", begun.elapsed());
}

/// Without a login, the server knows a user by the certificate.
#[tokio::test]
async fn lock_is_taken_by_the_user_of_a_certificate() {
    let (server, authority, of_clients) = server_of(HOST);
    for command in [
        "user add root:root",
        "user grant-role root root",
        "user add locks:s3cret",
        "role add locks",
        "role grant-permission locks readwrite leasehold/ --prefix=true",
        "user grant-role locks locks",
        "auth enable",
    ] {
        execute(&server, command);
    }
    let connect = async |url: &str, user: &str| -> LockClient {
        connect(url, trusting(&authority, &of_clients.issue(user))).await
    };
    use_once(&connect(&server.url(), "locks").await, "k").await;
    let with_login = server.url().replace("://", "://locks:s3cret@");
    use_once(&connect(&with_login, "nobody").await, "k").await;
    let nobody = trusting(&authority, &of_clients.issue("nobody"));
    refused(&server.url(), nobody, "etcd refuses: ").await;
}

#[tokio::test]
async fn bad_certificates_are_refused() {
    let (server, authority, of_clients) = server_of(HOST);
    let (elsewhere, its_authority, its_clients) = server_of("db.example");
    let client = of_clients.issue("locks");
    let unknown = "was not issued by a known authority";
    let another = trusting(&Authority::new(), &client);
    refused(&server.url(), another, unknown).await;
    // The machine doesn't know it either.
    refused(&server.url(), patient(), unknown).await;
    let other_host = trusting(&its_authority, &its_clients.issue("locks"));
    refused(&elsewhere.url(), other_host, "is for another host").await;
    let none = || patient().root_certificates(authority.certificate());
    let strange = || trusting(&authority, &Authority::new().issue("locks"));
    // The server says so after its part of the handshake.
    for _ in 0..5 {
        let check = "refused the client certificate, or wants one";
        refused(&server.url(), none(), check).await;
        refused(&server.url(), strange(), check).await;
    }
}

#[tokio::test]
async fn server_without_tls_gets_no_login() {
    let server = EtcdServer::start();
    let url = server
        .url()
        .replace("etcd://", "etcds://locks:s3cret@127.0.0.1:1,");
    let options = || patient().root_certificates(Authority::new().certificate());
    // A handshake has the end of a line by chance, and the server waits for one.
    for _ in 0..10 {
        refused(&url, options(), "the server doesn't use TLS").await;
    }
    assert_eq!(calls(&server, "Authenticate"), 0);
}

#[tokio::test]
async fn unusable_settings_are_refused_before_any_io() {
    let authority = Authority::new();
    let client = authority.issue("locks");
    let other_key = Identity {
        key: authority.issue("another").key,
        ..client.clone()
    };
    let trusting = |client| trusting(&authority, client);
    for (url, options, reason) in [
        (
            "etcds://127.0.0.1:1",
            trusting(&other_key),
            "client certificate: ",
        ),
        (
            "etcds://127.0.0.1:1",
            Options::new().root_certificates(""),
            "root certificates: ",
        ),
        (
            "etcd://127.0.0.1:1",
            trusting(&client),
            "they need etcds:// in the URL",
        ),
        (
            "etcds://127.0.0.1:1,http://127.0.0.1:2",
            trusting(&client),
            "or etcds:// for all",
        ),
        (
            "etcds://127.0.0.1:1,etcd://127.0.0.1:2",
            trusting(&client),
            "or etcds:// for all",
        ),
    ] {
        let error = EtcdBackend::connect_with(url, options).await;
        match error {
            Err(ConnectError::Invalid(error)) if error.to_string().contains(reason) => {}
            other => panic!("{reason}: {other:?}"),
        }
    }
}
