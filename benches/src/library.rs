//! The client libraries that leasehold works on.

use std::sync::Arc;

use leasehold::fred::FredBackend;
use leasehold::redis_rs::RedisBackend;
use leasehold::{LockBackend, LockClient};

use crate::Result;
use crate::counting::{Counting, Counts};
use crate::floor::Floor;
use crate::fred_floor::FredFloor;
use crate::push_floor;
use crate::redis_rs_floor::RedisRsFloor;
use crate::samples::Samples;

/// A client library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Library {
    /// The `redis` crate.
    RedisRs,
    /// The `fred` crate.
    Fred,
}

impl Library {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::RedisRs, Self::Fred];

    /// As it is called in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RedisRs => "redis-rs",
            Self::Fred => "fred",
        }
    }

    /// A client of leasehold with connections of its own.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn connect(self, url: &str) -> Result<LockClient> {
        Ok(LockClient::new(self.backend(url).await?))
    }

    /// The same, its calls counted.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn connect_counted(self, url: &str, counts: &Arc<Counts>) -> Result<LockClient> {
        let backend = Counting::new(self.backend(url).await?, Arc::clone(counts));
        Ok(LockClient::new(backend))
    }

    /// leasehold's backend on this library.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn backend(self, url: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(match self {
            Self::RedisRs => Arc::new(RedisBackend::connect(url).await?),
            Self::Fred => Arc::new(FredBackend::connect(url).await?),
        })
    }

    /// The least that a lock costs on this library, over a connection of its own.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn floor(self, url: &str) -> Result<Floor> {
        Ok(match self {
            Self::RedisRs => Floor::RedisRs(RedisRsFloor::connect(url).await?),
            Self::Fred => Floor::Fred(FredFloor::connect(url).await?),
        })
    }

    /// From `PUBLISH` on one connection to the message on another, so many times.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn push_floor(self, url: &str, messages: usize) -> Result<Samples> {
        match self {
            Self::RedisRs => push_floor::through_redis_rs(url, messages).await,
            Self::Fred => push_floor::through_fred(url, messages).await,
        }
    }
}
