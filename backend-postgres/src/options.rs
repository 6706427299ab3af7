//! Options of a backend.

use std::time::Duration;

use leasehold_api::{BackendError, InvalidInput, bounds};

/// Options of a [`PostgresBackend`](crate::PostgresBackend).
///
/// ```
/// use std::time::Duration;
///
/// use leasehold_postgres::Options;
///
/// let options = Options::new().key_prefix("billing:").call_timeout(Duration::from_secs(2));
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) key_prefix: String,
    pub(crate) call_timeout: Duration,
    pub(crate) connect_timeout: Duration,
}

impl Options {
    /// The default options.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            key_prefix: String::new(),
            call_timeout: bounds::CALL_TIMEOUT,
            connect_timeout: bounds::CALL_TIMEOUT,
        }
    }

    /// Sets a text that is put in front of every key. Programs with different prefixes don't share
    /// locks. The default is empty.
    #[must_use]
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = prefix.into();
        self
    }

    /// Sets the maximum time of one call, 10 ms to 5 s, including its retries. The default is 1 s.
    #[must_use]
    pub const fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// Sets the maximum time in which a connection is made, 10 ms to 5 s. The default is 1 s.
    #[must_use]
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    pub(crate) fn check(&self) -> Result<(), InvalidInput> {
        InvalidInput::check_time_limit("call_timeout", self.call_timeout)?;
        InvalidInput::check_time_limit("connect_timeout", self.connect_timeout)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

/// Why a backend could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is not one of a Postgres server. The message doesn't contain it.
    #[error("the URL of the Postgres server cannot be read")]
    Url(#[source] tokio_postgres::Error),
    /// An option is out of range.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// The server cannot be reached, or refuses the connection.
    #[error(transparent)]
    Failed(#[from] BackendError),
}
