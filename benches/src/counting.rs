//! A backend that counts the calls to the backend that it wraps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_api::{LockBackend, forward_lock_backend};

/// Counters of calls, by purpose.
#[derive(Debug, Default)]
pub struct Counts {
    polls: AtomicU64,
    renewals: AtomicU64,
}

impl Counts {
    /// The calls so far that poll for one or more waiters.
    #[must_use]
    pub fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// The calls so far that renew one or more leases.
    #[must_use]
    pub fn renewals(&self) -> u64 {
        self.renewals.load(Ordering::Relaxed)
    }
}

/// Wraps a backend and counts its calls.
#[derive(Debug)]
pub struct Counting<B> {
    inner: B,
    counts: Arc<Counts>,
}

impl<B> Counting<B> {
    /// Counts the calls to `inner` in `counts`.
    pub const fn new(inner: B, counts: Arc<Counts>) -> Self {
        Self { inner, counts }
    }
}

fn one(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[deny(clippy::missing_trait_methods)]
impl<B: LockBackend> LockBackend for Counting<B> {
    forward_lock_backend!(|it| { one(&it.counts.polls); &it.inner }; poll);
    forward_lock_backend!(|it| { one(&it.counts.renewals); &it.inner }; renew);
    forward_lock_backend! {
        |it| it.inner;
        capabilities runtime hello clock read_clock listen acquire release convert inspect force_release list write_note close
    }
}
