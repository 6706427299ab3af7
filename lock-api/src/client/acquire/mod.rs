//! Acquiring a lock: the request, the wait loop, its attempts, and the report of the outcome.

pub(crate) mod acquisition;
pub(crate) mod attempt;
pub(crate) mod request;
pub(crate) mod wait;
