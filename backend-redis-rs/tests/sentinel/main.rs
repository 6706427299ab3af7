//! The tests of failovers with Sentinel, through the `redis` crate.

#[path = "../client/mod.rs"]
mod client;

#[path = "../../../redis-common/tests/shared/events.rs"]
mod events;
#[path = "../../../redis-common/tests/shared/sentinel.rs"]
mod sentinel;
