//! One constructor for all lock services: the scheme of a URL chooses the backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{Certificates, ConnectError, InvalidInput, LockBackend, LockClient};

/// Connects to the lock service at `url`, with the default settings.
///
/// | scheme of the URL | lock service | feature |
/// |---|---|---|
/// | `redis`, `valkey`, and their forms with TLS, sentinels, a cluster or a Unix socket | Redis or Valkey | `redis-rs` or `fred` |
/// | `postgres`, `postgresql` | PostgreSQL | `postgres` |
/// | `mysql`, `mariadb` | MariaDB or MySQL | `mysql` |
/// | `etcd`, or `etcds` with TLS | etcd: mutexes and elections | `etcd` |
/// | `nats`, or `tls`, which requires TLS | NATS JetStream | `nats` |
/// | `s3://bucket/folder` | a bucket of S3, or of another service with its API | `object-store` |
/// | `sqlite:locks.db`, `sqlite:///var/lib/locks.db` | a file, for the processes of one machine | `sqlite` |
///
/// The documentation of `RedisBackend::connect_with`, `PostgresBackend::connect_with`,
/// `MysqlBackend::connect_with`, `EtcdBackend::connect_with`, `ObjectStoreBackend::connect_with` and the crate `leasehold-nats` lists all forms of these URLs. What follows `sqlite:` is the path as it is. For other settings, see [`ConnectOptions`]. For what it doesn't have, such as
/// a client of your own, use the backend's own constructors.
///
/// If both `redis-rs` and `fred` are on, say which one to use with
/// [`ConnectOptions::redis_library`]. A library always should: cargo adds up the features of all
/// packages, so another package may enable the second one.
///
/// # Errors
/// The errors of [`ConnectOptions::connect`].
///
/// # Panics
/// Panics if called outside a tokio runtime.
///
/// # Cancel safety
/// This function is cancel safe. Dropping the future abandons the connection.
///
/// # Examples
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = leasehold::connect("postgres://locks:secret@db.example/shop").await?;
/// let guard = locks.mutex("invoice:42")?.lock().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
pub async fn connect(url: &str) -> Result<LockClient, ConnectError> {
    ConnectOptions::new().connect(url).await
}

/// The options of a backend with the settings that every backend has.
#[cfg(any(
    feature = "redis-rs",
    feature = "fred",
    feature = "postgres",
    feature = "mysql",
    feature = "etcd",
    feature = "nats",
    feature = "object-store",
    feature = "sqlite"
))]
macro_rules! with_prefix_and_limit {
    ($settings:expr, $options:expr) => {{
        let mut options = $options;
        if let Some(prefix) = $settings.key_prefix {
            options = options.key_prefix(prefix);
        }
        if let Some(limit) = $settings.call_timeout {
            options = options.call_timeout(limit);
        }
        options
    }};
}

/// The options of a backend with the settings that were made. The types differ, and their setters
/// have the same names.
#[cfg(any(feature = "redis-rs", feature = "fred", feature = "postgres"))]
macro_rules! with_settings {
    ($settings:expr, $options:expr) => {{
        let settings = $settings;
        let mut options = with_prefix_and_limit!(settings, $options);
        if let Some(limit) = settings.connect_timeout {
            options = options.connect_timeout(limit);
        }
        if let Some(limit) = settings.initial_connect_timeout {
            options = options.initial_connect_timeout(limit);
        }
        options.certificates = settings.certificates;
        options
    }};
}

/// A client library for Redis and Valkey. Both give the same guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RedisLibrary {
    /// The `redis` crate. Needs the feature `redis-rs`.
    RedisRs,
    /// The `fred` crate. Needs the feature `fred`.
    Fred,
}

/// Settings that all backends have, for a service that the URL chooses.
///
/// A setting that you leave out has the default of the backend.
///
/// # Examples
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::{ConnectOptions, RedisLibrary};
///
/// # async fn example(url: &str) -> Result<(), Box<dyn std::error::Error>> {
/// let locks = ConnectOptions::new()
///     .redis_library(RedisLibrary::RedisRs)
///     .key_prefix("billing:")
///     .call_timeout(Duration::from_millis(500))
///     .connect(url)
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    redis_library: Option<RedisLibrary>,
    key_prefix: Option<String>,
    call_timeout: Option<Duration>,
    connect_timeout: Option<Duration>,
    initial_connect_timeout: Option<Duration>,
    certificates: Certificates,
}

impl ConnectOptions {
    /// Returns the default settings.
    ///
    /// # Examples
    /// `ConnectOptions::new().connect(url).await?`
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the client library for Redis and Valkey. There is no default if both features are on.
    ///
    /// # Examples
    /// ```
    /// # use leasehold::{ConnectOptions, RedisLibrary};
    /// let options = ConnectOptions::new().redis_library(RedisLibrary::RedisRs);
    /// ```
    #[must_use]
    pub const fn redis_library(mut self, library: RedisLibrary) -> Self {
        self.redis_library = Some(library);
        self
    }

    /// Sets the prefix of all keys. Programs with different prefixes don't share locks.
    ///
    /// # Examples
    /// ```
    /// # use leasehold::ConnectOptions;
    /// let options = ConnectOptions::new().key_prefix("billing:");
    /// ```
    #[must_use]
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = Some(prefix.into());
        self
    }

    /// Sets the time limit of a single call, 10 ms to 5 s. The default is 1 s.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::ConnectOptions;
    /// let options = ConnectOptions::new().call_timeout(Duration::from_millis(500));
    /// ```
    #[must_use]
    pub const fn call_timeout(mut self, limit: Duration) -> Self {
        self.call_timeout = Some(limit);
        self
    }

    /// Sets the time limit of one attempt to connect, 10 ms to 5 s. The default is 2 s.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::ConnectOptions;
    /// // Leaves a silent server sooner.
    /// let options = ConnectOptions::new().connect_timeout(Duration::from_millis(500));
    /// ```
    #[must_use]
    pub const fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = Some(limit);
        self
    }

    /// Sets how long [`connect`](Self::connect) tries, 10 ms to 60 s. The default is 5 s.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::ConnectOptions;
    /// // A job that starts together with its server.
    /// let options = ConnectOptions::new().initial_connect_timeout(Duration::from_secs(30));
    /// ```
    #[must_use]
    pub const fn initial_connect_timeout(mut self, limit: Duration) -> Self {
        self.initial_connect_timeout = Some(limit);
        self
    }

    /// Sets the authorities that may issue the server's certificate: one or more certificates as PEM.
    /// They replace those of the machine. Needs a URL with TLS.
    ///
    /// # Examples
    /// ```
    /// # use leasehold::ConnectOptions;
    /// # fn example() -> std::io::Result<()> {
    /// let options = ConnectOptions::new().root_certificates(std::fs::read("ca.pem")?);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates = self.certificates.root_certificates(pem);
        self
    }

    /// Sets the certificate that the backend shows to the server, with those between it and the
    /// authority's, and its private key, both as PEM. Needs a URL with TLS.
    ///
    /// # Examples
    /// ```
    /// # use leasehold::ConnectOptions;
    /// # fn example() -> std::io::Result<()> {
    /// let (chain, key) = (std::fs::read("client.pem")?, std::fs::read("client.key")?);
    /// let options = ConnectOptions::new().client_certificate(chain, key);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn client_certificate(
        mut self,
        chain: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates = self.certificates.client_certificate(chain, key);
        self
    }

    /// Connects to the lock service at `url`. [`connect`] has the table of URLs.
    ///
    /// # Errors
    /// - [`ConnectError::Invalid`] if the URL or a setting can't be used, if no enabled feature has a backend for
    ///   the URL, or if two have one. The message says what to do.
    /// - [`ConnectError::Backend`] if the server can't be reached in time, or refuses this client.
    ///
    /// # Panics
    /// Panics if called outside a tokio runtime.
    ///
    /// # Cancel safety
    /// This method is cancel safe. Dropping the future abandons the connection.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(url: &str) -> Result<(), leasehold::ConnectError> {
    /// let locks = leasehold::ConnectOptions::new().key_prefix("billing:").connect(url).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(self, url: &str) -> Result<LockClient, ConnectError> {
        Ok(LockClient::new(self.backend(url).await?))
    }

    /// Connects to the lock service at `url`, and returns the backend: for
    /// [`LockClient::builder`](LockClient::builder), or to wrap it.
    ///
    /// # Errors
    /// The same as [`connect`](Self::connect).
    ///
    /// # Panics
    /// Panics if called outside a tokio runtime.
    ///
    /// # Cancel safety
    /// This method is cancel safe. Dropping the future abandons the connection.
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use leasehold::{ConnectOptions, LockClient};
    ///
    /// # async fn example(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    /// let backend = ConnectOptions::new().backend(url).await?;
    /// let locks = LockClient::builder(backend).lease(Duration::from_secs(10)).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn backend(self, url: &str) -> Result<Arc<dyn LockBackend>, ConnectError> {
        if let Some(path) = url.strip_prefix("sqlite:") {
            return self.sqlite(path.strip_prefix("//").unwrap_or(path)).await;
        }
        let scheme = scheme_of(url);
        let starts_with = |names: &[&str]| names.iter().any(|name| scheme.starts_with(name));
        if starts_with(&["postgres"]) {
            return self.postgres(url).await;
        }
        if starts_with(&["mysql", "mariadb"]) {
            return self.mysql(url).await;
        }
        if scheme == "nats" || scheme == "tls" {
            return self.nats(url).await;
        }
        if starts_with(&["etcd"]) {
            return self.etcd(url).await;
        }
        if scheme == "s3" {
            return self.s3(url).await;
        }
        if !starts_with(&["redis", "valkey", "unix"]) {
            let reason = "it begins with neither redis, valkey, postgres, mysql, mariadb, etcd, nats, tls, s3 nor sqlite:";
            return Err(unusable(reason));
        }
        match self.chosen_library(url)? {
            RedisLibrary::RedisRs => self.redis_rs(url).await,
            RedisLibrary::Fred => self.fred(url).await,
        }
    }

    fn chosen_library(&self, url: &str) -> Result<RedisLibrary, ConnectError> {
        let (redis_rs, fred) = (cfg!(feature = "redis-rs"), cfg!(feature = "fred"));
        match (self.redis_library, redis_rs, fred) {
            (Some(library), _, _) => Ok(library),
            (None, true, false) => Ok(RedisLibrary::RedisRs),
            (None, false, true) => Ok(RedisLibrary::Fred),
            (None, true, true) => Err(unusable(
                "the features `redis-rs` and `fred` of the crate `leasehold` are both on: choose one with \
                 ConnectOptions::redis_library",
            )),
            (None, false, false) => Err(missing(url, "`redis-rs` or `fred`")),
        }
    }
}

/// The backends. Without its feature, each is an error that names the feature.
impl ConnectOptions {
    #[cfg(feature = "redis-rs")]
    async fn redis_rs(self, url: &str) -> Result<Arc<dyn LockBackend>, ConnectError> {
        let options = with_settings!(self, leasehold_redis_rs::Options::new());
        let backend = leasehold_redis_rs::RedisBackend::connect_with(url, options);
        Ok(Arc::new(backend.await?))
    }

    #[cfg(not(feature = "redis-rs"))]
    async fn redis_rs(self, url: &str) -> Result<Arc<dyn LockBackend>, ConnectError> {
        Err(missing(url, "`redis-rs`"))
    }

    #[cfg(feature = "fred")]
    async fn fred(self, url: &str) -> Result<Arc<dyn LockBackend>, ConnectError> {
        let options = with_settings!(self, leasehold_fred::Options::new());
        let backend = leasehold_fred::FredBackend::connect_with(url, options);
        Ok(Arc::new(backend.await?))
    }

    #[cfg(not(feature = "fred"))]
    async fn fred(self, url: &str) -> Result<Arc<dyn LockBackend>, ConnectError> {
        Err(missing(url, "`fred`"))
    }

    #[cfg(feature = "postgres")]
    async fn postgres(self, url: &str) -> Result<Arc<dyn LockBackend>, ConnectError> {
        let options = with_settings!(self, leasehold_postgres::Options::new());
        let backend = leasehold_postgres::PostgresBackend::connect_with(url, options);
        Ok(Arc::new(backend.await?))
    }

    #[cfg(not(feature = "postgres"))]
    async fn postgres(self, url: &str) -> Result<Arc<dyn LockBackend>, ConnectError> {
        Err(missing(url, "`postgres`"))
    }

    /// Its limits for an attempt to connect are fixed.
    #[cfg(feature = "mysql")]
    async fn mysql(self, url: &str) -> Result<Arc<dyn LockBackend>, ConnectError> {
        let mut options = with_prefix_and_limit!(self, leasehold_mysql::Options::new());
        options.certificates = self.certificates;
        let backend = leasehold_mysql::MysqlBackend::connect_with(url, options);
        Ok(Arc::new(backend.await?))
    }

    #[cfg(not(feature = "mysql"))]
    async fn mysql(self, url: &str) -> Result<Arc<dyn LockBackend>, ConnectError> {
        Err(missing(url, "`mysql`"))
    }

    /// Its limits for an attempt to connect are fixed.
    #[cfg(feature = "nats")]
    async fn nats(self, url: &str) -> Result<Arc<dyn LockBackend>, ConnectError> {
        self.certificates
            .check_unused("NATS has the authorities of the machine")?;
        let options = with_prefix_and_limit!(self, leasehold_nats::Options::new());
        let backend = leasehold_nats::NatsBackend::connect_with(url, options);
        Ok(Arc::new(backend.await?))
    }

    #[cfg(not(feature = "nats"))]
    async fn nats(self, url: &str) -> Result<Arc<dyn LockBackend>, ConnectError> {
        Err(missing(url, "`nats`"))
    }

    /// Its limits for an attempt to connect are fixed.
    #[cfg(feature = "etcd")]
    async fn etcd(self, url: &str) -> Result<Arc<dyn LockBackend>, ConnectError> {
        let mut options = with_prefix_and_limit!(self, leasehold_etcd::Options::new());
        options.certificates = self.certificates;
        let backend = leasehold_etcd::EtcdBackend::connect_with(url, options);
        Ok(Arc::new(backend.await?))
    }

    #[cfg(not(feature = "etcd"))]
    async fn etcd(self, url: &str) -> Result<Arc<dyn LockBackend>, ConnectError> {
        Err(missing(url, "`etcd`"))
    }

    /// Its limits for an attempt to connect are fixed.
    #[cfg(feature = "object-store")]
    async fn s3(self, url: &str) -> Result<Arc<dyn LockBackend>, ConnectError> {
        let options = leasehold_object_store::Options::new();
        let mut options = with_prefix_and_limit!(self, options);
        options.certificates = self.certificates;
        let backend = leasehold_object_store::ObjectStoreBackend::connect_with(url, options);
        Ok(Arc::new(backend.await?))
    }

    #[cfg(not(feature = "object-store"))]
    async fn s3(self, url: &str) -> Result<Arc<dyn LockBackend>, ConnectError> {
        Err(missing(url, "`object-store`"))
    }

    /// There is no connection whose time could be limited.
    #[cfg(feature = "sqlite")]
    async fn sqlite(self, path: &str) -> Result<Arc<dyn LockBackend>, ConnectError> {
        self.certificates.check_unused("a file has no connection")?;
        let options = with_prefix_and_limit!(self, leasehold_sqlite::Options::new());
        let backend = leasehold_sqlite::SqliteBackend::open_with(path, options);
        Ok(Arc::new(backend.await?))
    }

    #[cfg(not(feature = "sqlite"))]
    async fn sqlite(self, _: &str) -> Result<Arc<dyn LockBackend>, ConnectError> {
        Err(missing("sqlite://", "`sqlite`"))
    }
}

/// The text before `://` in lower case; empty if there is none, or if it is more than a scheme. Errors show it.
fn scheme_of(url: &str) -> String {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    let is_part = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    match scheme.chars().all(is_part) {
        true => scheme.to_ascii_lowercase(),
        false => String::new(),
    }
}

/// The error for a URL that can't be used. It has no source, which might quote the URL and so the
/// password.
fn unusable(reason: impl fmt::Display) -> ConnectError {
    InvalidInput::setting("URL", reason).into()
}

fn missing(url: &str, feature: &str) -> ConnectError {
    let scheme = scheme_of(url);
    unusable(format!(
        "`{scheme}` URLs need the feature {feature} of the crate `leasehold`"
    ))
}
