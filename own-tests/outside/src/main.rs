//! A program without any TLS feature. No constructor may send in plain text what a URL with TLS protects.
//! It also lacks `postgres` and has both Redis libraries, and `leasehold::connect` must say so.

use std::io::Read;
use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use fred::types::Builder;
use fred::types::config::Config;
use leasehold::ConnectError;
use leasehold::backend::LockBackend;
use leasehold::fred_rs::{FredBackend, Options};
use leasehold::redis_rs::RedisBackend;
use redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};

const LOGIN: &str = "me:hunter2";

/// Listens on a port, and passes on the first bytes of every connection.
struct Listener {
    port: u16,
    heard: mpsc::Receiver<Vec<u8>>,
}

impl Listener {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (sender, heard) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut bytes = vec![0; 1_024];
                let read = stream.and_then(|mut stream| stream.read(&mut bytes));
                bytes.truncate(read.unwrap_or(0));
                if sender.send(bytes).is_err() {
                    return;
                }
            }
        });
        Self { port, heard }
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{LOGIN}@127.0.0.1:{}", self.port)
    }

    /// Waits for the first bytes.
    fn heard(&self) -> String {
        let bytes = self.heard.recv_timeout(Duration::from_secs(10));
        String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
    }

    /// Fails if anybody has connected or connects soon.
    fn heard_nothing(&self, what: &str) {
        let bytes = self.heard.recv_timeout(Duration::from_millis(100));
        let bytes = bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(bytes.is_err(), "{what} has sent {bytes:?}");
    }
}

fn options() -> Options {
    Options::new().initial_connect_timeout(Duration::from_secs(1))
}

/// A backend that was not refused must send something, so that the listener can tell what.
async fn is_refused(what: &str, listener: &Listener, made: Result<impl LockBackend, ConnectError>) {
    match made {
        Err(error) => {
            assert!(
                matches!(error, ConnectError::Invalid(_)),
                "{what}: {error:?}"
            );
            let text = format!("{error} {error:?}");
            assert!(
                text.contains("tls-rustls") || text.contains("needs TLS"),
                "{what}: {text}"
            );
            assert!(!text.contains("hunter2"), "{what}: {text}");
        }
        Ok(backend) => {
            let answer = backend.hello().await;
            panic!("{what}: {answer:?} after sending {:?}", listener.heard());
        }
    }
    listener.heard_nothing(what);
}

async fn fred_refuses(scheme: &str) {
    let listener = Listener::start();
    let url = listener.url(scheme);
    let made = FredBackend::connect_with(&url, options()).await;
    is_refused(&url, &listener, made).await;
    let query = "?sentinelServiceName=locks";
    let config = Config::from_url(&format!("{url}{query}")).expect("fred reads it");
    assert!(!config.uses_tls(), "now fred tells");
    let builder = Builder::from_config(config);
    let made = FredBackend::from_builder(&builder, options());
    is_refused(&format!("{scheme}, a builder"), &listener, made).await;
    let client = builder.build().expect("a client");
    let made = FredBackend::from_client(&client, options());
    is_refused(&format!("{scheme}, a client"), &listener, made).await;
    let pool = builder.build_pool(2).expect("a pool");
    let made = FredBackend::from_pool(&pool, options());
    is_refused(&format!("{scheme}, a pool"), &listener, made).await;
}

async fn redis_rs_refuses() {
    let listener = Listener::start();
    let url = listener.url("rediss");
    let made = RedisBackend::connect_with(&url, options()).await;
    is_refused(&url, &listener, made).await;
    redis::Client::open(url).expect_err("the library refuses the URL");
    // An address without a URL. The library makes the client, but no connection.
    let address = ConnectionAddr::TcpTls {
        host: "127.0.0.1".to_owned(),
        port: listener.port,
        insecure: false,
        tls_params: None,
    };
    let login = RedisConnectionInfo::default()
        .set_username("me")
        .set_password("hunter2");
    let info = address
        .into_connection_info()
        .expect("an address")
        .set_redis_settings(login);
    if let Ok(client) = redis::Client::open(info) {
        let backend = RedisBackend::from_client(&client, options()).expect("options in range");
        backend.hello().await.expect_err("there is no TLS");
    }
    listener.heard_nothing("an address with TLS");
}

/// Without the feature, or with two for one URL, the error says what to do. It shows no password.
async fn connect_names_the_feature() {
    for (scheme, expected) in [
        ("postgres", "`postgres`"),
        ("mysql", "`mysql`"),
        ("mariadb", "`mysql`"),
        ("etcd", "`etcd`"),
        ("nats", "`nats`"),
        ("sqlite", "`sqlite`"),
        ("s3", "`object-store`"),
        ("redis", "ConnectOptions::redis_library"),
    ] {
        let connected = leasehold::connect(&format!("{scheme}://{LOGIN}@127.0.0.1:1")).await;
        let error = connected.expect_err("not clear which backend");
        assert!(matches!(error, ConnectError::Invalid(_)), "{error:?}");
        let text = format!("{error} {error:?}");
        assert!(
            error.to_string().contains(expected) && !text.contains("hunter2"),
            "{text}"
        );
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    connect_names_the_feature().await;
    // Without TLS in the URL the login is sent, and the listener hears it.
    let listener = Listener::start();
    let refused = FredBackend::connect_with(&listener.url("redis"), options()).await;
    refused.expect_err("nobody answers");
    assert!(listener.heard().contains("hunter2"));

    for scheme in ["rediss", "valkeys", "rediss-cluster", "rediss-sentinel"] {
        fred_refuses(scheme).await;
    }
    let socket = Config::from_url("redis+unix:///nowhere").expect("a path");
    let socket = FredBackend::from_builder(&Builder::from_config(socket), options());
    socket.expect("a Unix socket needs no TLS");
    redis_rs_refuses().await;
}
