//! The tests on a Redis Cluster, through the `fred` crate.

#[path = "../client/mod.rs"]
mod client;

#[path = "../../../redis-common/tests/shared/on_cluster.rs"]
mod on_cluster;

use on_cluster::{constructors, lossy};
