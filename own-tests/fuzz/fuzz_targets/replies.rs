//! Replies of the scripts are read, or their outcome is unknown. Each element of a batch gets an answer.
#![no_main]

use leasehold_api::ClockId;
use leasehold_redis_common::script::reply;
use libfuzzer_sys::fuzz_target;

const CLOCK: ClockId = ClockId::new(1);

fuzz_target!(|input: (u8, &[u8])| {
    let (count, bytes) = (usize::from(input.0 % 8), input.1);
    assert_eq!(reply::acquires(bytes, count, CLOCK).len(), count);
    assert_eq!(reply::polls(bytes, count, CLOCK).len(), count);
    assert_eq!(reply::renewals(bytes, count, CLOCK).len(), count);
    assert_eq!(reply::releases(bytes, count, CLOCK).len(), count);
    let _ = reply::convert(bytes, CLOCK);
    let _ = reply::inspect(bytes, CLOCK);
    let _ = reply::force_release(bytes, CLOCK);
    let _ = reply::time(bytes);
});
