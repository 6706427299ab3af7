//! The simulated lock server: pure and synchronous, driven from outside with the virtual time.

pub(crate) mod primaries;
mod replay;
pub(crate) mod store;

pub use replay::replay;
