//! Guards as `CancellationToken`s.

use std::slice;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::client::guard::Guard;
use crate::client::guard::multi::MultiGuard;
use crate::client::hold::cancellation;

impl<K> Guard<K> {
    /// Returns a token that is cancelled when the guard is lost, or when its release begins, by
    /// [`release`](Self::release) or a drop.
    ///
    /// Give it to code that takes a `CancellationToken`. After a loss, [`loss_reason`](Self::loss_reason) says why.
    /// Each call spawns a task. If you need several tokens, clone the first, or make child tokens.
    ///
    /// The token is cancelled where renewals run, so in time even while the program blocks its own runtime. But the
    /// tasks that await it run in that runtime: one that is blocked doesn't let them stop before the lock can go to
    /// another holder.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// async fn send_invoice() { /* … */ }
    ///
    /// let guard = locks.mutex("invoice:42")?.lock().await?;
    /// let sending = guard.cancellation().run_until_cancelled_owned(send_invoice());
    /// if sending.await.is_none() {
    ///     println!("stopped: {:?}", guard.loss_reason());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancellation(&self) -> CancellationToken {
        self.cancellation_before(Duration::ZERO)
    }

    /// Returns a token that is cancelled like that of [`cancellation`](Self::cancellation), but when no more than `margin`
    /// of validity is left, unless a renewal comes first. Choose the margin as for [`expiring`](Self::expiring).
    ///
    /// # Examples
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// async fn send_invoice() { /* … */ }
    ///
    /// let guard = locks.mutex("invoice:42")?.lock().await?;
    /// let sending = guard.cancellation_before(Duration::from_secs(2)).run_until_cancelled_owned(send_invoice());
    /// if sending.await.is_none() {
    ///     println!("stopped: {:?}", guard.loss_reason());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancellation_before(&self, margin: Duration) -> CancellationToken {
        cancellation(slice::from_ref(&self.hold), margin)
    }
}

impl MultiGuard {
    /// Returns a token that is cancelled when a key is lost, or when its release begins, by
    /// [`release`](Self::release) or a drop.
    ///
    /// Give it to code that takes a `CancellationToken`. After a loss, [`loss_reason`](Self::loss_reason) says why.
    /// Each call spawns a task. If you need several tokens, clone the first, or make child tokens.
    ///
    /// The token is cancelled where renewals run, so in time even while the program blocks its own runtime. But the
    /// tasks that await it run in that runtime: one that is blocked doesn't let them stop before the lock can go to
    /// another holder.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// async fn send_invoice() { /* … */ }
    ///
    /// let guard = locks.lock_all(["account:3", "account:7"]).await?;
    /// let sending = guard.cancellation().run_until_cancelled_owned(send_invoice());
    /// if sending.await.is_none() {
    ///     println!("stopped: {:?}", guard.loss_reason());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancellation(&self) -> CancellationToken {
        self.cancellation_before(Duration::ZERO)
    }

    /// Returns a token that is cancelled like that of [`cancellation`](Self::cancellation), but when no more than `margin`
    /// of validity is left, unless a renewal comes first. Choose the margin as for [`expiring`](Self::expiring).
    ///
    /// # Examples
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// async fn send_invoice() { /* … */ }
    ///
    /// let guard = locks.lock_all(["account:3", "account:7"]).await?;
    /// let sending = guard.cancellation_before(Duration::from_secs(2)).run_until_cancelled_owned(send_invoice());
    /// if sending.await.is_none() {
    ///     println!("stopped: {:?}", guard.loss_reason());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancellation_before(&self, margin: Duration) -> CancellationToken {
        cancellation(&self.holds, margin)
    }
}
