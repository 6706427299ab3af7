//! What every Redis backend promises on a real server, shown with this one.

mod client;
mod ways;

#[path = "../../redis-link/tests/shared/mod.rs"]
mod shared;
