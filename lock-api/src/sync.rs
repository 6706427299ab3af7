//! Locks and atomics: the standard library's, or loom's under `--cfg leasehold_loom`.
//!
//! `Arc` is always the standard one, because loom's cannot hold a trait object.

#[cfg(leasehold_loom)]
use loom::sync as imp;
#[cfg(not(leasehold_loom))]
use std::sync as imp;

pub(crate) use imp::MutexGuard;
pub(crate) use imp::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::{Arc, Weak};

/// A mutex without poisoning. No code that can panic runs while it is locked.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(imp::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(imp::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        match self.0.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}
