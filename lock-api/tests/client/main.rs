//! What a user holds, tried on the simulated server in virtual time.

#![expect(
    clippy::disallowed_methods,
    reason = "a user's code spawns and sleeps as it likes; on the simulator it is deterministic too"
)]

mod basics;
mod batches;
mod bounds;
mod ending;
mod handoff;
mod holding;
mod looking;
mod losses;
mod many;
mod outages;
mod polls;
mod renewing;
mod support;
mod waiting;
mod wrapped;
