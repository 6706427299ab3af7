//! Failpoints: places between two steps of the client, where a task stops for some time while the others of its process
//! go on, or its process dies. An exploration arms some of them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::runtime::{BoxFuture, Runtime};

/// The failpoints of locks: between decide and send, answer and guard, guard and release.
pub const OF_LOCKS: &[&str] = &[
    "acquire decided",
    "acquire answered",
    "queued",
    "granted",
    "confirmation answered",
    "hold made",
    "clock read",
    "notified",
    "polls armed",
    "polls decided",
    "polls answered",
    "renewals armed",
    "renewals decided",
    "renewals answered",
    "conversion decided",
    "conversion answered",
    "release decided",
    "release answered",
    "releases taken",
    "releases decided",
    "releases answered",
    "batch decided",
    "batch answered",
    "closed",
];

/// The failpoints of jobs and elections: between permitted and started, ended and noted.
pub const OF_JOBS: &[&str] = &[
    "note answered",
    "attempt permitted",
    "body ended",
    "term permitted",
];

/// What happens to the next task of a process that reaches a place: it awaits this first.
type Armed = BTreeMap<(u32, &'static str), BoxFuture<'static, ()>>;

thread_local! {
    /// A run has one thread.
    static ARMED: RefCell<Armed> = const { RefCell::new(BTreeMap::new()) };
}

/// Where something armed has happened so far.
static REACHED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Lets the next task of a process that reaches this place await `fault` there.
pub fn arm(process: u32, place: &'static str, fault: BoxFuture<'static, ()>) {
    let before = ARMED.with_borrow_mut(|armed| armed.insert((process, place), fault));
    drop(before);
}

/// Removes all that is armed.
pub fn disarm() {
    drop(ARMED.take());
}

/// The places where something armed has happened so far.
pub fn reached() -> MutexGuard<'static, BTreeSet<&'static str>> {
    REACHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A task reaches a place.
pub(crate) async fn reach(runtime: &dyn Runtime, place: &'static str) {
    debug_assert!(
        OF_LOCKS.contains(&place) || OF_JOBS.contains(&place),
        "{place}"
    );
    let process = runtime.process_id();
    let fault = ARMED.with_borrow_mut(|armed| armed.remove(&(process, place)));
    if let Some(fault) = fault {
        reached().insert(place);
        fault.await;
    }
}
