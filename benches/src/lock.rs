//! What is measured, seen as one thing: something to take and to give back.

use std::future::Future;

use leasehold::{
    Mutex, MutexGuard, PermitGuard, ReadGuard, Release, RwLock, Semaphore, WriteGuard,
};

use crate::Result;
use crate::floor::Floor;

/// One contender's way to a lock.
pub trait Lock: Send + Sync + 'static {
    /// What shows that it is held.
    type Held: Send;

    /// Waits for the lock and takes it.
    fn take(&self) -> impl Future<Output = Result<Self::Held>> + Send;

    /// Gives it back.
    ///
    /// # Errors
    /// If it was not held any more, among others.
    fn give_back(&self, held: Self::Held) -> impl Future<Output = Result<()>> + Send;
}

/// Something that can be taken and given back in one go.
pub trait Pair: Send + Sync + 'static {
    /// Takes it and gives it back at once.
    fn pair(&self) -> impl Future<Output = Result<()>> + Send;
}

impl<L: Lock> Pair for L {
    async fn pair(&self) -> Result<()> {
        let held = self.take().await?;
        self.give_back(held).await
    }
}

fn still_held(release: Release) -> Result<()> {
    match release {
        Release::Released { .. } => Ok(()),
        Release::NotHeld(_) => Err("the lock was not held any more".into()),
    }
}

impl Lock for Mutex {
    type Held = MutexGuard;

    async fn take(&self) -> Result<MutexGuard> {
        Ok(self.lock().await?)
    }

    async fn give_back(&self, held: MutexGuard) -> Result<()> {
        still_held(held.release().await?)
    }
}

/// Reads, again and again.
#[derive(Clone, Debug)]
pub struct Reader(pub RwLock);

impl Lock for Reader {
    type Held = ReadGuard;

    async fn take(&self) -> Result<ReadGuard> {
        Ok(self.0.read().await?)
    }

    async fn give_back(&self, held: ReadGuard) -> Result<()> {
        still_held(held.release().await?)
    }
}

/// Writes, again and again.
#[derive(Clone, Debug)]
pub struct Writer(pub RwLock);

impl Lock for Writer {
    type Held = WriteGuard;

    async fn take(&self) -> Result<WriteGuard> {
        Ok(self.0.write().await?)
    }

    async fn give_back(&self, held: WriteGuard) -> Result<()> {
        still_held(held.release().await?)
    }
}

/// Takes one permit, again and again.
#[derive(Clone, Debug)]
pub struct Permit(pub Semaphore);

impl Lock for Permit {
    type Held = PermitGuard;

    async fn take(&self) -> Result<PermitGuard> {
        Ok(self.0.acquire(1).await?)
    }

    async fn give_back(&self, held: PermitGuard) -> Result<()> {
        still_held(held.release().await?)
    }
}

/// The floor, with a key of its own that nobody else wants.
#[derive(Clone, Debug)]
pub struct FloorLock {
    floor: Floor,
    key: String,
}

impl FloorLock {
    /// On this key.
    #[must_use]
    pub fn new(floor: &Floor, key: impl Into<String>) -> Self {
        Self {
            floor: floor.clone(),
            key: key.into(),
        }
    }
}

/// Whose lock it is; there is only one owner here.
const OWNER: u64 = 42;

impl Lock for FloorLock {
    type Held = ();

    async fn take(&self) -> Result<()> {
        match self.floor.take(&self.key, OWNER).await? {
            true => Ok(()),
            false => Err("the floor's key was not free".into()),
        }
    }

    async fn give_back(&self, (): ()) -> Result<()> {
        match self.floor.give_back(&self.key, OWNER).await? {
            true => Ok(()),
            false => Err("the floor's key was not held any more".into()),
        }
    }
}
