//! The client libraries that leasehold supports.

use std::sync::Arc;

use leasehold::backend::LockBackend;
use leasehold::fred_rs::FredBackend;
use leasehold::redis_rs::RedisBackend;
use leasehold::{LockClient, Mutex};

use crate::Result;

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
    pub async fn connect(self, url: &str) -> Result<LockClient> {
        Ok(LockClient::new(self.backend(url).await?))
    }

    /// Connects `count` new clients.
    pub(crate) async fn connect_all(self, url: &str, count: usize) -> Result<Vec<LockClient>> {
        let mut clients = Vec::with_capacity(count);
        for _ in 0..count {
            clients.push(self.connect(url).await?);
        }
        Ok(clients)
    }

    pub(crate) async fn backend(self, url: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(match self {
            Self::RedisRs => Arc::new(RedisBackend::connect(url).await?),
            Self::Fred => Arc::new(FredBackend::connect(url).await?),
        })
    }
}

/// Makes a handle to the mutex `key` for each client.
pub(crate) fn one_each(clients: &[LockClient], key: &str) -> Result<Vec<Mutex>> {
    clients.iter().map(|it| Ok(it.mutex(key)?)).collect()
}

/// Makes a mutex of each of these keys.
pub fn each_key(locks: &LockClient, keys: impl Iterator<Item = String>) -> Result<Vec<Mutex>> {
    keys.map(|key| Ok(locks.mutex(key)?)).collect()
}

/// Connects `count` clients and makes each a handle to the mutex `key`.
pub async fn mutexes(
    library: Library,
    url: &str,
    key: &str,
    count: usize,
) -> Result<(Vec<LockClient>, Vec<Mutex>)> {
    let clients = library.connect_all(url, count).await?;
    let mutexes = one_each(&clients, key)?;
    Ok((clients, mutexes))
}
