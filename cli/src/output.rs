//! Writing to standard error, whoever reads it.

use std::io::Write;

use nix::sys::signal::{SigSet, Signal};

/// Writes a line to standard error, also from the background of a terminal. Perhaps nobody reads it.
pub(crate) fn say(text: &str) {
    let _ = without_stopping(|| writeln!(std::io::stderr(), "leasehold: {text}"));
}

/// Runs this with SIGTTOU blocked, which a process in the background of a terminal would get.
pub(crate) fn without_stopping<T>(action: impl FnOnce() -> T) -> T {
    let signals = SigSet::from(Signal::SIGTTOU);
    let blocked = signals.thread_block().is_ok();
    let result = action();
    if blocked {
        let _ = signals.thread_unblock();
    }
    result
}
