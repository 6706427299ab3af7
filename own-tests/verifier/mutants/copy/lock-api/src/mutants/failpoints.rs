//! Failpoints: places between two steps of the client, where a task stops for some time while the others of its process
//! go on, or its process dies. An exploration arms some of them, and torture chooses by chance.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

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

/// What a task awaits that reaches this place, if anything.
type Choose = fn(&'static str) -> Option<BoxFuture<'static, ()>>;

/// Decides for all tasks of this process, in place of what is armed.
static EVERYWHERE: OnceLock<Choose> = OnceLock::new();

/// Where something armed has happened so far.
static REACHED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Lets the next task of a process that reaches this place await `fault` there.
pub fn arm(process: u32, place: &'static str, fault: BoxFuture<'static, ()>) {
    let before = ARMED.with_borrow_mut(|armed| armed.insert((process, place), fault));
    drop(before);
}

/// Lets `choose` decide for each task of this process that reaches a place. For torture.
pub fn everywhere(choose: Choose) {
    EVERYWHERE.get_or_init(|| choose);
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
    let armed = || ARMED.with_borrow_mut(|armed| armed.remove(&(runtime.process_id(), place)));
    let fault = EVERYWHERE.get().map_or_else(armed, |choose| choose(place));
    if let Some(fault) = fault {
        reached().insert(place);
        fault.await;
    }
}
