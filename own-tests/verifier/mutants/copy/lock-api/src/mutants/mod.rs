//! Mutants: each breaks one rule on purpose, to show that a test notices it.
//!
//! One build contains all of them, and at most one is planted in a process. The patches ask with [`planted`]; in a
//! Lua script, `@planted("NAME")@` is `true` or `false` when the script is assembled.

pub mod failpoints;

use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) use failpoints::reach;

/// The name of each patch, and the rule that it breaks.
const PATCHES: &[(&str, &str)] = &include!("patches.rs");

/// The mutants that may show only with several threads. The loom models must find them; single-threaded
/// runs need not.
pub const NEED_THREADS: &[&str] = &[
    "release-acknowledged-before-the-renewal-is-stopped",
    "cancel-before-schedule-race-of-the-watchdog",
    "listener-that-checks-before-it-registers",
    "router-entry-removed-before-its-release",
    "batch-that-nobody-sends",
    "two-takers-of-one-pushed-grant",
];

/// The mutants that only a task that stops at a failpoint shows, in runs with one thread.
pub const NEED_FAILPOINTS: &[&str] = &["hold-that-is-made-meanwhile-is-not-renewed"];

/// 0, or the index of the planted mutant plus 1.
static PLANTED: AtomicUsize = AtomicUsize::new(0);

/// The names of all mutants of Rust, each with the rule that it breaks.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    let patches = PATCHES.iter().copied();
    patches.filter(|(name, _)| !name.starts_with("lua-"))
}

/// The names of the mutants of the Lua scripts.
pub fn of_scripts() -> impl Iterator<Item = &'static str> {
    let names = PATCHES.iter().map(|(name, _)| *name);
    names.filter(|name| name.starts_with("lua-"))
}

/// Plants this mutant instead of any other. Returns `false`, and plants none, if no mutant has that name.
pub fn plant(name: &str) -> bool {
    let index = PATCHES.iter().position(|(known, _)| *known == name);
    PLANTED.store(index.map_or(0, |index| index + 1), Ordering::SeqCst);
    index.is_some()
}

/// Removes the planted mutant.
pub fn clear() {
    PLANTED.store(0, Ordering::SeqCst);
}

/// Whether explorations stop tasks at failpoints. The budgets of the other mutants are those without.
pub fn have_failpoints() -> bool {
    let index = PLANTED.load(Ordering::Relaxed).checked_sub(1);
    index.is_none_or(|index| NEED_FAILPOINTS.contains(&PATCHES[index].0))
}

/// Whether the patch with this name is planted.
#[inline]
pub fn planted(name: &str) -> bool {
    let index = PLANTED.load(Ordering::Relaxed).checked_sub(1);
    index.is_some_and(|index| PATCHES[index].0 == name)
}
