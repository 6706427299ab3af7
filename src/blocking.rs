//! Locks for programs without an async runtime.
//!
//! ```no_run
//! use leasehold::blocking::{self, LockClient};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let locks = blocking::connect("redis://localhost")?;
//!     let sent = send(&locks);
//!     locks.shutdown()?; // also after an error
//!     Ok(sent?)
//! }
//!
//! fn send(locks: &LockClient) -> Result<(), leasehold::Error> {
//!     let guard = locks.mutex("invoice:42")?.lock()?;
//!     println!("claim with token {}", guard.fencing_token());
//!     guard.release()
//! }
//! ```
//!
//! [`LockClient`] says more. The repository's `docs/blocking.md` says what the end of a process and a fork do to guards.

pub use leasehold_api::blocking::{
    Guard, LockClient, Mutex, MutexGuard, Occurrence, Once, PermitGuard, ReadGuard, RwLock,
    Semaphore, WriteGuard, block_on,
};

use crate::{ConnectError, ConnectOptions};

/// Connects to the lock service at `url`, with the default settings: [`leasehold::connect`](crate::connect).
///
/// # Errors
/// Those of [`ConnectOptions::connect`], and [`Error::InvalidInput`](crate::Error::InvalidInput) in an async task.
///
/// # Examples
/// See the [module](self).
pub fn connect(url: &str) -> Result<LockClient, ConnectError> {
    connect_with(url, ConnectOptions::new())
}

/// Connects to the lock service at `url`, with these settings.
///
/// # Errors
/// As [`connect`].
///
/// # Examples
/// `connect_with(url, ConnectOptions::new().key_prefix("billing:"))?`
pub fn connect_with(url: &str, options: ConnectOptions) -> Result<LockClient, ConnectError> {
    let locks = block_on(options.connect(url))??;
    Ok(LockClient::from(locks))
}
