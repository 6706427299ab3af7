//! Tests of the simulator through its public interface, all in virtual time.

#![expect(
    clippy::disallowed_methods,
    reason = "these are tests as users write them, on tokio"
)]

mod basics;
mod canary;
mod cancelled;
mod controls;
mod counted;
mod drivers;
mod drops;
mod explore;
mod faults;
mod histories;
mod locks;
mod servers;
mod support;
mod swarm;
