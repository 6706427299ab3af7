//! Tests of waiting on a real server, with many processes and many clients, through both client
//! libraries.

mod dead_waiters;
mod drops;
mod fifo;
mod pubsub;
#[cfg(target_os = "linux")]
mod stepped_clock;
mod support;
