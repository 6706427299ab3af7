//! One address that leads to a replica for a while: a name that is resolved late, a load balancer that has
//! not noticed a failover. Exclusion must not depend on where an address leads.

use std::time::Duration;

use leasehold_api::{Error, LockClient, ReadGuard, Upgrade};
use leasehold_redis_common::{Options, ServerChecks};
use leasehold_test_servers::{FaultProxy, RedisServer, ServerOptions};

use super::support::{
    Constructor, acquire, client, eventually, key, mutex, operation, refused, session, soon,
};

const KEY: &str = "replicated";
/// How long an address leads to a replica. Much longer than a call to it takes.
const FOR_A_WHILE: Duration = Duration::from_secs(2);

/// Makes the second server a replica of the first, with all its data.
pub(super) async fn replicate(primary: &RedisServer, replica: &RedisServer) {
    let port = primary.port().to_string();
    replica.run(&["REPLICAOF", "127.0.0.1", &port]);
    eventually("the replica has everything", async || {
        let answer = primary.run(&["INFO", "replication"]);
        answer.contains("state=online")
    })
    .await;
}

/// Makes the replica the primary, and the primary its replica, without a lost write.
pub(super) async fn fail_over(primary: &RedisServer, replica: &RedisServer) {
    let port = replica.port().to_string();
    primary.run(&["FAILOVER", "TO", "127.0.0.1", &port]);
    eventually("the replica is the primary", async || {
        replica.run(&["ROLE"]).contains("master")
    })
    .await;
}

/// A writer became a reader, and there is another reader. A replica that has seen neither answers that the
/// lock is held for writing already.
async fn upgrade_at_a_replica(checks: ServerChecks) {
    let (primary, replica) = (RedisServer::start(), RedisServer::start());
    replicate(&primary, &replica).await;
    let address = FaultProxy::start(primary.address()).await;
    let options = Options::new().server_checks(checks);
    let ours = Constructor::URL.open_with(&address.url(), options).await;
    let ours = LockClient::new(ours);
    let others = client(&primary.url()).await;
    let writer = ours.rw_lock(KEY).expect("a good key").write().await;
    let writer = writer.expect("a free lock");
    eventually("the replica knows the writer", async || {
        primary.is_replicated()
    })
    .await;
    // It stays a replica, and keeps what it has.
    replica.run(&["REPLICAOF", "127.0.0.1", "1"]);
    let reader = writer.downgrade().await.expect("a reader");
    let lock = others.rw_lock(KEY).expect("a good key");
    let other: ReadGuard = lock.read().await.expect("another reader");
    address.lead_to(replica.address());
    address.cut_connections();
    let mut upgrading = tokio::spawn(reader.try_upgrade());
    let early = tokio::time::timeout(FOR_A_WHILE, &mut upgrading).await;
    assert!(
        early.is_err(),
        "{checks:?}: a replica upgraded it: {early:?}"
    );
    address.lead_to(primary.address());
    address.cut_connections();
    let upgraded = upgrading.await.expect("no panic");
    // It is in doubt if a request was on a connection that was cut.
    let refused = match &upgraded {
        Ok(upgrade) => matches!(upgrade, Upgrade::NotSoleHolder(_)),
        Err(error) => matches!(error, Error::OutcomeUnknown { .. }),
    };
    assert!(refused, "{checks:?}: {upgraded:?}");
    assert!(other.is_valid());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_that_is_behind_upgrades_nobody() {
    for checks in [ServerChecks::Warn, ServerChecks::Ignore] {
        upgrade_at_a_replica(checks).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_is_not_used_whatever_is_checked() {
    let (primary, replica) = (RedisServer::start(), RedisServer::start());
    replicate(&primary, &replica).await;
    for checks in [
        ServerChecks::Warn,
        ServerChecks::Ignore,
        ServerChecks::Reject,
    ] {
        let options = Options::new()
            .server_checks(checks)
            .initial_connect_timeout(Duration::from_secs(3));
        let (error, _) = refused(&replica.url(), options).await;
        let text = error.to_string();
        assert!(text.contains("is a replica"), "{checks:?}: {text}");
    }
}

/// Without `replica-read-only`, the old primary goes on locking after a failover, until its clients notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_leave_a_replica_that_takes_writes() {
    let options = || ServerOptions::default().with_config("replica-read-only", ["no"]);
    let (first, second) = (options().start(), options().start());
    replicate(&first, &second).await;
    let address = FaultProxy::start(first.address()).await;
    let backend = Constructor::URL.open(&address.url()).await;
    let (before, old) = (
        soon(&backend).await,
        backend.hello().await.expect("a stamp"),
    );
    let _notifications = backend.listen(session(1)).await.expect("listening");
    fail_over(&first, &second).await;
    address.lead_to(second.address());
    eventually("its calls go to the new primary", async || {
        let request = mutex(&key("locked"), operation(session(2), 1), before);
        let answer = acquire(&backend, &request).await;
        answer.is_ok_and(|answer| answer.stamp.clock != old.clock)
    })
    .await;
}
