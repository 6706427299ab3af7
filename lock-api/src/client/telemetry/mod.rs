//! How a client reports its work: `tracing` events, metrics, and the hook for losses.

pub(crate) mod events;
mod failing;
pub(crate) mod meter;
