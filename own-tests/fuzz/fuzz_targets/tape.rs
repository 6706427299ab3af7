//! The tape of a simulated run is read or refused, and what was read is written in the same way.
#![no_main]

use leasehold_sim::tools::Tape;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(tape) = text.parse::<Tape>() {
        let written = tape.to_string();
        let again: Tape = written.parse().expect("it was written by this version");
        assert_eq!(again.to_string(), written);
    }
});
