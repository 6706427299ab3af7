//! A stored state is read or refused, and what was read is written in the same way.
#![no_main]

use leasehold_api::machine::State;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(state) = State::from_bytes(bytes) {
        assert_eq!(State::from_bytes(&state.to_bytes()), Ok(state));
    }
});
