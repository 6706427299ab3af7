//! Constructors and waiting. Commands that the tests themselves send to the server go
//! through the `redis` crate, whichever client library the backend uses.

use std::time::{Duration, Instant};

use leasehold_api::ConnectError;
use leasehold_api::{BackendError, BoxFuture};
use leasehold_redis_common::{Options, RespVersion};

use crate::client;

pub(crate) use super::requests::{Backend, acquire, key, mutex, operation, release, session, soon};

/// How late a call may end on a busy machine.
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
        make: |url, options| Box::pin(connected(url, options)),
        reconnects: true,
        replaces_silent: true,
        push: true,
        notices_disconnect: true,
        notices_demotion: true,
    };
    /// Connects to a URL, over RESP2.
    pub(crate) const URL_RESP2: Self = Self {
        name: "URL with RESP2",
        make: |url, options| Box::pin(connected(url, options.resp(RespVersion::Resp2))),
        ..Self::URL
    };

    pub(crate) async fn open(&self, url: &str) -> Backend {
        self.open_with(url, Options::new()).await
    }

    pub(crate) async fn open_with(&self, url: &str, options: Options) -> Backend {
        (self.make)(url.into(), options).await
    }
}

async fn connected(url: String, options: Options) -> Backend {
    let backend = client::connect_with(&url, options).await;
    backend.expect("connected")
}

/// Connects to a URL.
pub(crate) async fn connect(url: &str) -> Result<Backend, BackendError> {
    match client::connect_with(url, Options::new()).await {
        Ok(backend) => Ok(backend),
        Err(ConnectError::Backend(error)) => Err(error),
        Err(other) => panic!("{other}"),
    }
}

/// Runs a command on the server and returns the debug output of the answer.
pub(crate) async fn admin(url: &str, command: &[&str]) -> String {
    let client = redis::Client::open(url).expect("a good URL");
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    let mut request = redis::Cmd::new();
    request.arg(command);
    let answer: redis::Value = request
        .query_async(&mut connection.await.expect("connected"))
        .await
        .expect("an answer");
    format!("{answer:?}")
}

/// Publishes the messages in order, over one connection.
pub(crate) async fn publish(url: &str, channel: &str, messages: Vec<Vec<u8>>) {
    let client = redis::Client::open(url).expect("a good URL");
    let connection = client.get_multiplexed_async_connection().await;
    let mut connection = connection.expect("connected");
    for message in messages {
        let mut request = redis::cmd("PUBLISH");
        request.arg(channel).arg(message);
        let receivers: u64 = request.query_async(&mut connection).await.expect("sent");
        assert_eq!(receivers, 1, "one subscriber");
    }
}

/// Calls until a call succeeds, and returns the elapsed time. Each call must end in time.
pub(crate) async fn time_to_success(backend: &Backend, limit: Duration) -> Duration {
    let began = Instant::now();
    loop {
        match hello_in_time(backend).await {
            Ok(()) => return began.elapsed(),
            Err(error) => assert!(
                began.elapsed() < limit,
                "no success within {limit:?}, last error: {error}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Makes one call, which must end in time.
pub(crate) async fn hello_in_time(backend: &Backend) -> Result<(), BackendError> {
    let limit = leasehold_api::bounds::CALL_TIMEOUT + LATE;
    tokio::time::timeout(limit, backend.hello())
        .await
        .expect("every call has a time limit")
        .map(drop)
}

/// Waits until `check` returns true.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, check: impl Fn() -> F) {
    let began = Instant::now();
    while !check().await {
        assert!(began.elapsed() < Duration::from_secs(5), "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
