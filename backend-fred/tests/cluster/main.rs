//! The tests on a Redis Cluster, through the `fred` crate.

#[path = "../client/mod.rs"]
mod client;

#[path = "../../../redis-common/tests/shared/cluster.rs"]
mod cluster;
#[path = "../../../redis-common/tests/shared/cluster_push.rs"]
mod cluster_push;
#[path = "../../../redis-common/tests/shared/events.rs"]
mod events;
#[path = "../../../redis-common/tests/shared/node_clocks.rs"]
mod node_clocks;
#[allow(dead_code, reason = "the tests of single servers use the rest")]
#[path = "../../../redis-common/tests/shared/support.rs"]
mod support;
