//! The background tasks of a client, and the calls that they share with the foreground.

pub(crate) mod batch;
pub(crate) mod listen;
pub(crate) mod poll;
pub(crate) mod release;
pub(crate) mod renew;
