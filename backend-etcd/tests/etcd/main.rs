//! What the suite can't see: logins, limits, crashes, changes of the leader, and processes that die.

mod processes;

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{BackendError, Error, LockBackend, LockClient};
use leasehold_etcd::{ConnectError, EtcdBackend, Options};
use leasehold_test_servers::{EtcdServer, eventually};

/// What a busy machine may add to any time.
const SLACK: Duration = Duration::from_secs(40);

async fn connect(url: &str, options: Options) -> LockClient {
    let backend = EtcdBackend::connect_with(url, options).await;
    LockClient::new(backend.expect("connected"))
}

async fn refusal(url: &str) -> BackendError {
    match EtcdBackend::connect(url).await {
        Err(ConnectError::Backend(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Takes a lock and releases it. Returns its token.
async fn use_once(locks: &LockClient, key: &str) -> u64 {
    let mutex = locks.mutex(key).expect("a key");
    let acquired = mutex.try_lock_for(SLACK).await.expect("an answer");
    let guard = acquired.into_guard().expect("free");
    let token = guard.fencing_token().get();
    guard.release().await.expect("released");
    token
}

#[tokio::test]
async fn bad_url_is_refused_without_its_password() {
    for url in [
        "postgres://me:s3cret@127.0.0.1",
        "etcd://me:s3cret@127.0.0.1:port",
        "etcd://me:s3cret@",
        "etcd://me:s3cret@127.0.0.1,",
        "etcd://me:s3cret@127.0.0.1/db",
        "etcd://s3cret@127.0.0.1",
        "etcd://me:s3cret%FF@127.0.0.1",
    ] {
        let error = EtcdBackend::connect(url).await.expect_err(url);
        assert!(matches!(error, ConnectError::Invalid(_)), "{error:?}");
        let text = format!("{error} {error:?}");
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn paused_clock_is_refused() {
    let connected = EtcdBackend::connect("etcd://127.0.0.1:1").await;
    let is_invalid = matches!(connected, Err(ConnectError::Invalid(_)));
    assert!(is_invalid, "{connected:?}");
}

/// The end of one prefix and the beginning of a key make no other lock.
#[tokio::test]
async fn other_prefixes_are_other_locks() {
    let server = EtcdServer::start();
    let mut guards = Vec::new();
    for (prefix, key) in [
        ("", "a/key/b"),
        ("a", "b"),
        ("a/key", "b"),
        ("a%2Fkey", "b"),
        ("/a", "b"),
    ] {
        let locks = connect(&server.url(), Options::new().key_prefix(prefix)).await;
        let acquired = locks.mutex(key).expect("a key").try_lock().await;
        let guard = acquired.expect("an answer").into_guard();
        guards.push(guard.unwrap_or_else(|| panic!("{prefix} {key} is not free")));
        let listed = locks.list("").expect("a prefix").next_page().await;
        assert_eq!(listed.expect("a page").expect("a page").len(), 1);
    }
}

/// Nothing is sent: the server doesn't run any more.
#[tokio::test]
async fn what_needs_a_clock_is_refused() {
    let mut server = EtcdServer::start();
    let locks = connect(&server.url(), Options::new()).await;
    server.stop();
    let refused = [
        locks.rw_lock("k").err(),
        locks.semaphore("k", 2).err(),
        locks.once("k").err(),
    ];
    let is_unsupported = |it: &Option<Error>| matches!(it, Some(Error::Unsupported { .. }));
    assert!(refused.iter().all(is_unsupported), "{refused:?}");
}

/// The first call after it succeeds: a read is repeated on a new connection.
#[tokio::test]
async fn lock_survives_a_crash_of_the_server() {
    let mut server = EtcdServer::start();
    let locks = connect(&server.url(), Options::new()).await;
    let mutex = locks
        .mutex("k")
        .expect("a key")
        .lease(Duration::from_secs(60));
    let guard = mutex.lock().await.expect("free");
    server.restart();
    let others = connect(&server.url(), Options::new()).await;
    let outcome = others.mutex("k").expect("a key").try_lock().await;
    assert!(!outcome.expect("an answer").is_acquired());
    // Its connections are those from before.
    let free = locks.mutex("free").expect("a key").try_lock().await;
    assert!(free.expect("an answer").is_acquired());
    assert!(guard.is_valid());
    guard.release().await.expect("still held");
    use_once(&others, "k").await;
}

/// Each server is killed, so the leader is.
#[tokio::test]
async fn changes_of_the_leader_lose_no_lock() {
    let mut servers = EtcdServer::cluster();
    let urls = servers
        .each_ref()
        .map(|server| server.url().replace("etcd://", ""));
    let url = format!("etcd://{}", urls.join(","));
    let locks = connect(&url, Options::new()).await;
    let others = connect(&url, Options::new()).await;
    let held = locks
        .mutex("held")
        .expect("a key")
        .lease(Duration::from_secs(60));
    let guard = held.lock().await.expect("free");
    let mut last = 0;
    for server in &mut servers {
        server.stop();
        for locks in [&locks, &others] {
            let token = use_once(locks, "k").await;
            assert!(token > last, "{token} after {last}");
            last = token;
        }
        let tried = async || others.mutex("held").expect("a key").try_lock().await;
        let answers = async || match tried().await {
            Ok(outcome) => !outcome.is_acquired(),
            Err(error) => panic_unless_transient(&error),
        };
        eventually("it is seen as held", answers).await;
        server.restart();
    }
    assert!(guard.is_valid());
    guard.release().await.expect("still held");
}

fn panic_unless_transient(error: &Error) -> bool {
    assert!(error.is_transient(), "{error:?}");
    false
}

/// The user has the documented rights. Its token is lost when the server restarts.
#[tokio::test]
async fn login_is_renewed_and_rights_are_checked() {
    let mut server = EtcdServer::start();
    for command in [
        "user add root:root",
        "user grant-role root root",
        "user add locks:s3cret:%",
        "role add locks",
        "role grant-permission locks readwrite leasehold/billing:/ --prefix=true",
        "user grant-role locks locks",
        "auth enable",
    ] {
        let words: Vec<_> = command.split(' ').collect();
        server.execute(&words);
    }
    let url = |login: &str| server.url().replace("etcd://", &format!("etcd://{login}@"));
    for wrong in ["locks:wrong-s3cret", "nobody:s3cret"] {
        let error = refusal(&url(wrong)).await;
        assert!(matches!(error, BackendError::Rejected { .. }), "{error:?}");
        let text = format!("{error} {error:?}");
        assert!(!text.contains("s3cret"), "{text}");
    }
    for without_rights in [server.url(), url("locks:s3cret%3A%25")] {
        let error = refusal(&without_rights).await;
        assert!(matches!(error, BackendError::Rejected { .. }), "{error:?}");
    }
    let options = Options::new().key_prefix("billing:");
    let locks = connect(&url("locks:s3cret%3A%25"), options).await;
    use_once(&locks, "k").await;
    server.restart();
    let mutex = locks.mutex("k").expect("a key");
    let guard = mutex
        .try_lock()
        .await
        .expect("logged in again")
        .into_guard();
    guard.expect("free").release().await.expect("released");
}

/// A program may use a client on another runtime than the one that made it, which then ends.
#[test]
fn client_of_an_ended_runtime_is_closed() {
    let server = EtcdServer::start();
    let runtime = || tokio::runtime::Runtime::new().expect("a runtime");
    let first = runtime();
    let backend = first
        .block_on(EtcdBackend::connect(&server.url()))
        .expect("connected");
    let backend: Arc<dyn LockBackend> = Arc::new(backend);
    first.shutdown_background();
    let answer = runtime().block_on(backend.hello());
    assert!(matches!(answer, Err(BackendError::Closed)), "{answer:?}");
}
