//! The backend: a store, and a second one for renewals.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{
    BackendError, ConnectError, InvalidInput, LockBackend, TokioRuntime, bounds,
    forward_lock_backend,
};
use leasehold_store::{Store as _, StoreBackend};
use tokio::runtime::Handle;

use crate::bucket::Bucket;
use crate::connection::{Links, Place};
use crate::store::NatsStore;

/// How long connecting tries again, and the pause between attempts.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(250);
/// The longest prefix. A byte of it may take three in a subject, which is limited to 4 KB.
const LONGEST_PREFIX: usize = 256;

/// A [`LockBackend`] on a bucket of NATS JetStream. It has all capabilities but `reachability` and `batches`.
///
/// Renewals have a connection and a thread of their own, so a program that blocks its runtime keeps its locks.
///
/// # Cancel safety
/// Dropping the future of a command abandons the call. The server may still execute it.
#[derive(Debug)]
pub struct NatsBackend(StoreBackend<NatsStore>);

impl NatsBackend {
    /// Connects to the servers of a URL, such as `nats://user:password@host/bucket`, with the default options.
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

    /// Connects to one of the servers of a URL, and creates the [bucket](crate#bucket) if there is none. What fails for a
    /// transient reason is tried again for 5 s.
    ///
    /// # Errors
    /// - [`ConnectError::Invalid`] if the URL can't be read, an option is out of range, or tokio's clock is paused.
    /// - [`ConnectError::Backend`] if no server can be reached, the server refuses the user, has no JetStream or is older than
    ///   NATS 2.10, or the bucket has [settings](crate#bucket) that endanger locks.
    ///
    /// # Cancel safety
    /// If you drop the future, the connections are closed.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Examples
    /// ```no_run
    /// use leasehold_nats::{NatsBackend, Options};
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let options = Options::new().key_prefix("billing:");
    /// let url = "nats://locks:secret@n1.example,n2.example,n3.example/locks";
    /// let backend = NatsBackend::connect_with(url, options).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect_with(url: &str, options: Options) -> Result<Self, ConnectError> {
        bounds::check_time_limit("call_timeout", options.call_timeout)?;
        if options.key_prefix.len() > LONGEST_PREFIX {
            return Err(InvalidInput::setting("key_prefix", "more than 256 bytes").into());
        }
        let place = Place::of_url(url)?;
        TokioRuntime::check_clock()?;
        let bucket = Bucket(place.bucket.clone());
        let here = Handle::current();
        let renewals = TokioRuntime::renewal_thread().unwrap_or_else(|| here.clone());
        let pace = Arc::default();
        let [commands, renewals] = [here, renewals].map(|home| {
            let links = Links::new(place.clone(), home, Arc::clone(&pace));
            NatsStore::new(links, &bucket, &options.key_prefix)
        });
        prepare_in_time(&commands).await?;
        let backend = StoreBackend::new(commands).call_timeout(options.call_timeout)?;
        Ok(Self(backend.renewals(renewals)))
    }
}

/// Creates or checks the bucket, and tries again after transient errors.
async fn prepare_in_time(store: &NatsStore) -> Result<(), BackendError> {
    let runtime = store.runtime();
    let until = runtime.now().saturating_add(CONNECT_WITHIN);
    loop {
        match store.prepare().await {
            Err(error) if error.is_transient() && runtime.now() < until => {
                runtime.sleep(PAUSE).await;
            }
            prepared => return prepared,
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockBackend for NatsBackend {
    forward_lock_backend!(|nats| nats.0; all);
}

/// Options of a [`NatsBackend`].
///
/// ```
/// use std::time::Duration;
///
/// use leasehold_nats::Options;
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
}

impl Options {
    /// The default options.
    ///
    /// # Examples
    /// ```
    /// let options = leasehold_nats::Options::new();
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            key_prefix: String::new(),
            call_timeout: bounds::CALL_TIMEOUT,
        }
    }

    /// Sets the prefix of every key. Programs with different prefixes don't share locks. The default is empty.
    ///
    /// # Examples
    /// ```
    /// use leasehold_nats::Options;
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
    /// use leasehold_nats::Options;
    ///
    /// // A distant server.
    /// let options = Options::new().call_timeout(Duration::from_secs(3));
    /// ```
    #[must_use]
    pub const fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}
