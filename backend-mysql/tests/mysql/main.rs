//! What the suite can't see: settings, rights, restarts, and transactions of other programs.

#[path = "../../examples/fenced.rs"]
#[allow(dead_code, reason = "the example has its own main function")]
mod fenced;
#[path = "../support/mod.rs"]
mod support;
mod tls;

use std::env;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_api::{
    Acquire, BackendError, Error, ForceMode, ForceReply, Key, LockBackend, LockClient, LockSpec,
    Mode, Operation, OwnerId, SessionId,
};
use leasehold_mysql::{ConnectError, MysqlBackend, Options};
use leasehold_test_servers::{MariaDb, ServerAway, SilentFirstAddress, eventually, throughout};
use mysql_async::prelude::Queryable;
use support::{USER, server};
use tokio::task::JoinSet;

/// What a busy machine may add to any time.
const SLACK: Duration = Duration::from_secs(40);

async fn connect(server: &MariaDb, options: Options) -> LockClient {
    let backend = MysqlBackend::connect_with(&server.url(USER), options).await;
    LockClient::new(backend.expect("connected"))
}

async fn refusal(server: &MariaDb) -> BackendError {
    match MysqlBackend::connect(&server.url(USER)).await {
        Err(ConnectError::Backend(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Takes a lock and releases it.
async fn use_once(locks: &LockClient, key: &str) {
    let mutex = locks.mutex(key).expect("a key");
    let acquired = mutex.try_lock_for(SLACK).await.expect("an answer");
    let guard = acquired.into_guard().expect("free");
    guard.release().await.expect("released");
}

#[tokio::test]
async fn bad_url_is_refused_without_its_password() {
    for url in [
        "postgres://me:s3cret@127.0.0.1/db",
        "mysql://me:s3cret@127.0.0.1:port/db",
        "mysql://me:s3cret@127.0.0.1",
        "mysql://me:s3cret@h/db?verify_ca=true",
        "mysql://me:s3cret@h/db?require_ssl=true&require_ssl=false",
        "mysql://me:s3cret@h/db?require_ssl=true&verify_ca=false",
        "mysql://me:s3cret@h/db?require_ssl=true&verify_identity=false",
        "mysql://me:s3cret@h/db?require_ssl=true&built_in_roots=true",
        "mysql://me:s3cret@h/db?require_ssl=true&socket=/run/mysqld.sock",
    ] {
        let error = MysqlBackend::connect(url).await.expect_err(url);
        assert!(matches!(error, ConnectError::Invalid(_)), "{error:?}");
        assert!(
            !format!("{error} {error:?}").contains("s3cret"),
            "{error:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn paused_clock_is_refused() {
    let connected = MysqlBackend::connect("mysql://127.0.0.1:1/db").await;
    assert!(
        matches!(connected, Err(ConnectError::Invalid(_))),
        "{connected:?}"
    );
}

/// Each would give a lock to two holders, or never to one.
#[tokio::test]
async fn dangerous_server_is_refused() {
    for (arguments, named) in [
        // Its leases would end late by as long as a statement has waited.
        (&["--sysdate-is-now"][..], "sysdate-is-now"),
        (&["--innodb-flush-log-at-trx-commit=2"], "flush_log"),
        (&["--log-bin"], "sync_binlog"),
        (
            &["--log-bin", "--sync-binlog=1", "--binlog-format=STATEMENT"],
            "binlog_format",
        ),
    ] {
        let server = server(arguments);
        let error = refusal(&server).await;
        let text = error.to_string();
        assert!(
            matches!(error, BackendError::Rejected { .. }) && text.contains(named),
            "{error:?}"
        );
    }
    let server = server(&["--log-bin", "--sync-binlog=1", "--binlog-format=MIXED"]);
    use_once(&connect(&server, Options::new()).await, "k").await;
}

/// Such as an administrator sets for all clients.
#[tokio::test]
async fn settings_for_all_clients_change_no_row() {
    for settings in [
        &[
            "--character-set-server=latin1",
            "--init-connect=SET CHARACTER SET utf8mb4",
        ][..],
        &["--sql-mode=ORACLE,EMPTY_STRING_IS_NULL"],
    ] {
        let server = server(settings);
        let locks = connect(&server, Options::new()).await;
        let [one, two] = ["ключ", "нота"].map(|key| locks.mutex(key).expect("a key"));
        let held = one.try_lock().await.expect(settings[0]);
        let held = held.into_guard().expect("free");
        let other = two.try_lock().await.expect("another key");
        other
            .into_guard()
            .expect("free")
            .release()
            .await
            .expect("released");
        held.release().await.expect("released");
    }
}

const NAMED_URL: &str = "LEASEHOLD_TEST_NAMED_URL";

#[tokio::test]
#[ignore = "silent_address_hides_no_server runs it in a process of its own"]
async fn with_name() {
    let url = env::var(NAMED_URL).expect("a URL");
    let backend = MysqlBackend::connect(&url).await.expect("connected");
    use_once(&LockClient::new(backend), "k").await;
}

#[test]
fn silent_address_hides_no_server() {
    let server = server(&[]);
    let name = SilentFirstAddress::beside(([127, 0, 0, 1], server.port()).into());
    let url = format!("mysql://{USER}@{}/shop", name.name());
    let mut child = Command::new(env::current_exe().expect("a path"));
    child.args(["--ignored", "--exact", "with_name"]);
    child.env(NAMED_URL, url).envs(name.environment());
    assert!(child.status().expect("started").success());
    assert!(name.was_tried());
}

#[tokio::test]
async fn ipv6_address_leads_to_the_server() {
    let server = server(&["--bind-address=::1"]);
    for sql in [
        format!("CREATE USER {USER}@'::1'"),
        format!("GRANT ALL ON shop.leasehold_locks TO {USER}@'::1'"),
    ] {
        server.execute("mysql", &sql);
    }
    let url = format!("mysql://{USER}@[::1]:{}/shop", server.port());
    let backend = MysqlBackend::connect(&url).await.expect("connected");
    use_once(&LockClient::new(backend), "k").await;
}

/// However many calls wait, and though the server closes each connection at once.
#[tokio::test]
async fn waiting_calls_connect_at_a_pace() {
    let mut server = server(&[]);
    let locks = connect(&server, Options::new()).await;
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

#[tokio::test]
async fn missing_schema_is_refused() {
    let server = server(&[]);
    server.execute("shop", "DROP TABLE leasehold_locks");
    let error = refusal(&server).await;
    assert!(matches!(error, BackendError::Rejected { .. }), "{error:?}");
}

/// With a binary log too, and through the socket. The user has the documented rights.
#[tokio::test]
async fn socket_and_mariadb_urls_lead_to_the_server() {
    let server = server(&[]);
    let url = server.socket_url(USER).replacen("mysql:", "mariadb:", 1);
    let over_socket = MysqlBackend::connect(&url).await.expect("connected");
    let over_socket = LockClient::new(over_socket);
    let others = connect(&server, Options::new()).await;
    let guard = over_socket
        .mutex("k")
        .expect("a key")
        .lock()
        .await
        .expect("free");
    let outcome = others.mutex("k").expect("a key").try_lock().await;
    assert!(!outcome.expect("an answer").is_acquired());
    guard.release().await.expect("released");
    use_once(&others, "k").await;
    let prefixed = connect(&server, Options::new().key_prefix("billing:")).await;
    let _guard = over_socket
        .mutex("k")
        .expect("a key")
        .lock()
        .await
        .expect("free");
    use_once(&prefixed, "k").await;
}

/// Also for a write that follows no read: the client remembers the row.
#[tokio::test]
async fn read_only_server_is_not_used() {
    let server = server(&[]);
    let locks = connect(&server, Options::new()).await;
    use_once(&locks, "k").await;
    server.execute("mysql", "SET GLOBAL read_only = 1");
    let mutex = locks.mutex("k").expect("a key");
    let error = mutex.try_lock().await.expect_err("a replica");
    assert!(error.is_transient(), "{error:?}");
    server.execute("mysql", "SET GLOBAL read_only = 0");
    use_once(&locks, "k").await;
}

/// A name that leads to one server after the other.
struct Name(tempfile::TempDir);

impl Name {
    fn of(server: &MariaDb) -> Self {
        let name = Self(tempfile::tempdir().expect("a folder"));
        name.lead_to(server);
        name
    }

    fn socket(&self) -> String {
        self.0.path().join("socket").display().to_string()
    }

    fn lead_to(&self, server: &MariaDb) {
        let url = server.socket_url(USER);
        let (_, socket) = url.split_once("socket=").expect("a socket");
        drop(std::fs::remove_file(self.socket()));
        std::os::unix::fs::symlink(socket, self.socket()).expect("a link");
    }

    fn url(&self) -> String {
        format!("mysql://{USER}@localhost/shop?socket={}", self.socket())
    }
}

/// After a switchover, the former primary lives on as a replica, and keeps its connections.
#[tokio::test]
async fn read_only_server_is_left() {
    let (first, second) = (server(&[]), server(&[]));
    let name = Name::of(&first);
    let backend = MysqlBackend::connect(&name.url()).await;
    let locks = LockClient::new(backend.expect("connected"));
    use_once(&locks, "k").await;
    first.execute("mysql", "SET GLOBAL read_only = 1");
    name.lead_to(&second);
    use_once(&locks, "k").await;
}

#[tokio::test]
async fn dangerous_server_is_refused_after_a_failover() {
    let (mut first, second) = (server(&[]), server(&["--sysdate-is-now"]));
    let name = Name::of(&first);
    let backend = MysqlBackend::connect(&name.url()).await;
    let locks = LockClient::new(backend.expect("connected"));
    use_once(&locks, "k").await;
    first.stop();
    name.lead_to(&second);
    let refused = locks.mutex("k").expect("a key").lock().await;
    let refused = refused.expect_err("its clock stands still");
    assert!(matches!(refused, Error::Rejected { .. }), "{refused:?}");
}

/// The first call after it succeeds: a read is repeated on a new connection.
#[tokio::test]
async fn lock_survives_a_crash_of_the_server() {
    let mut server = server(&[]);
    let locks = connect(&server, Options::new()).await;
    let lease = Duration::from_secs(60);
    let mutex = locks.mutex("k").expect("a key").lease(lease);
    let guard = mutex.lock().await.expect("free");
    server.restart();
    let others = connect(&server, Options::new()).await;
    let outcome = others.mutex("k").expect("a key").try_lock().await;
    assert!(!outcome.expect("an answer").is_acquired());
    // Its connections are those from before.
    let free = locks.mutex("free").expect("a key").try_lock().await;
    assert!(free.expect("an answer").is_acquired());
    assert!(guard.is_valid());
    guard.release().await.expect("still held");
    use_once(&others, "k").await;
}

/// Locks the rows in a transaction that stays open.
async fn lock_rows(server: &MariaDb) -> mysql_async::Conn {
    let url = server.url(USER);
    let mut other = mysql_async::Conn::from_url(url).await.expect("connected");
    let lock = "START TRANSACTION; SELECT * FROM leasehold_locks FOR UPDATE";
    other.query_drop(lock).await.expect("locked");
    other
}

/// A call ends in time, and the lock works when the transaction is over.
#[tokio::test]
async fn transaction_of_another_program_delays_a_call() {
    let server = server(&[]);
    let locks = connect(&server, Options::new()).await;
    use_once(&locks, "k").await;
    let mut other = lock_rows(&server).await;
    let began = Instant::now();
    let error = locks.mutex("k").expect("a key").try_lock().await;
    let error = error.expect_err("the row is locked");
    assert!(error.is_transient() && began.elapsed() < SLACK, "{error:?}");
    other.query_drop("COMMIT").await.expect("committed");
    use_once(&locks, "k").await;
}

/// The server compares the deadline when it has the row, not when the statement begins.
#[tokio::test]
async fn write_that_waited_beyond_its_deadline_is_refused() {
    let server = server(&[]);
    let options = Options::new().call_timeout(Duration::from_millis(150));
    let backend = MysqlBackend::connect_with(&server.url(USER), options).await;
    let backend: Arc<dyn LockBackend> = Arc::new(backend.expect("connected"));
    use_once(&LockClient::new(Arc::clone(&backend)), "k").await;
    let version = || server.execute("shop", "SELECT version FROM leasehold_locks");
    let before = version();
    let mut other = lock_rows(&server).await;
    let soon = backend
        .hello()
        .await
        .expect("a clock")
        .at
        .saturating_add(Duration::from_secs(2));
    let operation = Operation {
        session: SessionId::from_bytes([1; 16]),
        sequence: 1,
        owner: OwnerId::from_u64(1),
    };
    let (key, spec, mode) = (
        Key::new("k").expect("a key"),
        LockSpec::mutex(),
        Mode::Exclusive,
    );
    let request = Acquire::new(key, spec, mode, operation, SLACK, soon).expect("valid");
    // The server waits for the row until the deadline is over, and not until it gives the statement up.
    let unlock = tokio::spawn(async move { other.query_drop("DO SLEEP(0.3); COMMIT").await });
    let answer = backend.acquire(&[request]).await.remove(0);
    answer.expect_err("the row is locked");
    unlock.await.expect("no panic").expect("committed");
    let waiting =
        "SELECT count(*) FROM information_schema.processlist WHERE info LIKE 'UPDATE leasehold%'";
    let over = async || server.execute("mysql", waiting) == "0";
    eventually("the statement is over", over).await;
    assert_eq!(version(), before);
}

#[tokio::test]
async fn connections_are_few_and_end_with_the_client() {
    let server = server(&[]);
    let backend = MysqlBackend::connect(&server.url(USER))
        .await
        .expect("connected");
    let backend: Arc<dyn LockBackend> = Arc::new(backend);
    let locks = LockClient::new(Arc::clone(&backend));
    let tasks: Vec<_> = (0..50)
        .map(|n| {
            let locks = locks.clone();
            tokio::spawn(async move { use_once(&locks, &n.to_string()).await })
        })
        .collect();
    let count = || {
        let count =
            format!("SELECT count(*) FROM information_schema.processlist WHERE user = '{USER}'");
        server
            .execute("mysql", &count)
            .parse::<u32>()
            .expect("a number")
    };
    assert!(count() <= 8);
    for task in tasks {
        task.await.expect("no panic");
    }
    assert!((1..=8).contains(&count()), "{}", count());
    locks.shutdown().await.expect("shut down");
    backend.close().await.expect("closed");
    eventually("they are closed", async || count() == 0).await;
}

/// The first holder is late: its lock was taken away, and the next holder has claimed the row.
#[tokio::test]
async fn late_holder_is_refused() {
    let server = server(&[]);
    let accounts = "CREATE TABLE account (id BIGINT UNSIGNED PRIMARY KEY, balance BIGINT NOT NULL,
        fence BIGINT UNSIGNED NOT NULL); INSERT INTO account VALUES (7, 100, 0)";
    server.execute("shop", accounts);
    let locks = connect(&server, Options::new()).await;
    let mutex = locks.mutex("account:7").expect("a key");
    let first = mutex.lock().await.expect("free");
    let mut database = fenced::connect(&server.url("root"))
        .await
        .expect("connected");
    for _ in 0..2 {
        let claimed = fenced::claim(&mut database, 7, first.fencing_token()).await;
        assert_eq!(claimed.expect("claimed"), Some(100));
    }
    let tokens = vec![first.fencing_token()];
    let removed = locks
        .force_release("account:7", tokens, ForceMode::Now)
        .await;
    assert_eq!(
        removed.expect("an answer"),
        ForceReply::Forced { holders: 1 }
    );
    let next = mutex.lock().await.expect("free");
    let not_claimed = fenced::write(&mut database, 7, 1, next.fencing_token()).await;
    assert!(!not_claimed.expect("an answer"));
    let balance = fenced::claim(&mut database, 7, next.fencing_token()).await;
    assert_eq!(balance.expect("claimed"), Some(100));
    let late = fenced::write(&mut database, 7, 2, first.fencing_token()).await;
    assert!(!late.expect("an answer"));
    let again = fenced::claim(&mut database, 7, first.fencing_token()).await;
    assert_eq!(again.expect("an answer"), None);
    let written = fenced::write(&mut database, 7, 3, next.fencing_token()).await;
    assert!(written.expect("an answer"));
    assert_eq!(server.execute("shop", "SELECT balance FROM account"), "3");
}
