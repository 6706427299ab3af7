//! What the benches measure against: the least that a lock on the same client library costs.
//!
//! A **floor** is a pair of commands, `SET key value NX PX lease` and a compare-and-delete script.
//! It has no queue, no fencing token, no reentrancy, no renewal, and it forgets a lock whose reply
//! was lost. Whatever leasehold costs above its floor is the price of those.

pub mod contend;
pub mod counting;
pub mod fred_floor;
pub mod push_floor;
pub mod redis_rs_floor;
pub mod samples;

/// The lease of every lock here.
pub const LEASE_MS: i64 = 30_000;

/// Deletes the key if it still holds the caller's value; 1 if it did.
pub const COMPARE_AND_DELETE: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";
