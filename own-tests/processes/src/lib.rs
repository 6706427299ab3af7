//! Shared by the tests on a real server: a backend on either client library, and a wrapper that records its calls.

mod recording;

use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use leasehold_api::LockBackend;
use leasehold_fred::FredBackend;
use leasehold_redis_rs::{Options, RedisBackend};

pub use recording::{Phase, RecordingBackend};

/// Longer than the stalls of a busy machine. A short timeout would make clients retry calls, which
/// these tests don't examine.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// An error that ends a program of this package.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The client library of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Library {
    /// The `redis` crate.
    RedisRs,
    /// The `fred` crate.
    Fred,
}

impl Library {
    /// The name of the library on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RedisRs => "redis-rs",
            Self::Fred => "fred",
        }
    }

    /// Connects to the server at `url`.
    ///
    /// # Errors
    /// Returns the backend's error if it can't connect.
    pub async fn connect(self, url: &str) -> Result<Arc<dyn LockBackend>, Failure> {
        let options = Options::new()
            .call_timeout(CALL_TIMEOUT)
            .connect_timeout(CALL_TIMEOUT);
        self.connect_with(url, options).await
    }

    /// Connects to the server at `url` with these options.
    ///
    /// # Errors
    /// Returns the backend's error if it can't connect.
    pub async fn connect_with(
        self,
        url: &str,
        options: Options,
    ) -> Result<Arc<dyn LockBackend>, Failure> {
        Ok(match self {
            Self::RedisRs => Arc::new(RedisBackend::connect_with(url, options).await?),
            Self::Fred => Arc::new(FredBackend::connect_with(url, options).await?),
        })
    }
}
