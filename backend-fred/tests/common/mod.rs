//! What the tests of this crate share: the ways to make a backend, and requests.

// Each test program uses a part of it.
#![allow(dead_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use fred::interfaces::ClientLike;
use fred::types::config::{Config, ReconnectPolicy};
use fred::types::{Builder, ClusterHash, CustomCommand, Value};
use leasehold_api::{
    Acquire, BackendError, BoxFuture, Key, LockBackend, LockSpec, Mode, Operation, OwnerId,
    ServerTime, SessionId,
};
use leasehold_fred::{FredBackend, Options, RespVersion};

pub(crate) type Backend = Arc<dyn LockBackend>;

/// Longer than a test takes on a machine that is busy.
pub(crate) const LEASE: Duration = Duration::from_secs(600);

/// A call may end this much after its limit on a busy machine.
pub(crate) const LATE: Duration = Duration::from_millis(500);
/// The first success comes within this time after the server answers again.
pub(crate) const RECOVERY: Duration = Duration::from_secs(1);

/// One way to make a backend.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    make: fn(String, Options) -> BoxFuture<'static, Backend>,
    /// Finds its way back after a broken connection.
    pub(crate) reconnects: bool,
    /// Finds its way back from a connection that has gone silent.
    pub(crate) replaces_silent: bool,
    /// Can listen.
    pub(crate) push: bool,
    /// Learns that a connection has ended before anything is sent into it.
    pub(crate) told_of_ends: bool,
}

impl Way {
    pub(crate) async fn open(&self, url: &str) -> Backend {
        self.open_with(url, Options::new()).await
    }

    pub(crate) async fn open_with(&self, url: &str, options: Options) -> Backend {
        (self.make)(url.into(), options).await
    }
}

/// All ways to make a backend.
pub(crate) const WAYS: [Way; 6] = [
    Way {
        name: "URL",
        make: |url, options| {
            Box::pin(async move {
                let backend = FredBackend::connect_with(&url, options).await;
                Arc::new(backend.expect("connected")) as Backend
            })
        },
        reconnects: true,
        replaces_silent: true,
        push: true,
        told_of_ends: true,
    },
    Way {
        name: "URL with RESP2",
        make: |url, options| {
            Box::pin(async move {
                let options = options.with_resp(RespVersion::Resp2);
                let backend = FredBackend::connect_with(&url, options).await;
                Arc::new(backend.expect("connected")) as Backend
            })
        },
        reconnects: true,
        replaces_silent: true,
        push: true,
        told_of_ends: true,
    },
    Way {
        name: "Builder",
        make: |url, options| {
            Box::pin(async move {
                let backend = FredBackend::from_builder(&reconnecting(&url), options);
                Arc::new(backend.expect("usable")) as Backend
            })
        },
        reconnects: true,
        replaces_silent: true,
        push: true,
        told_of_ends: true,
    },
    Way {
        name: "Client with default attempts",
        make: |url, options| {
            Box::pin(async move {
                let client = reconnecting(&url).build().expect("a client");
                client.init().await.expect("connected");
                let backend = FredBackend::from_client(client, options);
                Arc::new(backend.expect("usable")) as Backend
            })
        },
        reconnects: true,
        replaces_silent: true,
        push: false,
        told_of_ends: false,
    },
    Way {
        name: "Pool",
        make: |url, options| {
            Box::pin(async move {
                let mut builder = reconnecting(&url);
                builder.with_connection_config(|config| config.max_command_attempts = 1);
                let pool = builder.build_pool(3).expect("a pool");
                pool.init().await.expect("connected");
                let backend = FredBackend::from_pool(pool, options);
                Arc::new(backend.expect("usable")) as Backend
            })
        },
        reconnects: true,
        replaces_silent: true,
        push: false,
        told_of_ends: false,
    },
    Way {
        name: "Client without a policy",
        make: |url, options| {
            Box::pin(async move {
                let config = Config::from_url(&url).expect("a good URL");
                let client = Builder::from_config(config).build().expect("a client");
                client.init().await.expect("connected");
                let backend = FredBackend::from_client(client, options);
                Arc::new(backend.expect("usable")) as Backend
            })
        },
        reconnects: false,
        replaces_silent: false,
        push: false,
        told_of_ends: false,
    },
];

/// A user's configuration: reconnecting quickly and for ever, the rest as the library has it.
pub(crate) fn reconnecting(url: &str) -> Builder {
    let mut builder = Builder::from_config(Config::from_url(url).expect("a good URL"));
    let mut policy = ReconnectPolicy::new_constant(0, 1);
    policy.set_jitter(1);
    builder.set_policy(policy);
    builder
}

/// Makes a backend from a URL and says what came of it.
pub(crate) async fn connect(url: &str) -> Result<Backend, BackendError> {
    match FredBackend::connect(url).await {
        Ok(backend) => Ok(Arc::new(backend)),
        Err(leasehold_fred::ConnectError::Backend(error)) => Err(error),
        Err(other) => panic!("{other}"),
    }
}

/// Runs a command on the server and returns the answer as the library prints it.
pub(crate) async fn admin(url: &str, command: &[&str]) -> String {
    let config = Config::from_url(url).expect("a good URL");
    let client = Builder::from_config(config).build().expect("a client");
    client.init().await.expect("connected");
    let arguments = command[1..].iter().map(|&text| Value::from(text)).collect();
    let request = CustomCommand::new(command[0], ClusterHash::Random, false);
    let answer: Value = client.custom(request, arguments).await.expect("an answer");
    client.quit().await.expect("closed");
    format!("{answer:?}")
}

/// Publishes the messages in their order, over one connection.
pub(crate) async fn publish(url: &str, channel: &str, messages: Vec<Vec<u8>>) {
    let config = Config::from_url(url).expect("a good URL");
    let client = Builder::from_config(config).build().expect("a client");
    client.init().await.expect("connected");
    for message in messages {
        let request = CustomCommand::new_static("PUBLISH", ClusterHash::Random, false);
        let arguments = vec![Value::from(channel), Value::Bytes(message.into())];
        let heard: u64 = client.custom(request, arguments).await.expect("sent");
        assert_eq!(heard, 1, "one subscriber");
    }
    client.quit().await.expect("closed");
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(name).expect("a good key")
}

pub(crate) fn session(number: u8) -> SessionId {
    SessionId::from_bytes([number; 16])
}

/// The `sequence`th operation of a session, with an owner of its own.
pub(crate) fn operation(session: SessionId, sequence: u64) -> Operation {
    Operation {
        session,
        sequence,
        owner: OwnerId::from_u64(sequence),
    }
}

/// A time soon after now, on the server's clock.
pub(crate) async fn soon(backend: &Backend) -> ServerTime {
    let stamp = backend.hello().await.expect("the server answers");
    stamp.at.saturating_add(Duration::from_secs(9))
}

/// An acquire of a mutex for [`LEASE`] that does not wait.
pub(crate) fn mutex(key: &Key, operation: Operation, before: ServerTime) -> Acquire {
    let spec = LockSpec::mutex();
    Acquire::new(key.clone(), spec, Mode::Exclusive, operation, LEASE, before)
        .expect("a good request")
}

/// Calls until it works, and returns how long that took. Each call must end in its time.
pub(crate) async fn time_to_success(backend: &Backend, limit: Duration) -> Duration {
    let began = Instant::now();
    loop {
        match hello_in_time(backend).await {
            Ok(()) => return began.elapsed(),
            Err(error) => assert!(
                began.elapsed() < limit,
                "no success within {limit:?}, at last: {error}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// One call, which must end in its time.
pub(crate) async fn hello_in_time(backend: &Backend) -> Result<(), BackendError> {
    let limit = leasehold_api::bounds::CALL_TIMEOUT + LATE;
    tokio::time::timeout(limit, backend.hello())
        .await
        .expect("every call is bounded")
        .map(drop)
}

/// Waits until `check` holds.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, check: impl Fn() -> F) {
    let began = Instant::now();
    while !check().await {
        assert!(began.elapsed() < Duration::from_secs(5), "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
