//! Constructors, users and waiting.
//!
//! Tests block while they start servers or send commands to them. The future of a test runs on a thread of its own
//! beside the workers of its runtime, so the tasks of clients and proxies go on.

use std::time::{Duration, Instant};

use leasehold_api::bounds::CALL_TIMEOUT;
use leasehold_api::{
    BackendError, BoxFuture, ConnectError, Error, FencingToken, LockClient, MutexGuard,
};
use leasehold_redis_common::{Options, RespVersion};
use leasehold_test_servers::{RedisServer, ServerAway, Stopwatch, throughout};
use tokio::task::JoinHandle;

use crate::client;

pub(crate) use leasehold_test_servers::eventually;

pub(crate) use super::requests::{Backend, acquire, key, mutex, operation, release, session, soon};

/// How much later than its limit a call may end.
pub(crate) const LATE: Duration = Duration::from_millis(500);
/// The time limit for the first success after the server answers again.
pub(crate) const RECOVERY: Duration = Duration::from_secs(1);

/// A constructor of the tested backend, and the abilities of the backend that it returns.
#[derive(Clone, Copy)]
pub(crate) struct Constructor {
    pub(crate) name: &'static str,
    pub(crate) make: fn(String, Options) -> BoxFuture<'static, Backend>,
    /// Recovers from a broken connection.
    pub(crate) reconnects: bool,
    /// Recovers from a silent connection.
    pub(crate) replaces_silent: bool,
    /// Supports `listen`.
    pub(crate) push: bool,
    /// Notices the end of a connection before it sends anything over it.
    pub(crate) notices_disconnect: bool,
    /// Whether a subscription can ask for the role of its server. Over RESP2, a connection that is
    /// subscribed may not ask, and only redis-rs has another one.
    pub(crate) notices_demotion: bool,
}

impl Constructor {
    /// Connects to a URL, over RESP3.
    pub(crate) const URL: Self = Self {
        name: "URL",
        make: |url, options| Box::pin(async move { connected_with(&url, options).await }),
        reconnects: true,
        replaces_silent: true,
        push: true,
        notices_disconnect: true,
        notices_demotion: true,
    };
    /// Connects to a URL, over RESP2.
    pub(crate) const URL_RESP2: Self = Self {
        name: "URL with RESP2",
        make: |url, options| (Self::URL.make)(url, options.resp(RespVersion::Resp2)),
        ..Self::URL
    };

    pub(crate) async fn open(&self, url: &str) -> Backend {
        self.open_with(url, Options::new()).await
    }

    /// Connects. Says so, because the name belongs to the message of a test that fails.
    pub(crate) async fn open_with(&self, url: &str, options: Options) -> Backend {
        println!("{}", self.name);
        (self.make)(url.into(), options).await
    }
}

/// Connects to a URL, with the default options.
pub(crate) async fn connected(url: &str) -> Backend {
    connected_with(url, Options::new()).await
}

pub(crate) async fn connected_with(url: &str, options: Options) -> Backend {
    let backend = client::connect_with(url, options).await;
    backend.unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// Connects, which must fail. Returns the error and the elapsed time.
pub(crate) async fn refused(url: &str, options: Options) -> (BackendError, Duration) {
    let began = Stopwatch::start();
    match client::connect_with(url, options).await {
        Err(ConnectError::Backend(error)) => (error, began.elapsed()),
        other => panic!("{url}: {other:?}"),
    }
}

/// Checks that an attempt was refused for good, and that the error says this.
#[track_caller]
pub(crate) fn expect_rejected(error: &BackendError, text: &str) {
    assert!(
        matches!(error, BackendError::Rejected { .. }),
        "{text:?}: {error}"
    );
    assert!(
        error.to_string().contains(text),
        "{text:?} is not in: {error}"
    );
}

/// Checks that a call was not executed, and that the error says this.
#[track_caller]
pub(crate) fn expect_unavailable(error: &BackendError, text: &str) {
    assert!(
        matches!(error, BackendError::Unavailable { .. }),
        "{text:?}: {error}"
    );
    assert!(
        error.to_string().contains(text),
        "{text:?} is not in: {error}"
    );
}

/// A client with the default options.
pub(crate) async fn client(url: &str) -> LockClient {
    LockClient::new(connected(url).await)
}

/// Acquires a free lock.
pub(crate) async fn hold(locks: &LockClient, name: &str, lease: Duration) -> MutexGuard {
    let mutex = locks.mutex(name).expect("a good key").lease(lease);
    mutex.lock().await.expect("acquired")
}

/// A task that waits for a lock.
pub(crate) type Waiting = JoinHandle<Result<MutexGuard, Error>>;

/// Starts to wait for a lock that another client holds.
pub(crate) async fn wait_in_line(locks: &LockClient, name: &str, lease: Duration) -> Waiting {
    let waiting = locks.mutex(name).expect("a good key").lease(lease);
    let waiting = tokio::spawn(async move { waiting.lock().await });
    eventually("it waits", async || {
        let found = locks.inspect(name).await;
        found.is_ok_and(|it| it.waiters().len() == 1)
    })
    .await;
    waiting
}

/// Gives a user these rights and no others. Returns the URL with its login.
pub(crate) fn url_with_rights(server: &RedisServer, rights: &[&str]) -> String {
    let user = [
        "ACL",
        "SETUSER",
        "locks",
        "reset",
        "resetchannels",
        "on",
        ">secret",
    ];
    server.run(&[&user[..], rights].concat());
    server.url().replace("://", "://locks:secret@")
}

/// A connection of the test itself, through the `redis` crate, whichever client library the backend uses.
pub(crate) async fn connection(url: &str) -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(url).expect("a good URL");
    // A busy machine may take longer than the library's default.
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    connection.await.expect("connected")
}

/// Publishes the messages in order, over one connection.
pub(crate) async fn publish(url: &str, channel: &str, messages: Vec<Vec<u8>>) {
    let mut connection = connection(url).await;
    for message in messages {
        let mut request = redis::cmd("PUBLISH");
        request.arg(channel).arg(message);
        let receivers: u64 = request.query_async(&mut connection).await.expect("sent");
        assert_eq!(receivers, 1, "one subscriber");
    }
}

/// The time for which a client had a valid guard, by its own clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) from: Instant,
    pub(crate) until: Instant,
    pub(crate) token: FencingToken,
}

/// Checks that no two claims overlap, and that tokens only grow.
pub(crate) fn assert_exclusive(mut claims: Vec<Claim>) {
    claims.sort_by_key(|claim| claim.from);
    for pair in claims.windows(2) {
        assert!(pair[0].until <= pair[1].from, "two holders: {pair:?}");
        assert!(pair[0].token < pair[1].token, "tokens: {pair:?}");
    }
}

/// Calls until a call succeeds, which must be soon. Each call must end in time.
pub(crate) async fn recovers_within(limit: Duration, backend: &Backend) {
    let began = Stopwatch::start();
    recovers(backend).await;
    let took = began.elapsed();
    assert!(took <= limit, "took {took:?}");
}

/// Calls until a call succeeds. Each call must end in time.
pub(crate) async fn recovers(backend: &Backend) {
    eventually("a call succeeds", async || {
        hello_in_time(backend).await.is_ok()
    })
    .await;
}

/// Makes one call, which must end in time.
pub(crate) async fn hello_in_time(backend: &Backend) -> Result<(), BackendError> {
    let began = Stopwatch::start();
    let answer = backend.hello().await;
    let took = began.elapsed();
    assert!(took <= CALL_TIMEOUT + LATE, "{took:?}: {answer:?}");
    answer.map(drop)
}

/// Waits while a server is away for 5 s. A client makes about two attempts to connect a second, after some in the first
/// second. Each may be two connections: for commands, and for messages over RESP2.
pub(crate) async fn stays_away(server: &ServerAway) {
    const AWAY: Duration = Duration::from_secs(5);
    let attempts = || server.connections();
    throughout(AWAY, "attempts are few", async || attempts() <= 35).await;
    assert!(attempts() >= 2, "{} attempts", attempts());
}
