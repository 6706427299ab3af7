//! A backend that counts the calls to the backend that it wraps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_api::{LockBackend, forward_lock_backend};

/// A number of calls so far. Each may be for several waiters or leases.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) polls: Count,
    pub(crate) renewals: Count,
}

#[derive(Debug)]
pub(crate) struct Counting<B> {
    pub(crate) inner: B,
    pub(crate) counts: Arc<Counts>,
}

#[deny(clippy::missing_trait_methods)]
impl<B: LockBackend> LockBackend for Counting<B> {
    forward_lock_backend!(|it| { it.counts.polls.add_one(); &it.inner }; poll);
    forward_lock_backend!(|it| { it.counts.renewals.add_one(); &it.inner }; renew);
    forward_lock_backend! {
        |it| it.inner;
        capabilities runtime hello clock read_clock listen acquire release convert inspect force_release list write_note close
    }
}
