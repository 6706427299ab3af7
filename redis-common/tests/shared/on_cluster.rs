//! Tests of all Redis backends on a cluster. Each backend includes them in its own tests, where `crate::client`
//! connects, and `crate::lossy` and `crate::constructors` are the modules below.

mod cluster;
mod cluster_migration;
mod cluster_push;
mod events;
mod faults;
pub(crate) mod lossy;
mod node_clocks;
mod requests;
#[allow(dead_code, reason = "the tests of single servers use the rest")]
mod support;

/// The constructors that lead to a cluster.
pub(crate) mod constructors {
    use super::support::Constructor;

    pub(crate) const ON_CLUSTER: bool = true;
    pub(crate) const CONSTRUCTORS: [Constructor; 2] = [Constructor::URL, Constructor::URL_RESP2];
}
