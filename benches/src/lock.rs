//! One trait for everything that the benches acquire and release.

use std::future::Future;

use leasehold::{Mutex, MutexGuard};

use crate::Result;
use crate::floor::Floor;

/// A client's handle to a lock.
pub trait Lock: Send + Sync + 'static {
    /// The guard.
    type Held: Send;

    /// Waits for the lock and acquires it.
    fn acquire(&self) -> impl Future<Output = Result<Self::Held>> + Send;

    /// Releases the lock. Fails if it was lost.
    fn release(&self, held: Self::Held) -> impl Future<Output = Result<()>> + Send;
}

/// A pair: one acquire and one release.
pub trait Pair: Send + Sync + 'static {
    /// Acquires and releases once.
    fn pair(&self) -> impl Future<Output = Result<()>> + Send;
}

impl<L: Lock> Pair for L {
    async fn pair(&self) -> Result<()> {
        let held = self.acquire().await?;
        self.release(held).await
    }
}

impl Lock for Mutex {
    type Held = MutexGuard;

    async fn acquire(&self) -> Result<MutexGuard> {
        Ok(self.lock().await?)
    }

    async fn release(&self, held: MutexGuard) -> Result<()> {
        Ok(held.release().await?)
    }
}

/// The floor, on a key that nothing else uses.
#[derive(Clone, Debug)]
pub struct FloorLock {
    floor: Floor,
    key: String,
}

impl FloorLock {
    /// Creates a lock on this key.
    #[must_use]
    pub fn new(floor: &Floor, key: impl Into<String>) -> Self {
        Self {
            floor: floor.clone(),
            key: key.into(),
        }
    }

    /// Creates a lock on each of these keys.
    pub fn each(floor: &Floor, keys: impl Iterator<Item = String>) -> Vec<Self> {
        keys.map(|key| Self::new(floor, key)).collect()
    }
}

/// The only owner of the floor's locks.
pub(crate) const OWNER: &str = "42";

impl Lock for FloorLock {
    type Held = ();

    async fn acquire(&self) -> Result<()> {
        match self.floor.acquire(&self.key, OWNER).await? {
            true => Ok(()),
            false => Err("the floor's key was not free".into()),
        }
    }

    async fn release(&self, (): ()) -> Result<()> {
        match self.floor.release(&self.key, OWNER).await? {
            true => Ok(()),
            false => Err("the floor's lock was lost".into()),
        }
    }
}
