//! Tests of the simulator through its public interface, all in virtual time.

#![expect(
    clippy::disallowed_methods,
    reason = "these tests use tokio, as users' tests do"
)]

mod basics;
mod cancelled;
mod controls;
mod counted;
mod determinism;
mod drivers;
mod explore;
mod explored;
mod failovers;
mod faults;
mod histories;
mod locks;
mod nodes;
mod offers;
mod servers;
mod support;
