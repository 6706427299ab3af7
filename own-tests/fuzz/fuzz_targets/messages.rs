//! Messages are read or refused: those of Redis, and the text in payloads of Postgres' `NOTIFY`.
#![no_main]

use leasehold_api::ClockId;
use leasehold_redis_common::script::decode_notification;
use leasehold_store::messages;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = decode_notification(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = messages::decode(text, ClockId::new(1));
    }
});
