//! Locks of a Redis Cluster whose slot moves to another node.

use leasehold_api::{Acquire, AcquireReply, BackendError, LockSpec, Mode, Renew, RenewReply, Wait};
use leasehold_test_servers::{RedisCluster, throughout};

use super::cluster::{LEASE, LONG_LEASE, client, expect_held, expect_turn, lock, stored};
use super::support::{
    acquire, connected, eventually, hold, key, operation, release, session, soon, wait_in_line,
};

/// Begins to move the slot of a key to another node. Returns its number.
fn begin_migration(cluster: &RedisCluster, stored: &str) -> usize {
    let to = (cluster.primary_of(stored) + 1) % 3;
    cluster.begin_migration(stored, to);
    to
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_survives_the_migration_of_its_slot() {
    let cluster = RedisCluster::start_without_replicas();
    let (locks, others) = (client(&cluster).await, client(&cluster).await);
    let name = "migrating";
    let guard = hold(&locks, name, LEASE).await;
    let waiting = wait_in_line(&others, name, LEASE).await;
    let stored = stored(name);
    let to = begin_migration(&cluster, &stored);
    // The new node doesn't know the scripts.
    cluster.move_key(&stored, to);
    let is_held = async || guard.is_valid();
    throughout(LEASE * 3 / 2, "renewed by ASK", is_held).await;
    cluster.end_migration(&stored, to);
    throughout(LEASE * 3 / 2, "renewed by MOVED", is_held).await;
    expect_turn(guard, waiting).await;
    assert_eq!(cluster.primary_of(&stored), to);
}

/// While a slot migrates, a key that doesn't exist is created on the new node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_lock_in_a_migrating_slot_is_on_the_new_node() {
    let cluster = RedisCluster::start_without_replicas();
    let locks = client(&cluster).await;
    let stored = stored("new");
    let to = begin_migration(&cluster, &stored);
    let guard = lock(&locks, "new", LEASE).try_lock_for(LONG_LEASE).await;
    let guard = guard.expect("an answer").into_guard().expect("acquired");
    expect_held(&locks, "new").await;
    cluster.end_migration(&stored, to);
    throughout(LEASE * 3 / 2, "renewed", async || guard.is_valid()).await;
    guard.release().await.expect("released");
}

/// The elements of a key are one call, also when it is redirected to a node that doesn't know the scripts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_readers_of_a_key_are_renewed_while_its_slot_migrates() {
    let cluster = RedisCluster::start_without_replicas();
    let backend = connected(&cluster.url()).await;
    let (key, stored, before) = (key("read"), stored("read"), soon(&backend).await);
    let readers = || (1..=128).map(|sequence| operation(session(1), sequence));
    let acquires = readers().map(|reader| {
        let (spec, mode) = (LockSpec::rw_lock(), Mode::Shared);
        let request = Acquire::new(key.clone(), spec, mode, reader, LONG_LEASE, before);
        request.expect("a good request")
    });
    let acquires: Vec<_> = acquires.collect();
    for answer in backend.acquire(&acquires).await {
        let reply = answer.expect("an answer").reply;
        assert!(matches!(reply, AcquireReply::Acquired(_)), "{reply:?}");
    }
    let renewals = readers().map(|reader| Renew::new(key.clone(), reader, LONG_LEASE));
    let renewals: Vec<_> = renewals.map(|it| it.expect("a good request")).collect();
    let expect_renewed = async || {
        let answers = backend.renew(&renewals).await;
        assert_eq!(answers.len(), renewals.len());
        for answer in answers {
            let reply = answer.expect("an answer").reply;
            assert!(matches!(reply, RenewReply::Renewed { .. }), "{reply:?}");
        }
    };
    expect_renewed().await;
    let to = begin_migration(&cluster, &stored);
    cluster.move_key(&stored, to);
    expect_renewed().await;
    cluster.end_migration(&stored, to);
    expect_renewed().await;
}

/// A key with waiters is a hash, one without is a string. While a slot migrates, the server refuses to create
/// keys in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_survives_a_change_of_its_form_while_its_slot_migrates() {
    let cluster = RedisCluster::start_without_replicas();
    let backend = connected(&cluster.url()).await;
    let (key, stored) = (key("form"), stored("form"));
    let before = soon(&backend).await;
    let enter = async |number: u8, mode| {
        let (spec, operation) = (LockSpec::rw_lock(), operation(session(number), 1));
        let request = Acquire::new(key.clone(), spec, mode, operation, LONG_LEASE, before);
        let request = request.expect("a good request").with_wait(Wait::new(false));
        acquire(&backend, &request).await
    };
    let leave = async |number: u8| release(&backend, &key, operation(session(number), 1)).await;
    let counts = async || {
        let found = answered(async || backend.inspect(&key).await).await;
        (found.reply.holder_count, found.reply.waiter_count)
    };
    let end = |to| {
        cluster.move_key(&stored, to);
        cluster.end_migration(&stored, to);
    };
    answered(async || enter(1, Mode::Shared).await).await;
    let to = begin_migration(&cluster, &stored);
    // The first waiter needs a hash.
    eventually("it is refused", async || {
        let result = enter(2, Mode::Exclusive).await;
        let error = result.expect_err("the state would be lost");
        assert!(error.is_transient(), "{error}");
        error.to_string().contains("TRYAGAIN")
    })
    .await;
    assert_eq!(counts().await, (1, 0));
    // A release needs none, not even one that leaves a watermark.
    for nobody in 4..=200 {
        answered(async || leave(nobody).await).await;
    }
    end(to);
    for waiter in [2, 3] {
        answered(async || enter(waiter, Mode::Exclusive).await).await;
    }
    assert_eq!(counts().await, (1, 2));
    let to = begin_migration(&cluster, &stored);
    for number in [3, 2, 1] {
        answered(async || leave(number).await).await;
    }
    assert_eq!(counts().await, (0, 0));
    end(to);
    assert_eq!(counts().await, (0, 0));
}

/// Calls until there is an answer: a busy machine may need longer than a call's limit.
async fn answered<T>(call: impl AsyncFn() -> Result<T, BackendError>) -> T {
    let mut answer = None;
    eventually("an answer", async || {
        match call().await {
            Ok(it) => answer = Some(it),
            Err(error) => assert!(error.is_transient(), "no answer: {error}"),
        }
        answer.is_some()
    })
    .await;
    answer.expect("waited for it")
}
