//! The tests of failovers with Sentinel, through the `redis` crate.

#[path = "../client/mod.rs"]
mod client;

#[path = "../../../redis-common/tests/shared/on_sentinel.rs"]
mod on_sentinel;
