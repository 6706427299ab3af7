//! Options of a backend.

use std::fmt;
use std::time::Duration;

use leasehold_api::{Certificates, InvalidInput, bounds};

/// Several attempts, or the start of a server.
const DEFAULT_INITIAL_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_INITIAL_CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Options of a [`PostgresBackend`](crate::PostgresBackend).
///
/// ```
/// use std::time::Duration;
///
/// use leasehold_postgres::Options;
///
/// let options = Options::new().key_prefix("billing:").call_timeout(Duration::from_secs(2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The prefix of every key; see [`key_prefix`](Self::key_prefix()).
    pub key_prefix: String,
    /// The time limit of a call; see [`call_timeout`](Self::call_timeout()).
    pub call_timeout: Duration,
    /// The time limit of an attempt to connect; see [`connect_timeout`](Self::connect_timeout()).
    pub connect_timeout: Duration,
    /// How long a constructor tries to connect; see
    /// [`initial_connect_timeout`](Self::initial_connect_timeout()).
    pub initial_connect_timeout: Duration,
    /// The certificates for TLS; see [`root_certificates`](Self::root_certificates) and
    /// [`client_certificate`](Self::client_certificate).
    pub certificates: Certificates,
    /// Whether the URL leads to a pooler; see [`pooled`](Self::pooled()).
    pub pooled: bool,
    pub(crate) direct_url: Option<SecretUrl>,
}

/// A URL that `Debug` doesn't show, because it has a password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SecretUrl(String);

impl SecretUrl {
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("_")
    }
}

impl Options {
    /// The default options.
    ///
    /// # Examples
    /// ```
    /// let options = leasehold_postgres::Options::new();
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            key_prefix: String::new(),
            call_timeout: bounds::CALL_TIMEOUT,
            connect_timeout: bounds::CONNECT_TIMEOUT,
            initial_connect_timeout: DEFAULT_INITIAL_CONNECT_TIMEOUT,
            certificates: Certificates::new(),
            pooled: false,
            direct_url: None,
        }
    }

    /// Sets the prefix of every key. Programs with different prefixes don't share locks. The default is
    /// empty. [`row_key`](crate::row_key) says how prefix and key are stored.
    ///
    /// # Examples
    /// ```
    /// use leasehold_postgres::Options;
    ///
    /// // Not the same lock as "eu:42" of a program with the prefix "billing:".
    /// let options = Options::new().key_prefix("billing:eu:"); // and the mutex "42"
    /// ```
    #[must_use]
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = prefix.into();
        self
    }

    /// Sets the maximum time of one call, 10 ms to 5 s, including its retries and the time to connect, if
    /// necessary. The default is 1 s. A time out of range is refused when you create the backend.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold_postgres::Options;
    ///
    /// // A distant server.
    /// let options = Options::new().call_timeout(Duration::from_secs(3));
    /// ```
    #[must_use]
    pub const fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// Sets the maximum time in which a connection is made, 10 ms to 5 s, including TLS and the login. The
    /// default is [`bounds::CONNECT_TIMEOUT`](leasehold_api::bounds::CONNECT_TIMEOUT), 2 s. A time out of range is
    /// refused when you create the backend.
    ///
    /// A call that gives up sooner, after its [`call_timeout`](Self::call_timeout()), doesn't stop the connecting. A
    /// later call uses the connection.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold_postgres::Options;
    ///
    /// // A distant server, behind TLS.
    /// let options = Options::new()
    ///     .call_timeout(Duration::from_secs(5))
    ///     .connect_timeout(Duration::from_secs(3));
    /// ```
    #[must_use]
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long [`connect`](crate::PostgresBackend::connect) and
    /// [`connect_with`](crate::PostgresBackend::connect_with) try to reach the server, 10 ms to 60 s. The
    /// default is 5 s. A time out of range is refused when you create the backend.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold_postgres::Options;
    ///
    /// // The database starts together with this program.
    /// let options = Options::new().initial_connect_timeout(Duration::from_secs(30));
    /// ```
    #[must_use]
    pub const fn initial_connect_timeout(mut self, limit: Duration) -> Self {
        self.initial_connect_timeout = limit;
        self
    }

    /// Sets the authorities that may issue the server's certificate: one or more certificates as PEM. They
    /// replace those of the machine.
    ///
    /// Needs a URL with `sslmode=require`. A text without certificates is refused when you create the
    /// backend.
    ///
    /// # Examples
    /// ```no_run
    /// use leasehold_postgres::Options;
    ///
    /// # fn example() -> std::io::Result<()> {
    /// let options = Options::new().root_certificates(std::fs::read("/etc/postgresql/ca.pem")?);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates = self.certificates.root_certificates(pem);
        self
    }

    /// Sets the certificate that the backend shows to the server, and its private key, both as PEM. If the
    /// certificate was not issued by an authority that the server knows, `chain` also has the certificates
    /// between the two.
    ///
    /// Needs a URL with `sslmode=require`. A key that doesn't fit the certificate is refused when you create
    /// the backend.
    ///
    /// # Examples
    /// ```no_run
    /// use std::fs::read;
    ///
    /// use leasehold_postgres::Options;
    ///
    /// # fn example() -> std::io::Result<()> {
    /// let options = Options::new()
    ///     .root_certificates(read("/etc/postgresql/ca.pem")?)
    ///     .client_certificate(read("client.pem")?, read("client.key")?);
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

    /// Says that the URL leads to a pooler that shares the server's connections, such as PgBouncer with
    /// `pool_mode = transaction`. In a URL, `?pgbouncer=true` says the same. See
    /// [connection poolers](crate#connection-poolers). The default is `false`.
    ///
    /// Without a [`direct_url`](Self::direct_url()), the server pushes nothing: waiters poll each 100 ms, and a holder
    /// learns of a forced release when it renews.
    ///
    /// # Examples
    /// ```
    /// let options = leasehold_postgres::Options::new().pooled(true);
    /// ```
    #[must_use]
    pub const fn pooled(mut self, pooled: bool) -> Self {
        self.pooled = pooled;
        self
    }

    /// Sets the URL of the server behind a [pooler](Self::pooled()), for subscriptions alone: waiters then learn of their
    /// turn by a push. It implies `pooled`. It must lead to the same server and the same database as the pooler, and not
    /// through a pooler that shares connections. A URL that can't be read is refused when you create the backend.
    ///
    /// # Examples
    /// ```
    /// use leasehold_postgres::Options;
    ///
    /// let options = Options::new().direct_url("postgres://locks@db.example/shop?sslmode=require");
    /// ```
    #[must_use]
    pub fn direct_url(mut self, url: impl Into<String>) -> Self {
        self.direct_url = Some(SecretUrl(url.into()));
        self
    }

    pub(crate) const fn is_pooled(&self) -> bool {
        self.pooled || self.direct_url.is_some()
    }

    pub(crate) fn check(&self) -> Result<(), InvalidInput> {
        bounds::check_time_limit("call_timeout", self.call_timeout)?;
        bounds::check_time_limit("connect_timeout", self.connect_timeout)?;
        let limits = bounds::MIN_CALL_TIMEOUT..=MAX_INITIAL_CONNECT_TIMEOUT;
        let limit = self.initial_connect_timeout;
        bounds::check_time("initial_connect_timeout", limit, limits)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}
