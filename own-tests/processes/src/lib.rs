//! Shared by the tests with other processes: a backend on either client library.

use std::sync::Arc;

use clap::ValueEnum;
use leasehold_api::LockBackend;
use leasehold_fred::FredBackend;
use leasehold_redis_rs::RedisBackend;

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
        Ok(match self {
            Self::RedisRs => Arc::new(RedisBackend::connect(url).await?),
            Self::Fred => Arc::new(FredBackend::connect(url).await?),
        })
    }
}
