//! The simulated lock server. It is pure and synchronous, and gets the virtual time from its
//! caller.

pub(crate) mod primaries;
mod replay;
pub(crate) mod store;

pub use replay::replay;
