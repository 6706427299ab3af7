//! What the tests of several processes are made of: a backend on either client library, and a
//! wrapper that notes what passes through it.
//!
//! The program `contender` is one process that takes a lock again and again. The tests start
//! many of them and tell from what they print in which order they were served.

mod recording;

use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use leasehold_api::LockBackend;
use leasehold_fred::FredBackend;
use leasehold_redis_rs::{Options, RedisBackend};

pub use recording::{Phase, RecordingBackend};

/// A machine that is busy with other tests may stall a process; a call that is cut short for it
/// would be sent again, which is not what these tests are about.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Which library a backend is made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Library {
    /// The `redis` crate.
    RedisRs,
    /// The `fred` crate.
    Fred,
}

impl Library {
    /// As it is named on the command line.
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
    /// What the backend says.
    pub async fn connect(
        self,
        url: &str,
    ) -> Result<Arc<dyn LockBackend>, Box<dyn std::error::Error + Send + Sync>> {
        let options = Options::new()
            .with_call_timeout(CALL_TIMEOUT)
            .with_connect_timeout(CALL_TIMEOUT);
        Ok(match self {
            Self::RedisRs => Arc::new(RedisBackend::connect_with(url, options).await?),
            Self::Fred => Arc::new(FredBackend::connect_with(url, options).await?),
        })
    }
}
