//! The backend: a store, and a second one for renewals.

use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{
    Certificates, ConnectError, LockBackend, TokioRuntime, bounds, forward_lock_backend,
};
use leasehold_store::{Observed, StoreBackend, TagStore};
use tokio::runtime::Handle;

use crate::client::{Client, Target};
use crate::store::EtcdStore;

/// A [`LockBackend`] on etcd. It has mutexes and elections, with queues, fencing tokens, `push`, `list` and
/// `independent_renewal`. Readers and writers, permits and jobs are refused before anything is sent: see
/// [`Observed`].
///
/// A client has a connection for commands and one for renewals, each to one server at a time. Renewals have a thread of
/// their own, so a program that blocks its runtime keeps its locks.
///
/// # Cancel safety
/// Dropping the future of a command abandons the call. The server may still execute it.
#[derive(Debug)]
pub struct EtcdBackend(StoreBackend<Observed<EtcdStore>>);

impl EtcdBackend {
    /// Connects to the cluster of a URL, such as `etcd://user:password@host`, with the default options.
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

    /// Connects to the cluster of a URL, which names one or more of its servers. A server that can't be reached is left for
    /// the next one. If none can be reached, they are tried again for 5 s. `?max_clock_skew=5m` at its end is
    /// [`Options::max_clock_skew`]. `etcds://` requires [TLS](crate#tls).
    ///
    /// # Errors
    /// - [`ConnectError::Invalid`] if the URL, an option or a certificate can't be used, or tokio's clock is paused.
    /// - [`ConnectError::Backend`] if no server can be reached or has a leader, it refuses the user, or there is no TLS with it.
    ///
    /// # Cancel safety
    /// If you drop the future, the connections are closed.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Examples
    /// ```no_run
    /// use leasehold_etcd::{EtcdBackend, Options};
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let options = Options::new().key_prefix("billing:");
    /// let url = "etcd://locks:secret@a.example:2379,b.example:2379,c.example:2379";
    /// let backend = EtcdBackend::connect_with(url, options).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect_with(url: &str, options: Options) -> Result<Self, ConnectError> {
        bounds::check_time_limit("call_timeout", options.call_timeout)?;
        let target = Target::of(url, &options.certificates)?;
        TokioRuntime::check_clock()?;
        let runtime = TokioRuntime::current();
        let here = Handle::current();
        let renewals = TokioRuntime::renewal_thread().unwrap_or_else(|| here.clone());
        let [commands, renewals] = [here, renewals].map(|home| {
            let client = Client::new(target.clone(), home);
            EtcdStore::new(client, runtime.clone(), &options.key_prefix)
        });
        runtime.connect(|| commands.read("floor")).await?;
        let skew = target.max_clock_skew.or(options.max_clock_skew);
        let backend = StoreBackend::new(Observed::new(commands).max_clock_skew(skew));
        let backend = backend.call_timeout(options.call_timeout)?;
        Ok(Self(backend.observing_renewals(renewals)))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockBackend for EtcdBackend {
    forward_lock_backend!(|etcd| etcd.0; all);
}

/// Options of an [`EtcdBackend`].
///
/// ```
/// use std::time::Duration;
///
/// use leasehold_etcd::Options;
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
    /// How far clocks are apart at most; see [`max_clock_skew`](Self::max_clock_skew()).
    pub max_clock_skew: Option<Duration>,
    /// The certificates for TLS; see [`root_certificates`](Self::root_certificates) and
    /// [`client_certificate`](Self::client_certificate).
    pub certificates: Certificates,
}

impl Options {
    /// The default options.
    ///
    /// # Examples
    /// ```
    /// let options = leasehold_etcd::Options::new();
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            key_prefix: String::new(),
            call_timeout: bounds::CALL_TIMEOUT,
            max_clock_skew: None,
            certificates: Certificates::new(),
        }
    }

    /// Sets the prefix of every key. Programs with different prefixes don't share locks. The default is empty.
    ///
    /// # Examples
    /// ```
    /// use leasehold_etcd::Options;
    ///
    /// // All that the locks have in etcd begins with `leasehold/billing:/`.
    /// let options = Options::new().key_prefix("billing:");
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
    /// use leasehold_etcd::Options;
    ///
    /// // A cluster over several regions.
    /// let options = Options::new().call_timeout(Duration::from_secs(3));
    /// ```
    #[must_use]
    pub const fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// Declares that no machine's time of day is ever further off than half of this, so that a command that runs for a moment gets
    /// the lock of a dead holder. All programs declare it. **If a clock is further off, two processes may hold a lock at once**: see
    /// [`Observed::max_clock_skew`]. There is no default. The URL's `max_clock_skew` goes first.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold_etcd::Options;
    ///
    /// // A command that runs each minute.
    /// let options = Options::new().max_clock_skew(Duration::from_secs(300));
    /// ```
    #[must_use]
    pub const fn max_clock_skew(mut self, skew: Duration) -> Self {
        self.max_clock_skew = Some(skew);
        self
    }

    /// Sets the authorities that may issue the server's certificate: one or more certificates as PEM. They
    /// replace those of the machine. Needs a URL with `etcds://`.
    ///
    /// # Examples
    /// `Options::new().root_certificates(read("ca.pem")?)`
    #[must_use]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates = self.certificates.root_certificates(pem);
        self
    }

    /// Sets the certificate that the backend shows to the server, with those between it and the authority's, and its private
    /// key, both as PEM. Needs a URL with `etcds://`.
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
