//! The client, and a handle for each kind of lock.

pub(crate) mod client;
pub(crate) mod inspection;
pub(crate) mod listing;
pub(crate) mod lock;
pub(crate) mod multi;
pub(crate) mod mutex;
pub(crate) mod ping;
pub(crate) mod rw_lock;
pub(crate) mod semaphore;
