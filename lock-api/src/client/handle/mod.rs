//! What users make and keep: the client, and a handle for each lock.

pub(crate) mod client;
pub(crate) mod inspection;
pub(crate) mod lock;
pub(crate) mod multi;
pub(crate) mod mutex;
pub(crate) mod rw_lock;
pub(crate) mod semaphore;
