//! The backend: a store, and a second one for renewals.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{
    Certificates, ConnectError, InvalidInput, LockBackend, TokioRuntime, bounds,
    forward_lock_backend,
};
use leasehold_store::StoreBackend;
use tokio::runtime::Handle;

use crate::connection::{Connections, opts_of};
use crate::store::MysqlStore;

/// The longest prefix that its column has room for.
const LONGEST_PREFIX: usize = 256;

/// A [`LockBackend`] on a MariaDB or MySQL server. It has all capabilities but `push`, `reachability` and `batches`: waiters
/// of the same backend are woken at once, and those of other processes poll every 100 ms.
///
/// Renewals have connections and a thread of their own, so a program that blocks its runtime keeps its locks.
///
/// # Cancel safety
/// Dropping the future of a command abandons the call. The server may still execute it.
#[derive(Debug)]
pub struct MysqlBackend(StoreBackend<MysqlStore>);

impl MysqlBackend {
    /// Connects to the server of a URL, such as `mysql://user:password@host/database`, with the default options.
    ///
    /// # Errors
    /// The errors of [`connect_with`](Self::connect_with).
    ///
    /// # Cancel safety
    /// If you drop the future, the connections are closed.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Examples
    /// See the [crate](crate).
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::connect_with(url, Options::new()).await
    }

    /// Connects to the server of a URL. `mariadb:` means the same as `mysql:`, and `?require_ssl=true` requires
    /// [TLS](crate#tls). A server that can't be reached is tried again for 5 s.
    ///
    /// # Errors
    /// - [`ConnectError::Invalid`] if the URL, an option or a certificate can't be used, or tokio's clock is paused.
    /// - [`ConnectError::Backend`] if the server can't be reached, refuses the user, there is no TLS with it, it lacks the [`SCHEMA`](crate::SCHEMA), or
    ///   has [settings](crate#server) that endanger locks.
    ///
    /// # Cancel safety
    /// If you drop the future, the connections are closed.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Examples
    /// ```no_run
    /// use leasehold_mysql::{MysqlBackend, Options};
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let options = Options::new().key_prefix("billing:");
    /// let url = "mariadb://locks@localhost/shop?socket=/run/mysqld/mysqld.sock";
    /// let backend = MysqlBackend::connect_with(url, options).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect_with(url: &str, options: Options) -> Result<Self, ConnectError> {
        bounds::check_time_limit("call_timeout", options.call_timeout)?;
        if options.key_prefix.len() > LONGEST_PREFIX {
            return Err(InvalidInput::setting("key_prefix", "more than 256 bytes").into());
        }
        let opts = opts_of(url, &options.certificates)?;
        TokioRuntime::check_clock()?;
        let runtime = TokioRuntime::current();
        let here = Handle::current();
        let renewals = TokioRuntime::renewal_thread().unwrap_or_else(|| here.clone());
        let pace = Arc::default();
        let [commands, renewals] = [here, renewals].map(|home| MysqlStore {
            connections: Connections::new(opts.clone(), home, Arc::clone(&pace)),
            runtime: runtime.clone(),
            prefix: options.key_prefix.as_str().into(),
        });
        runtime.connect(|| commands.connections.check()).await?;
        let backend = StoreBackend::new(commands).call_timeout(options.call_timeout)?;
        Ok(Self(backend.renewals(renewals)))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockBackend for MysqlBackend {
    forward_lock_backend!(|mysql| mysql.0; all);
}

/// Options of a [`MysqlBackend`].
///
/// ```
/// use std::time::Duration;
///
/// use leasehold_mysql::Options;
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
    /// The certificates for TLS; see [`root_certificates`](Self::root_certificates) and
    /// [`client_certificate`](Self::client_certificate).
    pub certificates: Certificates,
}

impl Options {
    /// The default options.
    ///
    /// # Examples
    /// ```
    /// let options = leasehold_mysql::Options::new();
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            key_prefix: String::new(),
            call_timeout: bounds::CALL_TIMEOUT,
            certificates: Certificates::new(),
        }
    }

    /// Sets the prefix of every key. Programs with different prefixes don't share locks. The default is empty.
    ///
    /// # Examples
    /// ```
    /// use leasehold_mysql::Options;
    ///
    /// // Not the same lock as "eu:42" of a program with the prefix "billing:".
    /// let options = Options::new().key_prefix("billing:eu:"); // and the mutex "42"
    /// ```
    #[must_use]
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = prefix.into();
        self
    }

    /// Sets the maximum time of one call, 10 ms to 5 s, including its retries. The default is 1 s. A time out of range is
    /// refused when you connect.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold_mysql::Options;
    ///
    /// // A distant server.
    /// let options = Options::new().call_timeout(Duration::from_secs(3));
    /// ```
    #[must_use]
    pub const fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// Sets the authorities that may issue the server's certificate: one or more certificates as PEM. They
    /// replace those of the machine. Needs a URL with `require_ssl=true`.
    ///
    /// # Examples
    /// `Options::new().root_certificates(read("ca.pem")?)`
    #[must_use]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates = self.certificates.root_certificates(pem);
        self
    }

    /// Sets the certificate that the backend shows to the server, with those between it and the authority's, and its private
    /// key, both as PEM. Needs a URL with `require_ssl=true`. A user with
    /// `REQUIRE X509` needs one.
    ///
    /// # Examples
    /// `Options::new().client_certificate(read("client.pem")?, read("client.key")?)`
    #[must_use]
    pub fn client_certificate(
        mut self,
        chain: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates = self.certificates.client_certificate(chain, key);
        self
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}
