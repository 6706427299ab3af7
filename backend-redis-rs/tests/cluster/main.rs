//! The tests on a Redis Cluster, through the `redis` crate.

#[path = "../client/mod.rs"]
mod client;

#[path = "../../../redis-common/tests/shared/cluster.rs"]
mod cluster;
#[path = "../../../redis-common/tests/shared/cluster_push.rs"]
mod cluster_push;
#[path = "../../../redis-common/tests/shared/events.rs"]
mod events;
#[path = "../../../redis-common/tests/shared/faults.rs"]
mod faults;
#[path = "../../../redis-common/tests/shared/lossy.rs"]
mod lossy;
#[path = "../../../redis-common/tests/shared/node_clocks.rs"]
mod node_clocks;
#[path = "../../../redis-common/tests/shared/requests.rs"]
mod requests;
#[allow(dead_code, reason = "the tests of single servers use the rest")]
#[path = "../../../redis-common/tests/shared/support.rs"]
mod support;

/// The constructors that lead to a cluster.
mod constructors {
    use crate::support::Constructor;

    pub(crate) const ON_CLUSTER: bool = true;
    pub(crate) const CONSTRUCTORS: [Constructor; 2] = [Constructor::URL, Constructor::URL_RESP2];
}
