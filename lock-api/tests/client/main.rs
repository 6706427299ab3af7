//! Tests of the client on a simulated server, in virtual time.

#![expect(
    clippy::disallowed_methods,
    reason = "a user's code spawns and sleeps; on the simulator this is deterministic too"
)]

mod batches;
mod bounds;
mod cancellation;
mod cleanup;
mod connecting;
mod election;
mod expiring;
mod holding;
mod inspection;
mod losses;
mod many;
mod nesting;
mod once;
mod outage_limits;
mod outages;
mod polls;
mod refusals;
mod renewing;
mod support;
mod waiting;
mod with;
mod wrapped;
