//! leasehold's LockBackend on the redis crate
