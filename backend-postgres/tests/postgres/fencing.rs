//! A late transaction has no effect, and no addition is lost.

mod functions;
mod jobs;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use leasehold_api::{FencingToken, Key, LockClient};
use leasehold_postgres::{Claim, Fence, FenceError, row_key};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, IsolationLevel, NoTls, Transaction};

use crate::support::{Server, connect_with, patient, sql_client};

const ANN: FencingToken = FencingToken::new(33);
const BOB: FencingToken = FencingToken::new(34);

async fn connect(server: &Server) -> Client {
    sql_client(&server.url()).await
}

/// A server with an invoice over 100.
fn start() -> Server {
    let server = Server::start();
    server.execute("CREATE TABLE invoices AS SELECT 100 AS total; GRANT ALL ON invoices TO locks");
    server
}

fn total(server: &Server) -> String {
    server.execute("SELECT total FROM invoices")
}

fn key() -> Key {
    Key::new("invoice:42").expect("valid")
}

async fn claim(client: &Client, token: FencingToken) -> Result<Claim, FenceError> {
    Fence::new().claim(client, &key(), token).await
}

async fn begin(client: &mut Client, token: FencingToken) -> Result<Transaction<'_>, FenceError> {
    let claim = claim(client, token).await?;
    claim.begin(client.build_transaction()).await
}

async fn read(transaction: &Transaction<'_>) -> i32 {
    let select = "SELECT total FROM invoices";
    let row = transaction.query_one(select, &[]).await;
    row.expect("a row").get(0)
}

async fn write(transaction: Transaction<'_>, total: i32) -> Result<(), FenceError> {
    let update = "UPDATE invoices SET total = $1";
    let written = transaction.execute(update, &[&total]).await;
    written.map_err(FenceError::Database)?;
    transaction.commit().await.map_err(FenceError::Database)
}

/// Adds to the total in one transaction.
async fn add(client: &mut Client, token: FencingToken, amount: i32) -> Result<(), FenceError> {
    let transaction = begin(client, token).await?;
    let total = read(&transaction).await;
    write(transaction, total + amount).await
}

fn assert_stale<T>(result: Result<T, FenceError>, expected: FencingToken) {
    assert_matches!(result.err(), Some(FenceError::Stale { token, .. }) if *token == expected);
}

fn code(error: &tokio_postgres::Error) -> Option<&str> {
    error.code().map(SqlState::code)
}

/// Executes statements, which must fail with this SQLSTATE.
async fn refused(client: &Client, statements: &str, state: &str) {
    let refused = client.batch_execute(statements).await;
    let error = refused.expect_err(statements);
    assert_eq!(code(&error), Some(state), "{statements}");
}

/// The first holder is paused past its lease. The second one takes the lock and writes. Then the first
/// one wakes up.
#[tokio::test]
async fn late_transaction_of_a_paused_holder_is_refused() {
    let server = start();
    let (first, second) = (server.locks().await, server.locks().await);
    let lease = Duration::from_millis(500);
    let mutex = first.mutex(key().as_str()).expect("valid");
    let mutex = mutex.lease(lease).fixed_lease();
    let paused = mutex.lock().await.expect("a lock");
    let old = paused.fencing_token();
    let mut paused_client = connect(&server).await;
    let added = add(&mut paused_client, old, 1).await;
    added.expect("the holder writes");

    let mutex = second.mutex(key().as_str()).expect("valid");
    let guard = mutex.lock().await;
    let guard = guard.expect("the lease of the first has ended");
    let new = guard.fencing_token();
    assert!(new > old && !paused.is_valid());
    let mut client = connect(&server).await;
    let added = add(&mut client, new, 10).await;
    added.expect("the new holder writes");

    let late = add(&mut paused_client, old, 100).await;
    assert_stale(late, old);
    assert_eq!(total(&server), "111");
    let again = add(&mut client, new, 10).await;
    again.expect("the same token again");
    assert_eq!(total(&server), "121");
    guard.release().await.expect("released");
}

/// Ann's lease has ended. Bob reads. Then Ann's late transaction arrives, and after it Bob's write.
#[tokio::test]
async fn nobody_writes_between_a_read_and_the_write() {
    let server = start();
    let (mut anns, mut bobs) = (connect(&server).await, connect(&server).await);
    let bob = begin(&mut bobs, BOB).await.expect("begun");
    let seen = read(&bob).await;
    let ann = tokio::spawn(async move { add(&mut anns, ANN, 10).await });
    server.somebody_waits().await;
    write(bob, seen + 50).await.expect("written");
    let ann = ann.await.expect("no panic");
    assert_stale(ann, ANN);
    assert_eq!(total(&server), "150");
}

/// Bob reads in one transaction, computes, and writes in another. Ann arrives in between.
#[tokio::test]
async fn nobody_writes_between_two_transactions_of_a_holder() {
    let server = start();
    let (mut anns, mut bobs) = (connect(&server).await, connect(&server).await);
    let anns_claim = claim(&anns, ANN).await.expect("claimed");
    let bobs_claim = claim(&bobs, BOB).await.expect("claimed");
    for rolls_back in [true, false] {
        let seen: i32 = total(&server).parse().expect("a number");
        let bob = bobs_claim.begin(bobs.build_transaction()).await;
        let bob = bob.expect("begun");
        assert_eq!(read(&bob).await, seen);
        // The claim is not part of this transaction.
        let ended = match rolls_back {
            true => bob.rollback().await,
            false => bob.commit().await,
        };
        ended.expect("ended");
        let ann = anns_claim.begin(anns.build_transaction()).await;
        assert_stale(ann, ANN);
        let bob = bobs_claim.begin(bobs.build_transaction()).await;
        let written = write(bob.expect("begun again"), seen + 50).await;
        written.expect("written");
    }
    assert_eq!(total(&server), "200");
}

/// Bob's claim is rolled back after his first read. So Ann, who has claimed before, may write. Bob's write is based on
/// what he has read, and must not follow.
#[tokio::test]
async fn claim_that_was_rolled_back_is_none() {
    let server = start();
    let (mut anns, mut bobs) = (connect(&server).await, connect(&server).await);
    let anns_claim = claim(&anns, ANN).await.expect("claimed");
    bobs.batch_execute("BEGIN").await.expect("begun");
    let bobs_claim = claim(&bobs, BOB).await.expect("claimed");
    let seen = bobs.query_one("SELECT total FROM invoices", &[]).await;
    let seen: i32 = seen.expect("a row").get(0);
    bobs.batch_execute("ROLLBACK").await.expect("rolled back");
    let ann = anns_claim.begin(anns.build_transaction()).await;
    let ann = ann.expect("her claim stands");
    let now = read(&ann).await + 10;
    write(ann, now).await.expect("written");

    let bob = bobs_claim.begin(bobs.build_transaction()).await;
    let bob = bob.err().expect("somebody may have written");
    assert_matches!(bob, FenceError::NotClaimed { token: BOB, .. });
    let message = "the claim of invoice:42 with the fencing token 34 is gone";
    assert_eq!(bob.to_string(), message);
    assert_eq!((seen, total(&server).as_str()), (100, "110"));
    add(&mut bobs, BOB, 50).await.expect("he reads again");
    assert_eq!(total(&server), "160");
}

/// The same if a crash or a failover of the database loses the claim after its commit.
#[tokio::test]
async fn claim_that_the_database_has_lost_is_none() {
    let server = start();
    let (mut anns, mut bobs) = (connect(&server).await, connect(&server).await);
    let lost = [
        "UPDATE leasehold.fences SET token = 33",
        "DELETE FROM leasehold.fences",
    ];
    for (run, loses) in lost.into_iter().enumerate() {
        let bobs_claim = claim(&bobs, BOB).await.expect("claimed");
        server.execute(loses);
        add(&mut anns, ANN, 10).await.expect("written");
        let bob = bobs_claim.begin(bobs.build_transaction()).await.err();
        assert_matches!(bob, Some(FenceError::NotClaimed { .. }));
        assert_eq!(total(&server), format!("{}", 110 + 10 * run));
    }
}

/// Ann's transaction began in time. Bob's waits for it, and sees what it has written.
#[tokio::test]
async fn transaction_that_was_first_is_finished_and_seen() {
    let server = start();
    let (mut anns, mut bobs) = (connect(&server).await, connect(&server).await);
    let ann = begin(&mut anns, ANN).await.expect("begun");
    let seen = read(&ann).await;
    let bob = tokio::spawn(async move { add(&mut bobs, BOB, 50).await });
    server.somebody_waits().await;
    assert!(!bob.is_finished(), "it waits");
    write(ann, seen + 10).await.expect("written");
    bob.await.expect("no panic").expect("written");
    assert_eq!(total(&server), "160");
}

/// A snapshot doesn't see what is committed after it. So the transaction fails, rather than lose a write.
#[tokio::test]
async fn snapshot_that_is_too_old_fails() {
    let server = start();
    let (mut anns, mut bobs) = (connect(&server).await, connect(&server).await);
    let claim = claim(&anns, ANN).await.expect("claimed");
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let ann = claim.begin(anns.build_transaction()).await.expect("begun");
        let seen = read(&ann).await;
        let late = async {
            server.somebody_waits().await;
            write(ann, seen + 10).await
        };
        let builder = bobs.build_transaction().isolation_level(level);
        // The second writer waits with a snapshot from before the first one's commit.
        let (bob, written) = tokio::join!(claim.begin(builder), late);
        written.expect("written");
        let Some(FenceError::Database(error)) = bob.err() else {
            panic!("it has an old snapshot");
        };
        assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE));
    }
    assert_eq!(total(&server), "120");
}

/// A program that ignores the error cannot commit either.
#[tokio::test]
async fn stale_transaction_cannot_be_committed() {
    let server = start();
    let mut client = connect(&server).await;
    add(&mut client, BOB, 50).await.expect("written");
    let stale = begin(&mut client, ANN).await.err().expect("stale");
    let message = "the fencing token 33 of invoice:42 is stale";
    assert_eq!(stale.to_string(), message);

    client.batch_execute("BEGIN").await.expect("begun");
    let call = "SELECT leasehold.fence('invoice:42', 33)";
    refused(&client, call, "LH001").await;
    let write = "UPDATE invoices SET total = 9";
    client.batch_execute(write).await.expect_err("aborted");
    client.batch_execute("COMMIT").await.expect("rolled back");
    assert_eq!(total(&server), "150");
}

#[tokio::test]
async fn several_keys_are_fenced() {
    let server = start();
    let mut client = connect(&server).await;
    let (one, two) = (Key::new("a").expect("valid"), Key::new("b").expect("valid"));
    let fence = Fence::new();
    let both = [(&one, ANN), (&two, BOB)];
    let claim = fence.claim_all(&client, both).await.expect("claimed");
    let transaction = claim.begin(client.build_transaction()).await;
    let committed = transaction.expect("begun").commit().await;
    committed.expect("committed");
    assert_stale(fence.claim(&client, &two, ANN).await, ANN);
    let of_one = fence.claim(&client, &one, ANN).await;
    let of_one = of_one.expect("another key");
    let third = FencingToken::new(35);
    let later = fence.claim(&client, &two, third).await;
    drop(later.expect("a later holder"));
    let stale = claim.begin(client.build_transaction()).await;
    assert_stale(stale, BOB);
    let stale = fence.claim_all(&client, [(&one, third), (&two, BOB)]).await;
    assert_stale(stale, BOB);
    let other = of_one.begin(client.build_transaction()).await;
    drop(other.expect("nothing was claimed for it"));
}

/// Ann's process is paused while Postgres sends her a result. No setting of Postgres ends her transaction.
#[tokio::test]
async fn paused_holder_keeps_the_next_one_out_for_a_bounded_time() {
    let server = start();
    let paused = Arc::new(AtomicBool::new(false));
    let connected = tokio_postgres::connect(&server.url(), NoTls).await;
    let (mut anns, connection) = connected.expect("a server");
    let pause = Arc::clone(&paused);
    tokio::spawn(async move {
        let mut connection = pin!(connection);
        let drive = poll_fn(|cx| match pause.load(Ordering::Relaxed) {
            true => Poll::Pending,
            false => connection.as_mut().poll(cx),
        });
        drive.await
    });
    // A busy server takes its time until it waits for her.
    let settings = "SET idle_in_transaction_session_timeout = '4s'; SET statement_timeout = '4s'";
    anns.batch_execute(settings).await.expect("set");
    let ann = begin(&mut anns, ANN).await.expect("begun");
    let much = "SELECT repeat('x', 1000) FROM generate_series(1, 100000)";
    let result = ann.query_raw(much, std::iter::empty::<i32>()).await;
    let _unread = result.expect("it is sent");
    paused.store(true, Ordering::Relaxed);
    let stuck = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'";
    server.wait_for(stuck, "1").await;

    let bobs = connect(&server).await;
    let limit = Duration::from_secs(5);
    let fence = Fence::new().lock_timeout(limit);
    let began = Instant::now();
    let key = key();
    let waiting = fence.claim(&bobs, &key, BOB);
    let ended = tokio::time::timeout(Duration::from_secs(60), waiting).await;
    let busy = ended.expect("it doesn't wait forever").err();
    assert_matches!(busy, Some(FenceError::Busy { waited, .. }) if *waited == limit);
    assert!(began.elapsed() >= limit);
    // The connection has its own limit again, and works.
    let limit = bobs.query_one("SHOW lock_timeout", &[]).await;
    assert_eq!(limit.expect("it works").get::<_, &str>(0), "0");
    server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'",
    );
    drop(claim(&bobs, BOB).await.expect("claimed"));
}

/// Nothing is sent: if it were, the error would be that the functions are missing.
#[tokio::test]
async fn wrong_arguments_are_refused_before_any_io() {
    let server = start();
    server.execute("DROP FUNCTION leasehold.claim, leasehold.fence, leasehold.lock_fence");
    let client = connect(&server).await;
    let (key, nul) = (key(), Key::new("a\0b").expect("valid"));
    let with = |token| vec![(&key, token)];
    let [large, huge] = [1 << 53, u64::MAX].map(FencingToken::new);
    let waits = |limit| Fence::new().lock_timeout(limit);
    for (fence, keys, what) in [
        (Fence::new(), vec![], "keys: "),
        (
            Fence::new(),
            with(FencingToken::default()),
            "fencing token: ",
        ),
        (Fence::new(), with(large), "fencing token: "),
        (Fence::new(), with(huge), "fencing token: "),
        (Fence::new(), vec![(&key, BOB), (&nul, BOB)], "key: "),
        (Fence::new().key_prefix("\0"), with(BOB), "key prefix: "),
        (waits(Duration::ZERO), with(BOB), "lock_timeout: "),
        (waits(Duration::MAX), with(BOB), "lock_timeout: "),
    ] {
        let error = fence.claim_all(&client, keys).await.expect_err(what);
        assert_matches!(error, FenceError::Invalid(_));
        assert!(error.to_string().starts_with(what), "{error}");
    }
    // Valid arguments are sent. The missing function is not reported as a stale token.
    let missing = claim(&client, BOB).await;
    assert_matches!(missing, Err(FenceError::Database(_)));
}

/// Prefix and key are one text together. Neither the locks nor the fences are one.
#[tokio::test]
async fn prefixes_separate_locks_and_fences() {
    let server = start();
    let mut client = connect(&server).await;
    let cases = [
        ("", "billing:eu:42"),
        ("billing:", "eu:42"),
        ("billing:eu:", "42"),
        ("büro→", "\u{1f512}"),
    ];
    let mut guards = Vec::new();
    for (number, (prefix, key)) in cases.into_iter().enumerate() {
        let options = patient().key_prefix(prefix);
        let locks = LockClient::new(connect_with(&server.url(), options).await);
        let mutex = locks.mutex(key).expect("valid");
        let guard = mutex.try_lock().await.expect("an answer").into_guard();
        let guard = guard.unwrap_or_else(|| panic!("{prefix} {key} is another lock"));
        // Each has a lower token than the one before.
        let token = FencingToken::new(90 - number as u64);
        let fence = Fence::new().key_prefix(prefix);
        let claim = fence.claim(&client, guard.key(), token).await;
        let claim = claim.expect("another fence");
        let transaction = claim.begin(client.build_transaction()).await;
        let committed = transaction.expect("another fence").commit().await;
        committed.expect("committed");
        for table in ["locks", "fences"] {
            let count = format!("SELECT count(*) FROM leasehold.{table} WHERE key = $1");
            let stored = row_key(prefix, guard.key());
            let row = client.query_one(&count, &[&stored]).await;
            let rows: i64 = row.expect("a count").get(0);
            assert_eq!(rows, 1, "{prefix} {key} in {table}");
        }
        guards.push((locks, guard));
    }
}
