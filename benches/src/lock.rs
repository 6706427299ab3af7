//! One trait for everything that the benches acquire and release.

use std::future::Future;

use leasehold::{Mutex, MutexGuard, PermitGuard, ReadGuard, RwLock, Semaphore, WriteGuard};

use crate::Result;
use crate::floor::Floor;

/// A client's handle to a lock.
pub trait Lock: Send + Sync + 'static {
    /// The guard.
    type Held: Send;

    /// Waits for the lock and acquires it.
    fn acquire(&self) -> impl Future<Output = Result<Self::Held>> + Send;

    /// Releases the lock.
    ///
    /// # Errors
    /// If the lock was lost, or the backend fails.
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

/// Acquires a read lock.
#[derive(Clone, Debug)]
pub struct Reader(pub RwLock);

/// Acquires a write lock.
#[derive(Clone, Debug)]
pub struct Writer(pub RwLock);

/// Acquires one permit.
#[derive(Clone, Debug)]
pub struct Permit(pub Semaphore);

macro_rules! leasehold_locks {
    ($($lock:ty, $guard:ty, |$it:ident| $acquire:expr;)+) => {
        $(impl Lock for $lock {
            type Held = $guard;

            async fn acquire(&self) -> Result<$guard> {
                let $it = self;
                Ok($acquire.await?)
            }

            async fn release(&self, held: $guard) -> Result<()> {
                Ok(held.release().await.map(drop)?)
            }
        })+
    };
}

leasehold_locks! {
    Mutex, MutexGuard, |it| it.lock();
    Reader, ReadGuard, |it| it.0.read();
    Writer, WriteGuard, |it| it.0.write();
    Permit, PermitGuard, |it| it.0.acquire();
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
}

/// The only owner of the floor's locks.
const OWNER: u64 = 42;

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
