//! The backend, and its check of a store.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Certificates, ConnectError, InvalidInput, LockBackend,
    Stamped, TokioRuntime, bounds, forward_lock_backend,
};
use leasehold_store::{Observed, Put, StoreBackend, TagStore};
use object_store::ObjectStore;
use object_store::path::Path;

use crate::store::{Objects, foreign_tag};

/// The longest prefix. It is a part of the name of an object, which has up to 1,024 bytes.
const LONGEST_PREFIX: usize = 100;
/// The object that the check writes. No lock has its name.
const CHECKED: &str = "check";

/// A [`LockBackend`] on an object store. It has mutexes and elections, and no push: waiters of the same backend are woken at
/// once, and those of other processes poll every second.
///
/// # Cancel safety
/// Dropping the future of a command abandons the call. The store may still apply its write.
#[derive(Debug)]
pub struct ObjectStoreBackend(StoreBackend<Observed<Objects>>);

impl ObjectStoreBackend {
    /// Connects to a bucket of S3, or of another service with its API, with the default options.
    ///
    /// # Errors
    /// The errors of [`connect_with`](Self::connect_with).
    ///
    /// # Cancel safety
    /// This function is cancel safe. Dropping the future abandons the connection.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Examples
    /// ```no_run
    /// use leasehold_object_store::ObjectStoreBackend;
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let backend = ObjectStoreBackend::connect("s3://bucket/folder?region=eu-central-1").await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "s3")]
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::connect_with(url, Options::new()).await
    }

    /// Connects to a bucket of S3, or of another service with its API.
    ///
    /// The path of the URL is a folder for the objects. Settings and credentials come from the variables `AWS_…` of the
    /// environment, as for other programs, from the machine or the container, and from the query of the URL. Each parameter
    /// is a setting of [`AmazonS3ConfigKey`](object_store::aws::AmazonS3ConfigKey): `region`, or `endpoint` for another
    /// service, with `allow_http=true` if that has no TLS. Other settings of connections, such as `proxy_url`, are refused.
    /// `max_clock_skew=5m` is [`Options::max_clock_skew`].
    ///
    /// Checks the store as [`from_store`](Self::from_store) does.
    ///
    /// # Errors
    /// - [`ConnectError::Invalid`] if the URL, a setting or a certificate can't be used, an option is out of range, or tokio's
    ///   clock is paused.
    /// - [`ConnectError::Backend`] if the store can't be reached, refuses this program, has no such bucket, or doesn't compare.
    ///
    /// # Cancel safety
    /// This function is cancel safe. Dropping the future abandons the connection.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Examples
    /// ```no_run
    /// use leasehold_object_store::{ObjectStoreBackend, Options};
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let url = "s3://bucket?endpoint=https://minio.example:9000";
    /// let backend = ObjectStoreBackend::connect_with(url, Options::new().key_prefix("billing:")).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "s3")]
    pub async fn connect_with(url: &str, options: Options) -> Result<Self, ConnectError> {
        options.check()?;
        let bucket = crate::s3::bucket_of(url, &options.certificates)?;
        let max_clock_skew = bucket.max_clock_skew.or(options.max_clock_skew);
        let options = Options {
            max_clock_skew,
            ..options
        };
        Self::checked(bucket.store, bucket.folder, &options).await
    }

    /// Creates a backend on a store of the program, such as one of Google or Azure.
    ///
    /// Switch the library's retries off, with a `RetryConfig` whose `max_retries` is 0: leasehold tries again by itself, within
    /// the time of a call.
    ///
    /// Writes an object named `check`, and leaves it there: a store that compares no ETag is refused.
    ///
    /// # Errors
    /// - [`ConnectError::Invalid`] if an option is out of range, there are certificates, or tokio's clock is paused.
    /// - [`ConnectError::Backend`] if the store can't be reached, refuses this program, has no such bucket, or doesn't compare.
    ///
    /// # Cancel safety
    /// This function is cancel safe. Dropping the future abandons the check.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Examples
    /// See the [crate](crate).
    pub async fn from_store(
        store: Arc<dyn ObjectStore>,
        options: Options,
    ) -> Result<Self, ConnectError> {
        options.check()?;
        let certificates = &options.certificates;
        certificates.check_unused("give them to the builder of the store")?;
        Self::checked(store, Path::default(), &options).await
    }

    async fn checked(
        store: Arc<dyn ObjectStore>,
        folder: Path,
        options: &Options,
    ) -> Result<Self, ConnectError> {
        TokioRuntime::check_clock()?;
        let objects = Objects::new(store, folder, &options.key_prefix);
        TokioRuntime::current().connect(|| check(&objects)).await?;
        let observed = Observed::new(objects).max_clock_skew(options.max_clock_skew);
        let backend = StoreBackend::new(observed);
        Ok(Self(backend.call_timeout(options.call_timeout)?))
    }
}

/// Checks that the store has the bucket, lets this program write, and compares.
async fn check(objects: &Objects) -> Result<(), BackendError> {
    // An error of a read leaves no doubt.
    objects.read(CHECKED).await?;
    let create = Put::new(CHECKED, None, b"leasehold");
    let (tag, bytes) = (foreign_tag(), b"leasehold, again");
    let replace = Put::new(CHECKED, Some(&tag), bytes);
    // The first one is refused if a program was here before.
    let created = objects.write(create).await?.is_some();
    if created && objects.write(create).await?.is_some() {
        let reason = "the store creates an object that exists: it doesn't compare If-None-Match";
        return Err(BackendError::rejected(reason));
    }
    match objects.write(replace).await? {
        Some(_) => Err(BackendError::rejected(
            "the store replaces an object that has changed: it doesn't compare If-Match",
        )),
        None => Ok(()),
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockBackend for ObjectStoreBackend {
    forward_lock_backend! {
        |objects| objects.0;
        capabilities runtime hello clock read_clock listen poll renew release convert inspect
        force_release list write_note close
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        let patient: Vec<_> = batch.iter().cloned().map(with_patience).collect();
        self.0.acquire(&patient).await
    }
}

/// An acquire whose waiter lasts longer without a poll that is written, because each write has its price. All clients of an
/// object store do this.
fn with_patience(mut acquire: Acquire) -> Acquire {
    let spec = acquire.spec;
    if spec.waiter_lease() == bounds::DEFAULT_WAITER_LEASE {
        let longest = spec.with_waiter_lease(bounds::MAX_WAITER_LEASE);
        acquire.spec = longest.unwrap_or(spec);
    }
    acquire
}

/// Options of an [`ObjectStoreBackend`].
///
/// ```
/// use std::time::Duration;
///
/// use leasehold_object_store::Options;
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
    /// The certificates for TLS, for [`connect_with`](ObjectStoreBackend::connect_with).
    pub certificates: Certificates,
}

impl Options {
    /// The default options.
    ///
    /// # Examples
    /// ```
    /// let options = leasehold_object_store::Options::new();
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

    /// Sets the prefix of every key, up to 100 bytes. Programs with different prefixes don't share locks. The default is
    /// empty.
    ///
    /// # Examples
    /// ```
    /// use leasehold_object_store::Options;
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
    /// use leasehold_object_store::Options;
    ///
    /// // A distant bucket.
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
    /// use leasehold_object_store::Options;
    ///
    /// // A command that runs each minute.
    /// let options = Options::new().max_clock_skew(Duration::from_secs(300));
    /// ```
    #[must_use]
    pub const fn max_clock_skew(mut self, skew: Duration) -> Self {
        self.max_clock_skew = Some(skew);
        self
    }

    fn check(&self) -> Result<(), InvalidInput> {
        bounds::check_time_limit("call_timeout", self.call_timeout)?;
        match self.key_prefix.len() > LONGEST_PREFIX {
            true => Err(InvalidInput::setting("key_prefix", "more than 100 bytes")),
            false => Ok(()),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}
