//! What the benches measure, and what they measure it against.
//!
//! A **floor** is the least that a lock on the same client library costs: a pair of commands,
//! `SET key value NX PX lease` and a compare-and-delete script. It has no queue, no fencing token,
//! no reentrancy, no renewal, and it forgets a lock whose reply was lost. Whatever leasehold costs
//! above its floor is the price of those. The floor of a hand-over is one message from a
//! connection to another; what a queue costs elsewhere is shown by a lock on `BLPOP`.
//!
//! [`figures`] has the measurements, [`report`] what is made of them.

use std::error::Error;

pub mod blpop;
pub mod contend;
pub mod contenders;
pub mod counting;
pub mod drain;
pub mod figures;
pub mod floor;
pub mod fred_floor;
pub mod harness;
pub mod instructions;
pub mod library;
pub mod load;
pub mod lock;
#[cfg(feature = "peers")]
pub mod peers;
pub mod processor;
pub mod push_floor;
pub mod redis_rs_floor;
pub mod report;
pub mod samples;
pub mod server_stats;
pub mod single;

/// What ends a measurement early.
pub type Fault = Box<dyn Error + Send + Sync>;

/// What a measurement yields.
pub type Result<T> = std::result::Result<T, Fault>;

/// The lease of every lock here that is not leasehold's.
pub const LEASE_MS: i64 = 30_000;

/// Deletes the key if it still holds the caller's value; 1 if it did.
pub const COMPARE_AND_DELETE: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";
