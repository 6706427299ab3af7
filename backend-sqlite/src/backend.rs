//! The backend: a store whose commands and renewals share a queue.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{
    BackendError, ConnectError, InvalidInput, LockBackend, TokioRuntime, bounds,
    forward_lock_backend,
};
use leasehold_store::StoreBackend;

use crate::queue::Queue;
use crate::store::SqliteStore;

/// How long opening may take, on a disk that stands still. It waits 5 s for other programs.
const OPEN_WITHIN: Duration = Duration::from_secs(10);

/// A [`LockBackend`] on one SQLite file. It has all capabilities but `push`, `reachability` and `batches`: waiters of the
/// same backend are woken at once, and those of other processes poll every 50 ms.
///
/// Give all tasks of a process one backend. It has a thread for the file, which also serves renewals, so a program that
/// blocks its runtime keeps its locks.
///
/// # Cancel safety
/// Dropping the future of a command abandons the call. It may still be executed.
#[derive(Debug)]
pub struct SqliteBackend(StoreBackend<SqliteStore>);

impl SqliteBackend {
    /// Opens a file, or creates it, with the default options.
    ///
    /// # Errors
    /// The errors of [`open_with`](Self::open_with).
    ///
    /// # Cancel safety
    /// If you drop the future, the file is closed.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Examples
    /// See the [crate](crate).
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, ConnectError> {
        Self::open_with(path, Options::new()).await
    }

    /// Opens a file, or creates it. Waits up to 5 s for other programs that open it too, and up to 10 s for the disk. After that,
    /// the file may still be created.
    ///
    /// # Errors
    /// - [`ConnectError::Invalid`] if an option is out of range, the path is empty or `:memory:`, or tokio's clock is paused.
    /// - [`ConnectError::Backend`] if the file can't be opened, is not a database, has [several names](crate#the-file), or
    ///   is on a network file system.
    ///
    /// # Cancel safety
    /// If you drop the future, the file is closed.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Examples
    /// ```no_run
    /// use leasehold_sqlite::{Options, SqliteBackend};
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let options = Options::new().key_prefix("billing:");
    /// let backend = SqliteBackend::open_with("locks.db", options).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self, ConnectError> {
        bounds::check_time_limit("call_timeout", options.call_timeout)?;
        let path = file_of(path.as_ref())?;
        TokioRuntime::check_clock()?;
        let runtime = TokioRuntime::current();
        let opening = Queue::open(path, runtime.clone());
        let opened = runtime.timeout(OPEN_WITHIN, opening).await;
        let late = || BackendError::unavailable("the disk gives no answer");
        let (queue, clock) = opened.unwrap_or_else(|| Err(late()))?;
        let store = SqliteStore {
            queue: Arc::new(queue),
            clock,
            runtime,
            prefix: options.key_prefix.into(),
            is_renewing: false,
        };
        let renewing = SqliteStore {
            is_renewing: true,
            ..store.clone()
        };
        let backend = StoreBackend::new(store).call_timeout(options.call_timeout)?;
        Ok(Self(backend.renewals(renewing)))
    }
}

/// The absolute path of a file: the program may change its folder.
fn file_of(path: &Path) -> Result<PathBuf, InvalidInput> {
    let is_file = path.file_name().is_some() && path != Path::new(":memory:");
    let absolute = is_file.then(|| std::path::absolute(path).ok()).flatten();
    absolute
        .ok_or_else(|| InvalidInput::setting("path", "processes share a file, such as locks.db"))
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockBackend for SqliteBackend {
    forward_lock_backend!(|sqlite| sqlite.0; all);
}

/// Options of a [`SqliteBackend`].
///
/// ```
/// use std::time::Duration;
///
/// use leasehold_sqlite::Options;
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
    /// let options = leasehold_sqlite::Options::new();
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
    /// use leasehold_sqlite::Options;
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
    /// refused when you open the file.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold_sqlite::Options;
    ///
    /// // A slow disk.
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
