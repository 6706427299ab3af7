//! What the suite can't see: logins, limits, crashes, changes of the leader, and processes that die.

mod processes;
mod tls;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::join_all;
use leasehold_api::{
    BackendError, Error, LockBackend, LockClient, Notification, SessionId, bounds,
};
use leasehold_etcd::{ConnectError, EtcdBackend, Options};
use leasehold_test_servers::{EtcdServer, ServerAway, Stopwatch, eventually, throughout};
use tokio::task::JoinSet;

/// What a busy machine may add to any time.
const SLACK: Duration = Duration::from_secs(40);

/// A busy machine may need longer than the default.
fn patient() -> Options {
    Options::new().call_timeout(bounds::MAX_CALL_TIMEOUT)
}

async fn connect(url: &str, options: Options) -> LockClient {
    let backend = EtcdBackend::connect_with(url, options).await;
    let locks = LockClient::builder(backend.expect("connected"));
    let locks = locks.call_timeout(bounds::MAX_CALL_TIMEOUT).build();
    locks.expect("in range")
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
    // While servers elect a leader, the client goes on.
    if let Err(error) = guard.release().await {
        panic_unless_transient(&error);
    }
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
        "etcd://me:s3cret@127.0.0.1?max_clock_skew=5",
        "etcd://me:s3cret@127.0.0.1?max_clock_skew=5m&s3cret=1",
        "etcd://me:s3cret@127.0.0.1?",
        "etcd://me:s3cret%FF@127.0.0.1",
        "etcd://me:s3cret@127.0.0.1,me:s3cret@127.0.0.2",
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

/// Each command is a client of its own, which never sees a lease end.
#[tokio::test]
async fn command_of_a_moment_gets_the_lock_of_a_dead_holder() {
    let server = EtcdServer::start();
    let url = format!("{}/?max_clock_skew=0s", server.url());
    let lease = Duration::from_secs(1);
    let holder = connect(&url, patient()).await;
    let mutex = holder.mutex("k").expect("a key").lease(lease);
    let guard = mutex.fixed_lease().lock().await;
    std::mem::forget(guard.expect("free"));
    let command = async || {
        let locks = connect(&url, patient()).await;
        let acquired = locks.mutex("k").expect("a key").try_lock().await;
        acquired.expect("an answer").into_guard().is_some()
    };
    eventually("a command gets the lock", command).await;
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
        let locks = connect(&server.url(), patient().key_prefix(prefix)).await;
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
    let locks = connect(&server.url(), patient()).await;
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
    let locks = connect(&server.url(), patient()).await;
    let mutex = locks
        .mutex("k")
        .expect("a key")
        .lease(Duration::from_secs(60));
    let guard = mutex.lock().await.expect("free");
    server.restart();
    let others = connect(&server.url(), patient()).await;
    let outcome = others.mutex("k").expect("a key").try_lock().await;
    assert!(!outcome.expect("an answer").is_acquired());
    // Its connections are those from before.
    let free = locks.mutex("free").expect("a key").try_lock().await;
    assert!(free.expect("an answer").is_acquired());
    assert!(guard.is_valid());
    guard.release().await.expect("still held");
    use_once(&others, "k").await;
}

fn url_of(servers: &[EtcdServer; 3]) -> String {
    let server = |server: &EtcdServer| server.url().replace("etcd://", "");
    format!("etcd://{}", servers.each_ref().map(server).join(","))
}

/// A guard that can't be renewed is lost when its lease ends, and nobody gets the lock.
#[tokio::test]
async fn silent_server_ends_guards() {
    const LEASE: Duration = Duration::from_secs(3);
    let server = EtcdServer::start();
    let locks = connect(&server.url(), patient()).await;
    let mutex = locks.mutex("k").expect("a key").lease(LEASE);
    let guard = mutex.lock().await.expect("free");
    server.pause();
    let paused = Stopwatch::start();
    let other = locks.mutex("k").expect("a key");
    let waiting = tokio::spawn(async move { other.try_lock_for(LEASE * 2).await });
    let lease_is_over = async || paused.elapsed() > LEASE;
    eventually("the lease is over", lease_is_over).await;
    assert!(!guard.is_valid());
    eventually("it is lost", async || guard.loss_reason().is_some()).await;
    // An error, or nothing: the server is silent.
    let waited = waiting.await.expect("no panic");
    assert!(!waited.is_ok_and(|outcome| outcome.is_acquired()));
    server.resume();
    let released = guard.release().await;
    assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
}

/// However many calls wait, and though the server closes each connection at once.
#[tokio::test]
async fn waiting_calls_connect_at_a_pace() {
    let mut server = EtcdServer::start();
    let locks = connect(&server.url(), patient()).await;
    use_once(&locks, "k").await;
    server.stop();
    let away = ServerAway::listen(([127, 0, 0, 1], server.port()).into());
    let mut waiting = JoinSet::new();
    for n in 0..50 {
        let mutex = locks.mutex(n.to_string()).expect("a key");
        waiting.spawn(async move { mutex.lock().await.map(drop) });
    }
    let are_few = async || away.connections() <= 35;
    throughout(Duration::from_secs(5), "attempts are few", are_few).await;
    assert!(away.connections() >= 2, "{}", away.connections());
    drop(away);
    server.restart();
    while let Some(done) = waiting.join_next().await {
        done.expect("no panic").expect("a lock");
    }
}

/// Whichever server a client has: each is silent once.
#[tokio::test]
async fn silent_server_is_left() {
    let servers = EtcdServer::cluster();
    let locks = connect(&url_of(&servers), patient()).await;
    for server in &servers {
        server.pause();
        use_once(&locks, "k").await;
        server.resume();
    }
}

/// Each server is killed, so the leader is.
#[tokio::test]
async fn changes_of_the_leader_lose_no_lock() {
    let mut servers = EtcdServer::cluster();
    let url = url_of(&servers);
    let locks = connect(&url, patient()).await;
    let others = connect(&url, patient()).await;
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

/// A server with the user `locks`, who has rights below these beginnings of keys.
fn server_with_login(rights: &[&str]) -> EtcdServer {
    let server = EtcdServer::start();
    let execute = |command: &str| execute(&server, command);
    for command in [
        "user add root:root",
        "user grant-role root root",
        "user add locks:s3cret:%",
        "role add locks",
        "user grant-role locks locks",
    ] {
        execute(command);
    }
    for beginning in rights {
        execute(&format!(
            "role grant-permission locks readwrite {beginning} --prefix=true"
        ));
    }
    execute("auth enable");
    server
}

fn execute(server: &EtcdServer, command: &str) {
    let words: Vec<_> = command.split(' ').collect();
    server.execute(&words);
}

/// Ends all logins. A server that starts again knows those from before.
fn end_logins(server: &EtcdServer) {
    execute(server, "--user root:root auth disable");
    execute(server, "auth enable");
}

fn url_with(login: &str, server: &EtcdServer) -> String {
    server.url().replace("etcd://", &format!("etcd://{login}@"))
}

const LOGIN: &str = "locks:s3cret%3A%25";

/// The user has the documented rights.
#[tokio::test]
async fn login_is_renewed_and_rights_are_checked() {
    let server = server_with_login(&["leasehold/billing:/"]);
    for wrong in ["locks:wrong-s3cret", "nobody:s3cret"] {
        let error = refusal(&url_with(wrong, &server)).await;
        assert!(matches!(error, BackendError::Rejected { .. }), "{error:?}");
        let text = format!("{error} {error:?}");
        assert!(!text.contains("s3cret"), "{text}");
    }
    for without_rights in [server.url(), url_with(LOGIN, &server)] {
        let error = refusal(&without_rights).await;
        assert!(matches!(error, BackendError::Rejected { .. }), "{error:?}");
    }
    let options = patient().key_prefix("billing:");
    let locks = connect(&url_with(LOGIN, &server), options).await;
    use_once(&locks, "k").await;
    end_logins(&server);
    let before = logins(&server);
    // Each call hears that its login has ended, and one of them logs in.
    let keys: Vec<_> = (0..30).map(|n| format!("k{n}")).collect();
    let locks = &locks;
    let calls = keys.iter().map(|key| async move {
        let mutex = locks.mutex(key).expect("a key");
        let tried = mutex.try_lock().await.expect("logged in again");
        let guard = tried.into_guard().expect("free");
        guard.release().await.expect("released");
    });
    join_all(calls).await;
    // A client has two connections, for commands and for renewals.
    let logins = logins(&server) - before;
    assert!((1..=2).contains(&logins), "{logins} logins");
}

/// How many logins a server has seen.
fn logins(server: &EtcdServer) -> u64 {
    calls(server, "Authenticate")
}

/// How many calls of this method a server has seen since it started.
fn calls(server: &EtcdServer, method: &str) -> u64 {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it runs");
    let request = b"GET /metrics HTTP/1.0\r\n\r\n";
    stream.write_all(request).expect("written");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let method = format!("grpc_method=\"{method}\"");
    let is_count =
        |line: &&str| line.starts_with("grpc_server_started_total{") && line.contains(&method);
    let line = text.lines().find(is_count).expect("a metric");
    let count = line.rsplit(' ').next().expect("a number");
    count.parse().expect("a number")
}

/// etcd refuses a subscription without a login as one without a right.
#[tokio::test]
async fn subscription_is_renewed_with_the_login_and_needs_a_right() {
    let rights = [
        "leasehold/all:/",
        "leasehold/some:/floor",
        "leasehold/some:/key/",
    ];
    let mut server = server_with_login(&rights);
    let backend = async |prefix| {
        let (url, options) = (url_with(LOGIN, &server), patient().key_prefix(prefix));
        let backend = EtcdBackend::connect_with(&url, options).await;
        backend.expect("connected")
    };
    let session = SessionId::from_bytes([7; 16]);
    let refused = backend("some:").await.listen(session).await.err();
    let is_refused = matches!(refused, Some(BackendError::Rejected { .. }));
    assert!(is_refused, "{refused:?}");
    let mut pushed = backend("all:").await.listen(session).await.expect("rights");
    end_logins(&server);
    server.restart();
    let again = async {
        while let Some(notification) = pushed.next().await {
            if matches!(notification, Notification::Missed { listening: true }) {
                return;
            }
        }
        panic!("it has ended");
    };
    let subscribed = tokio::time::timeout(SLACK, again).await;
    subscribed.expect("it subscribes again");
}

/// The pauses double. A slow machine makes them only longer.
#[tokio::test]
async fn refused_subscription_is_tried_less_and_less() {
    let mut server = server_with_login(&["leasehold/all:/"]);
    let options = patient().key_prefix("all:");
    let backend = EtcdBackend::connect_with(&url_with(LOGIN, &server), options).await;
    let backend = backend.expect("connected");
    let session = SessionId::from_bytes([7; 16]);
    let mut pushed = backend.listen(session).await.expect("rights");
    let revoke = "--user root:root role revoke-permission locks leasehold/all:/ --prefix=true";
    execute(&server, revoke);
    server.restart();
    let began = Instant::now();
    let listening = tokio::spawn(async move { while pushed.next().await.is_some() {} });
    // After each refusal the client asks with a read. The first time it logs in between two of them.
    eventually("it is refused six times", async || {
        calls(&server, "Range") >= 7
    })
    .await;
    listening.abort();
    // Of 250 ms, 500 ms, 1 s, 2 s and 4 s, the last one may be one of 250 ms, after a failure.
    assert!(
        began.elapsed() >= Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
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
    // Waits until its tasks have ended. A call that meets their end may get no answer in time.
    drop(first);
    let answer = runtime().block_on(backend.hello());
    assert!(matches!(answer, Err(BackendError::Closed)), "{answer:?}");
}
