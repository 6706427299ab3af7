//! The text of a hand-off is read or refused, and what was read is written in the same way. So are keys.
#![no_main]

use leasehold_api::{Handoff, Key};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(handoff) = text.parse::<Handoff>() {
        let written = handoff.to_secret_text();
        let again: Handoff = written.parse().expect("it was written by this version");
        assert_eq!(again.to_secret_text(), written);
    }
    if let Ok(key) = Key::new(text) {
        assert_eq!(key.as_str(), text);
    }
});
