//! The shared tests of Redis backends on a real server, through the `redis` crate.

#[path = "../client/mod.rs"]
mod client;
mod constructors;
#[cfg(leasehold_mutants)]
mod lua_mutants;
mod sources;

#[cfg(leasehold_mutants)]
#[allow(dead_code, reason = "the whole suite runs in another binary")]
#[path = "../../../redis-common/tests/shared/harness.rs"]
mod harness;
#[path = "../../../redis-common/tests/shared/mod.rs"]
mod shared;

use shared::lossy;
