//! A backend that counts the calls to the backend that it wraps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_api::{LockBackend, forward_lock_backend};

/// Counters of calls, by purpose.
#[derive(Debug, Default)]
pub struct Counts {
    acquires: AtomicU64,
    polls: AtomicU64,
    renewals: AtomicU64,
    releases: AtomicU64,
}

/// The values of [`Counts`] at one moment, or their difference between two.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    /// Calls that acquire.
    pub acquires: u64,
    /// Calls that poll for one or more waiters.
    pub polls: u64,
    /// Calls that renew one or more leases.
    pub renewals: u64,
    /// Calls that release one or more operations.
    pub releases: u64,
}

impl Snapshot {
    /// The calls since an earlier one.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            acquires: self.acquires - earlier.acquires,
            polls: self.polls - earlier.polls,
            renewals: self.renewals - earlier.renewals,
            releases: self.releases - earlier.releases,
        }
    }
}

impl Counts {
    /// The calls so far.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            acquires: self.acquires.load(Ordering::Relaxed),
            polls: self.polls.load(Ordering::Relaxed),
            renewals: self.renewals.load(Ordering::Relaxed),
            releases: self.releases.load(Ordering::Relaxed),
        }
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
    forward_lock_backend!(|it| { one(&it.counts.acquires); &it.inner }; acquire);
    forward_lock_backend!(|it| { one(&it.counts.polls); &it.inner }; poll);
    forward_lock_backend!(|it| { one(&it.counts.renewals); &it.inner }; renew);
    forward_lock_backend!(|it| { one(&it.counts.releases); &it.inner }; release);
    forward_lock_backend! {
        |it| it.inner;
        capabilities runtime hello clock read_clock listen convert inspect force_release list write_note close
    }
}
