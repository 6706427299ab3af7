//! Suppresses the output of expected panics. Shrinking makes hundreds of runs that panic.

use std::cell::{Cell, RefCell};
use std::panic;
use std::sync::Once;

thread_local! {
    static QUIET: Cell<u32> = const { Cell::new(0) };
    /// The location of the last suppressed panic.
    static LOCATION: RefCell<Option<String>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// Suppresses the output of this thread's panics until it is dropped.
pub(crate) struct Quiet;

pub(crate) fn panics() -> Quiet {
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if QUIET.get() == 0 {
                before(info);
            } else {
                LOCATION.set(info.location().map(ToString::to_string));
            }
        }));
    });
    QUIET.set(QUIET.get() + 1);
    LOCATION.set(None);
    Quiet
}

/// Takes the location of this thread's last suppressed panic, as `file:line:column`.
pub(crate) fn last_location() -> Option<String> {
    LOCATION.take()
}

impl Drop for Quiet {
    fn drop(&mut self) {
        QUIET.set(QUIET.get() - 1);
    }
}
