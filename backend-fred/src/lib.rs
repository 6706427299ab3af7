//! leasehold's LockBackend on the fred crate
