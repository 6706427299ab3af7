//! The shared tests of Redis backends on a real server, through the `redis` crate.

#[path = "../client/mod.rs"]
mod client;
mod constructors;

#[path = "../../../redis-common/tests/shared/mod.rs"]
mod shared;

use shared::lossy;
