//! The rows of keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold_api::{LockClient, bounds};
use leasehold_postgres::{Options, PostgresBackend};
use tokio::task::JoinSet;

use crate::support::{Server, connect_to, hold};

/// A busy machine may need longer than the default.
fn slow() -> Options {
    let longest = bounds::MAX_CALL_TIMEOUT;
    Options::new()
        .connect_timeout(longest)
        .call_timeout(longest)
}

async fn client(server: &Server) -> LockClient {
    let backend = connect_to(&server.url()).await;
    LockClient::new(backend)
}

#[tokio::test]
async fn rows_past_their_time_are_removed_and_others_kept() {
    let server = Server::start();
    let locks = client(&server).await;
    server.execute(
        "INSERT INTO leasehold.locks SELECT convert_to('old' || n, 'UTF8'), 0, '', 1
         FROM generate_series(1, 3500) AS n;
         INSERT INTO leasehold.locks VALUES ('new', 0, '', 9000000000000000)",
    );
    let guard = hold(&locks, "a").await;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if server.execute("SELECT count(*) FROM leasehold.locks") == "2" {
            break;
        }
    }
    let keys =
        "SELECT string_agg(convert_from(key, 'UTF8'), ' ' ORDER BY key) FROM leasehold.locks";
    assert_eq!(server.execute(keys), "a new");
    let minutes = "SELECT (keep_until / 1000000.0 - extract(epoch FROM clock_timestamp())) / 60
        BETWEEN 10 AND 13 FROM leasehold.locks WHERE key = 'a'";
    assert_eq!(
        server.execute(minutes),
        "t",
        "the token is kept for ten minutes"
    );
    guard.release().await.expect("released");
}

/// `LEASEHOLD_ROWS` asks for another number of rows.
#[tokio::test]
async fn removal_reads_no_row_that_is_kept() {
    let asked = std::env::var("LEASEHOLD_ROWS");
    let rows = asked.map_or(20_000, |rows| rows.parse().expect("a number of rows"));
    let server = Server::start();
    server.execute(&format!(
        "INSERT INTO leasehold.locks SELECT convert_to('live' || n, 'UTF8'), 0, '\\x00', 9e15
         FROM generate_series(1, {rows}) AS n;
         INSERT INTO leasehold.locks SELECT convert_to('old' || n, 'UTF8'), 0, '', n
         FROM generate_series(1, 500) AS n"
    ));
    server.execute("VACUUM ANALYZE leasehold.locks");
    let scans = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'locks'";
    let before = server.execute(scans);
    let locks = client(&server).await;
    let mut longest = Duration::ZERO;
    // The first call begins a removal.
    for _ in 0..300 {
        let begun = Instant::now();
        let guard = hold(&locks, "a").await;
        guard.release().await.expect("released");
        longest = longest.max(begun.elapsed());
    }
    println!("{rows} rows: the longest acquire and release beside a removal took {longest:?}");
    let left = "SELECT count(*) FROM leasehold.locks WHERE keep_until < 1000";
    for _ in 0..100 {
        // The server reports its statistics late.
        tokio::time::sleep(Duration::from_millis(50)).await;
        if server.execute(
            "SELECT idx_scan > 0 FROM pg_stat_user_indexes WHERE indexrelname = 'locks_keep_until'",
        ) == "t"
        {
            break;
        }
    }
    assert_eq!(server.execute(scans), before, "the table was scanned");
    assert_eq!(server.execute(left), "0");
}

/// An update stays within its page if no indexed column changes.
#[tokio::test]
async fn index_leaves_most_updates_within_their_page() {
    let server = Server::start();
    let locks = client(&server).await;
    for _ in 0..100 {
        let guard = hold(&locks, "a").await;
        guard.release().await.expect("released");
    }
    drop(locks);
    let updates = "SELECT n_tup_upd > 190, n_tup_hot_upd > n_tup_upd - 5 FROM pg_stat_user_tables
        WHERE relname = 'locks'";
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if server.execute(updates) == "t|t" {
            return;
        }
    }
    let counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'locks'";
    panic!("{}", server.execute(counts));
}

#[tokio::test]
async fn prefixes_separate_programs() {
    let server = Server::start();
    let with = async |prefix: &str| {
        let options = slow().key_prefix(prefix);
        let backend = PostgresBackend::connect_with(&server.url(), options).await;
        LockClient::new(backend.expect("a server"))
    };
    let (billing, shop) = (with("billing:").await, with("shop:").await);
    let first = hold(&billing, "a").await;
    let second = shop
        .mutex("a")
        .expect("valid")
        .try_lock()
        .await
        .expect("an answer");
    assert!(second.is_acquired());
    drop((first, second));
}

/// Holds the mutex ten times, and counts who is inside. Returns the tokens.
async fn hold_ten_times(url: String, inside: Arc<AtomicU32>) -> Vec<u64> {
    let backend = PostgresBackend::connect_with(&url, slow()).await;
    let locks = LockClient::builder(backend.expect("a server"))
        .call_timeout(bounds::MAX_CALL_TIMEOUT)
        .build()
        .expect("valid");
    let mutex = locks.mutex("a").expect("valid");
    let mut tokens = Vec::new();
    for _ in 0..10 {
        let guard = mutex.lock().await.expect("a lock");
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "exclusive");
        tokens.push(guard.fencing_token().get());
        tokio::task::yield_now().await;
        inside.fetch_sub(1, Ordering::SeqCst);
        guard.release().await.expect("released");
    }
    tokens
}

/// Six clients in turn, on one row.
#[tokio::test(flavor = "multi_thread")]
async fn clients_exclude_each_other_and_tokens_grow() {
    let server = Server::start();
    let inside = Arc::new(AtomicU32::new(0));
    // The first panic ends the test, even if another worker waits forever.
    let mut workers = JoinSet::new();
    for _ in 0..6 {
        workers.spawn(hold_ten_times(server.url(), Arc::clone(&inside)));
    }
    let mut tokens = Vec::new();
    while let Some(worker) = workers.join_next().await {
        let own = worker.expect("no panic");
        assert!(own.is_sorted());
        tokens.extend(own);
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 60, "each epoch has its own token");
}

/// A crash of the server could lose commits that it has acknowledged.
#[tokio::test]
async fn locks_are_committed_to_disk_whatever_the_default_is() {
    let server = Server::start();
    server.execute(
        "ALTER ROLE locks SET synchronous_commit = off;
         CREATE TABLE seen (setting text);
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
             INSERT INTO public.seen VALUES (current_setting('synchronous_commit')); RETURN NULL;
         END $$;
         CREATE TRIGGER note AFTER INSERT OR UPDATE ON leasehold.locks
             FOR EACH ROW EXECUTE FUNCTION note()",
    );
    let locks = client(&server).await;
    let guard = hold(&locks, "a").await;
    guard.release().await.expect("released");
    let seen = "SELECT string_agg(DISTINCT setting, ' ') FROM seen";
    assert_eq!(server.execute(seen), "on");
}

/// The server refuses each notification, as it does when its queue is full. The error is that of the server,
/// but comes from a function that hides the real one.
#[tokio::test]
async fn full_queue_of_notifications_does_not_fail_a_release() {
    let server = Server::start();
    server.execute(
        "CREATE SCHEMA hidden; GRANT USAGE ON SCHEMA hidden TO locks;
         CREATE FUNCTION hidden.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
             RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000';
         END $$;
         ALTER ROLE locks SET search_path = hidden, pg_catalog",
    );
    let (one, two) = (
        connect_to(&server.url()).await,
        connect_to(&server.url()).await,
    );
    crate::lock_is_handed_over(one, two).await;
}
