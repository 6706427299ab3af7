//! The client libraries that leasehold supports.

use std::sync::Arc;

use leasehold::fred_rs::FredBackend;
use leasehold::redis_rs::{Options, RedisBackend};
use leasehold::{LockBackend, LockClient, Mutex};

use crate::Result;
use crate::counting::{Counting, Counts};
use crate::floor::{self, Floor};
use crate::samples::Samples;

/// A Redis client library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Library {
    /// The `redis` crate.
    RedisRs,
    /// The `fred` crate.
    Fred,
}

impl Library {
    /// Both libraries.
    pub const ALL: [Self; 2] = [Self::RedisRs, Self::Fred];

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RedisRs => "redis-rs",
            Self::Fred => "fred",
        }
    }

    /// Connects a new leasehold client.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn connect(self, url: &str) -> Result<LockClient> {
        Ok(LockClient::new(self.backend(url).await?))
    }

    /// Connects a new leasehold client that counts its calls in `counts`.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn connect_counted(self, url: &str, counts: &Arc<Counts>) -> Result<LockClient> {
        let backend = Counting::new(self.backend(url).await?, Arc::clone(counts));
        Ok(LockClient::new(backend))
    }

    /// Connects leasehold's backend.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn backend(self, url: &str) -> Result<Arc<dyn LockBackend>> {
        self.backend_with(url, Options::new()).await
    }

    /// Connects leasehold's backend with these options.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn backend_with(self, url: &str, options: Options) -> Result<Arc<dyn LockBackend>> {
        Ok(match self {
            Self::RedisRs => Arc::new(RedisBackend::connect_with(url, options).await?),
            Self::Fred => Arc::new(FredBackend::connect_with(url, options).await?),
        })
    }

    /// Connects the floor of a lock.
    ///
    /// # Errors
    /// Those of connecting.
    pub async fn floor(self, url: &str) -> Result<Floor> {
        Ok(match self {
            Self::RedisRs => Floor::through_redis_rs(url).await?,
            Self::Fred => Floor::through_fred(url).await?,
        })
    }

    /// Times `messages` messages, from `PUBLISH` on one connection to the message on another.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn message_floor(self, url: &str, messages: usize) -> Result<Samples> {
        match self {
            Self::RedisRs => floor::message_through_redis_rs(url, messages).await,
            Self::Fred => floor::message_through_fred(url, messages).await,
        }
    }
}

/// Connects `count` clients and makes each a handle to the mutex `key`.
///
/// # Errors
/// Those of connecting.
pub async fn mutexes(
    library: Library,
    url: &str,
    key: &str,
    count: usize,
) -> Result<(Vec<LockClient>, Vec<Mutex>)> {
    let (mut clients, mut mutexes) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let locks = library.connect(url).await?;
        mutexes.push(locks.mutex(key)?);
        clients.push(locks);
    }
    Ok((clients, mutexes))
}
