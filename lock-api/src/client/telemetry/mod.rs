//! What a client reports of its work: `tracing` events, metrics, and the hook for losses.

pub(crate) mod events;
pub(crate) mod meter;
