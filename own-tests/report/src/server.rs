//! The server under test, as the suite sees it.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Capabilities, Key, LockBackend, Release, ReleaseReply,
    Stamped, forward_lock_backend,
};
use leasehold_conformance::{Environment, Harness, SetupError, Timing};
use leasehold_fred::FredBackend;
use leasehold_postgres::{PostgresBackend, tokio_postgres};
use leasehold_redis_common::script::{Protocol, ScriptSettings};
use leasehold_redis_common::{Options, ServerChecks};
use leasehold_redis_rs::RedisBackend;

use crate::Problem;
use crate::args::{Args, Client, address};

/// How long a client tries to connect. The server may be far away.
const CONNECT: Duration = Duration::from_secs(5);
/// The number of keys that are removed together.
const REMOVED_TOGETHER: usize = 100;

/// How to reach the server.
enum Service {
    Redis(Client, String),
    Postgres(String),
}

impl Service {
    fn url(&self) -> &str {
        match self {
            Self::Redis(_, url) | Self::Postgres(url) => url,
        }
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Redis(Client::RedisRs, _) => "redis-rs",
            Self::Redis(Client::Fred, _) => "fred",
            Self::Postgres(_) => "postgres",
        }
    }

    async fn connect(&self, prefix: &str) -> Result<Arc<dyn LockBackend>, Problem> {
        let options = Options::new()
            .key_prefix(prefix)
            // The suite checks the locks, not the settings of the server.
            .server_checks(ServerChecks::Warn)
            .connect_timeout(CONNECT);
        Ok(match self {
            Self::Redis(Client::RedisRs, url) => {
                Arc::new(RedisBackend::connect_with(url, options).await?)
            }
            Self::Redis(Client::Fred, url) => {
                Arc::new(FredBackend::connect_with(url, options).await?)
            }
            Self::Postgres(url) => {
                let options = leasehold_postgres::Options::new()
                    .key_prefix(prefix)
                    .connect_timeout(CONNECT);
                Arc::new(PostgresBackend::connect_with(url, options).await?)
            }
        })
    }

    /// The name of a key in the server.
    fn stored(&self, prefix: &str, key: &Key) -> Result<Vec<u8>, Problem> {
        Ok(match self {
            Self::Redis(..) => Protocol::new(prefix, ScriptSettings::default())?.key(key),
            Self::Postgres(_) => leasehold_postgres::row_key(prefix, key),
        })
    }
}

/// Shows no password.
impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.name(), address(self.url()))
    }
}

/// The server under test.
#[derive(Debug)]
pub(crate) struct Server {
    service: Service,
    capabilities: Capabilities,
    prefix: String,
    unit: Duration,
    /// The prefixes and keys that the cases have used.
    used: Mutex<BTreeSet<(String, Key)>>,
}

impl Server {
    /// Connects to the server that the command line names.
    pub(crate) async fn find(args: &Args) -> Result<Self, Problem> {
        let service = match (&args.redis, &args.postgres) {
            (Some(url), _) => Service::Redis(args.client, url.clone()),
            (None, Some(url)) => Service::Postgres(url.clone()),
            (None, None) => return Err("no server was named".into()),
        };
        let random = RandomState::new().build_hasher().finish();
        // Users of Redis may have rights for the default prefix only.
        let prefix = format!("leasehold:conformance-{random:016x}:");
        let backend = service.connect(&prefix).await?;
        backend.hello().await?;
        let capabilities = backend.capabilities();
        backend.close().await?;
        Ok(Self {
            service,
            capabilities,
            prefix,
            unit: Duration::from_millis(args.unit),
            used: Mutex::default(),
        })
    }

    /// The server's URL, without secrets.
    pub(crate) fn address(&self) -> String {
        address(self.service.url())
    }

    /// The prefix of all keys.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    fn used(&self) -> MutexGuard<'_, BTreeSet<(String, Key)>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the keys of this run. Returns their number.
    pub(crate) async fn remove_keys(&self) -> Result<usize, Problem> {
        let used = mem::take(&mut *self.used());
        let mut keys = Vec::new();
        for (prefix, key) in used {
            keys.push(self.service.stored(&prefix, &key)?);
        }
        match &self.service {
            Service::Redis(_, url) => remove_from_redis(url, &keys).await?,
            Service::Postgres(url) => remove_from_postgres(url, &keys).await?,
        }
        Ok(keys.len())
    }
}

async fn remove_from_redis(url: &str, keys: &[Vec<u8>]) -> Result<(), Problem> {
    let scheme = url.split("://").next().unwrap_or_default();
    if !["redis", "valkey", "unix", "redis+unix", "valkey+unix"].contains(&scheme) {
        return Err("keys are removed only from single servers without TLS".into());
    }
    // The message of a refused URL may repeat it.
    let client = redis::Client::open(url).map_err(|_| "the URL can't be used")?;
    let connect = tokio::time::timeout(CONNECT, client.get_multiplexed_async_connection());
    let mut connection = connect.await??;
    for some in keys.chunks(REMOVED_TOGETHER) {
        let mut unlink = redis::cmd("UNLINK");
        unlink.arg(some);
        tokio::time::timeout(CONNECT, unlink.exec_async(&mut connection)).await??;
    }
    Ok(())
}

async fn remove_from_postgres(url: &str, keys: &[Vec<u8>]) -> Result<(), Problem> {
    let config: tokio_postgres::Config = url.parse()?;
    if config.get_ssl_mode() == tokio_postgres::config::SslMode::Require {
        return Err("keys are removed only from servers without TLS".into());
    }
    let connect = config.connect(tokio_postgres::NoTls);
    let (client, connection) = tokio::time::timeout(CONNECT, connect).await??;
    tokio::spawn(connection);
    let statement = "DELETE FROM leasehold.locks WHERE key = ANY($1)";
    tokio::time::timeout(CONNECT, client.execute(statement, &[&keys])).await??;
    Ok(())
}

/// The harness of the suite.
#[derive(Debug)]
pub(crate) struct OnServer(pub(crate) Arc<Server>);

#[async_trait]
impl Harness for OnServer {
    fn name(&self) -> &str {
        self.0.service.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities
    }

    fn timing(&self) -> Timing {
        Timing::real().unit(self.0.unit)
    }

    async fn environment(&self, namespace: &str) -> Result<Arc<dyn Environment>, SetupError> {
        Ok(Arc::new(Namespace {
            server: Arc::clone(&self.0),
            prefix: format!("{}{namespace}:", self.0.prefix),
        }))
    }
}

#[derive(Debug)]
struct Namespace {
    server: Arc<Server>,
    prefix: String,
}

#[async_trait]
impl Environment for Namespace {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        Ok(Arc::new(Recorded {
            inner: self.server.service.connect(&self.prefix).await?,
            server: Arc::clone(&self.server),
            prefix: self.prefix.clone(),
        }))
    }

    async fn let_time_pass(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// A backend that remembers the keys that it may create.
#[derive(Debug)]
struct Recorded {
    inner: Arc<dyn LockBackend>,
    server: Arc<Server>,
    prefix: String,
}

impl Recorded {
    fn record<'a>(&self, keys: impl Iterator<Item = &'a Key>) {
        let mut used = self.server.used();
        used.extend(keys.map(|key| (self.prefix.clone(), key.clone())));
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockBackend for Recorded {
    forward_lock_backend!(
        |it| it.inner;
        capabilities runtime hello clock read_clock listen poll renew convert inspect force_release list write_note close
    );

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        self.record(batch.iter().map(|request| &request.key));
        self.inner.acquire(batch).await
    }

    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>> {
        self.record(batch.iter().map(|request| &request.key));
        self.inner.release(batch).await
    }
}
