//! The client.

use crate::client::blocking::executor::wait;
use crate::client::blocking::handles::{Mutex, RwLock, Semaphore};
use crate::client::blocking::once::Once;
use crate::client::error::Error;
use crate::client::handle::client::LockClient as AsyncClient;
use crate::client::handle::ping::Ping;

/// A [client](crate::LockClient) whose calls block. See the [module](super).
///
/// `leasehold::blocking::connect` makes one. To choose more, make an async client with
/// [`block_on`](super::block_on), and convert it. You can convert the client of an async program too, for its
/// blocking parts: they then depend on the runtime of that program, which must run.
///
/// # Examples
/// ```no_run
/// # use std::error::Error;
/// # use std::time::Duration;
/// # use leasehold_api::{LockBackend, blocking};
/// # fn example(connect: impl Future<Output = std::sync::Arc<dyn LockBackend>>) -> Result<(), Box<dyn Error>> {
/// let locks = blocking::block_on(async {
///     let builder = leasehold_api::LockClient::builder(connect.await);
///     builder.lease(Duration::from_secs(10)).build()
/// })??;
/// let locks = blocking::LockClient::from(locks);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LockClient(AsyncClient);

impl From<AsyncClient> for LockClient {
    fn from(client: AsyncClient) -> Self {
        Self(client)
    }
}

impl LockClient {
    /// Returns the async client, for [`block_on`](super::block_on).
    ///
    /// # Examples
    /// `block_on(locks.as_async().inspect("invoice:42"))??`
    pub const fn as_async(&self) -> &AsyncClient {
        &self.0
    }

    /// Returns a handle of a mutex. See [`LockClient::mutex`](AsyncClient::mutex).
    ///
    /// # Errors
    /// [`Error::InvalidInput`] or [`Error::Closed`].
    ///
    /// # Examples
    /// `let guard = locks.mutex("invoice:42")?.lock()?;`
    pub fn mutex(&self, key: impl AsRef<str>) -> Result<Mutex, Error> {
        self.0.mutex(key).map(Mutex::new)
    }

    /// Returns a handle of a reader/writer lock. See [`LockClient::rw_lock`](AsyncClient::rw_lock).
    ///
    /// # Errors
    /// [`Error::InvalidInput`], [`Error::Unsupported`] or [`Error::Closed`].
    ///
    /// # Examples
    /// `let guard = locks.rw_lock("catalog")?.read()?;`
    pub fn rw_lock(&self, key: impl AsRef<str>) -> Result<RwLock, Error> {
        self.0.rw_lock(key).map(RwLock::new)
    }

    /// Returns a handle of a semaphore. See [`LockClient::semaphore`](AsyncClient::semaphore).
    ///
    /// # Errors
    /// [`Error::InvalidInput`], [`Error::Unsupported`] or [`Error::Closed`].
    ///
    /// # Examples
    /// `let guard = locks.semaphore("printers", 3)?.acquire()?;`
    pub fn semaphore(&self, key: impl AsRef<str>, permits: u32) -> Result<Semaphore, Error> {
        self.0.semaphore(key, permits).map(Semaphore::new)
    }

    /// Returns a handle of a job that runs once. See [`LockClient::once`](AsyncClient::once).
    ///
    /// # Errors
    /// [`Error::InvalidInput`], [`Error::Unsupported`] or [`Error::Closed`].
    ///
    /// # Examples
    /// `locks.once("report")?.at(midnight).run(|_job| write_report())?`
    pub fn once(&self, name: impl AsRef<str>) -> Result<Once, Error> {
        self.0.once(name).map(Once::new)
    }

    /// Asks the lock service for an answer. See [`LockClient::ping`](AsyncClient::ping).
    ///
    /// # Errors
    /// Those of [`LockClient::ping`](AsyncClient::ping).
    ///
    /// # Examples
    /// `println!("{:?}", locks.ping()?);`
    pub fn ping(&self) -> Result<Ping, Error> {
        wait(self.0.ping())
    }

    /// Releases all guards of the client, and waits for that. See [`LockClient::shutdown`](AsyncClient::shutdown).
    ///
    /// # Errors
    /// Those of [`LockClient::shutdown`](AsyncClient::shutdown).
    ///
    /// # Examples
    /// `locks.shutdown()?; // last in main`
    pub fn shutdown(&self) -> Result<(), Error> {
        wait(self.0.shutdown())
    }
}
