//! Taking a lock: the request, the loop that waits, and its attempts.

pub(crate) mod acquisition;
pub(crate) mod attempt;
pub(crate) mod request;
pub(crate) mod wait;
