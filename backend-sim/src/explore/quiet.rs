//! Panics that are expected, and many of them: shrinking makes thousands of failing runs.

use std::cell::{Cell, RefCell};
use std::panic;
use std::sync::Once;

thread_local! {
    static QUIET: Cell<u32> = const { Cell::new(0) };
    /// Where the last panic was that was not printed.
    static LOCATION: RefCell<Option<String>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// Until it is dropped, panics of this thread are not printed. Others are, as before.
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

/// Where this thread panicked last while it was quiet, `file:line:column`; told once.
pub(crate) fn last_location() -> Option<String> {
    LOCATION.take()
}

impl Drop for Quiet {
    fn drop(&mut self) {
        QUIET.set(QUIET.get() - 1);
    }
}
