//! A backend that counts the calls to the backend that it wraps.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use leasehold_api::{LockBackend, forward_lock_backend};

/// The calls so far. Each may be for several waiters or leases.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) polls: AtomicU64,
    pub(crate) renewals: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Counting<B> {
    pub(crate) inner: B,
    pub(crate) counts: Arc<Counts>,
}

#[deny(clippy::missing_trait_methods)]
impl<B: LockBackend> LockBackend for Counting<B> {
    forward_lock_backend!(|it| { it.counts.polls.fetch_add(1, Relaxed); &it.inner }; poll);
    forward_lock_backend!(|it| { it.counts.renewals.fetch_add(1, Relaxed); &it.inner }; renew);
    forward_lock_backend! {
        |it| it.inner;
        capabilities runtime hello clock read_clock listen acquire release convert inspect force_release list write_note close
    }
}
