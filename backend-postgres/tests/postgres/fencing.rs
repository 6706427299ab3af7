//! A late transaction has no effect, and no addition is lost.

use std::time::Duration;

use leasehold_api::{FencingToken, Key, LockClient};
use leasehold_postgres::{FENCE_SCHEMA, Fence, FenceError, Options, PostgresBackend, row_key};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, IsolationLevel, NoTls, Transaction};

use crate::support::{Server, connect_to};

const ANN: FencingToken = FencingToken::new(33);
const BOB: FencingToken = FencingToken::new(34);

/// The SQLSTATE for a call in the wrong place.
const MISPLACED: &str = "LH002";

async fn connect(server: &Server) -> Client {
    let connected = tokio_postgres::connect(&server.url(), NoTls).await;
    let (client, connection) = connected.expect("a server");
    tokio::spawn(connection);
    client
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

async fn begin(client: &mut Client, token: FencingToken) -> Result<Transaction<'_>, FenceError> {
    let begin = client.build_transaction();
    Fence::new().begin(begin, &key(), token).await
}

async fn read(transaction: &Transaction<'_>) -> i32 {
    let row = transaction
        .query_one("SELECT total FROM invoices", &[])
        .await;
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
    let error = result.err();
    assert!(
        matches!(error, Some(FenceError::Stale { token, .. }) if token == expected),
        "{error:?}"
    );
}

fn code(error: &tokio_postgres::Error) -> Option<&str> {
    error.code().map(SqlState::code)
}

/// The first holder is paused past its lease. The second one takes the lock and writes. Then the first
/// one wakes up.
#[tokio::test]
async fn late_transaction_of_a_paused_holder_is_refused() {
    let server = start();
    let locks = async || {
        let backend = connect_to(&server.url()).await;
        LockClient::new(backend)
    };
    let (first, second) = (locks().await, locks().await);
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
    tokio::time::sleep(Duration::from_millis(300)).await;
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
    let bob = begin(&mut bobs, BOB).await.expect("begun");
    let seen = read(&bob).await;
    bob.commit().await.expect("committed");
    let ann = add(&mut anns, ANN, 10).await;
    assert_stale(ann, ANN);
    let bob = begin(&mut bobs, BOB).await.expect("begun again");
    write(bob, seen + 50).await.expect("written");
    assert_eq!(total(&server), "150");
}

/// Ann's transaction began in time. Bob's waits for it, and sees what it has written.
#[tokio::test]
async fn transaction_that_was_first_is_finished_and_seen() {
    let server = start();
    let (mut anns, mut bobs) = (connect(&server).await, connect(&server).await);
    let ann = begin(&mut anns, ANN).await.expect("begun");
    let seen = read(&ann).await;
    let bob = tokio::spawn(async move { add(&mut bobs, BOB, 50).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
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
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let ann = begin(&mut anns, ANN).await.expect("begun");
        let seen = read(&ann).await;
        let late = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            write(ann, seen + 10).await
        };
        let builder = bobs.build_transaction().isolation_level(level);
        let fence = Fence::new();
        let key = key();
        // The second writer waits with a snapshot from before the first one's commit.
        let (bob, written) = tokio::join!(fence.begin(builder, &key, ANN), late);
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
    let error = client.batch_execute(call).await.expect_err("stale");
    assert_eq!(code(&error), Some("LH001"));
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
    let transaction = fence.begin_all(client.build_transaction(), both).await;
    let committed = transaction.expect("begun").commit().await;
    committed.expect("committed");
    let stale = fence.begin(client.build_transaction(), &two, ANN).await;
    assert_stale(stale, ANN);
    let other = fence.begin(client.build_transaction(), &one, ANN).await;
    drop(other.expect("another key"));
}

/// If the failure were undone with the savepoint, a stale transaction would be committed.
#[tokio::test]
async fn fence_within_a_savepoint_is_refused() {
    let server = start();
    let mut client = connect(&server).await;
    // All of these tokens are good.
    let call = "SELECT leasehold.fence('invoice:42', 34)";

    let mut outer = client.transaction().await.expect("a transaction");
    let inner = outer.transaction().await.expect("a savepoint");
    let error = inner.batch_execute(call).await.expect_err("refused");
    assert_eq!(code(&error), Some(MISPLACED));
    drop(inner);
    outer.rollback().await.expect("rolled back");

    let block = format!(
        "DO $$ BEGIN PERFORM {}; EXCEPTION WHEN division_by_zero THEN END $$",
        call.trim_start_matches("SELECT ")
    );
    let error = client.batch_execute(&block).await.expect_err("refused");
    assert_eq!(code(&error), Some(MISPLACED));

    // Also a second time, within a transaction that is fenced.
    let mut outer = begin(&mut client, BOB).await.expect("begun");
    let inner = outer.transaction().await.expect("a savepoint");
    let error = inner.batch_execute(call).await.expect_err("refused");
    assert_eq!(code(&error), Some(MISPLACED));
    drop(inner);
    drop(outer);

    // Elsewhere it may be called, also within a block and twice.
    let released = format!("BEGIN; SAVEPOINT s; RELEASE s; {call}; {call}; COMMIT");
    client.batch_execute(&released).await.expect("fenced");
    let block = block.replace("EXCEPTION WHEN division_by_zero THEN ", "");
    client.batch_execute(&block).await.expect("fenced");
}

/// What such a transaction has read is perhaps too old.
#[tokio::test]
async fn fence_after_a_write_is_refused() {
    let server = start();
    let client = connect(&server).await;
    let late = "BEGIN; UPDATE invoices SET total = 9; SELECT leasehold.fence('invoice:42', 34)";
    let error = client.batch_execute(late).await.expect_err("refused");
    assert_eq!(code(&error), Some(MISPLACED));
    client.batch_execute("COMMIT").await.expect("rolled back");
    assert_eq!(total(&server), "100");
    // The next transaction of the connection isn't taken for this one.
    let first = "BEGIN; SELECT leasehold.fence('invoice:42', 34); COMMIT";
    client.batch_execute(first).await.expect("fenced");
    let error = client.batch_execute(late).await.expect_err("refused");
    assert_eq!(code(&error), Some(MISPLACED));
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
        let options = Options::new()
            .key_prefix(prefix)
            .connect_timeout(Duration::from_secs(5));
        let backend = PostgresBackend::connect_with(&server.url(), options).await;
        let locks = LockClient::new(backend.expect("a server"));
        let mutex = locks.mutex(key).expect("valid");
        let guard = mutex.try_lock().await.expect("an answer").into_guard();
        let guard = guard.unwrap_or_else(|| panic!("{prefix} {key} is another lock"));
        // Each has a lower token than the one before.
        let token = FencingToken::new(90 - number as u64);
        let begin = client.build_transaction();
        let fence = Fence::new().key_prefix(prefix);
        let transaction = fence.begin(begin, guard.key(), token).await;
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

/// The function as it was before fences had prefixes.
const BEFORE: &str = "CREATE FUNCTION leasehold.fence(name text, new_token bigint) RETURNS void
    LANGUAGE plpgsql AS $$ BEGIN RAISE 'the old one'; END $$";

#[tokio::test]
async fn schema_of_fences_is_its_own_upgrade() {
    let server = start();
    server.execute("DROP FUNCTION leasehold.fence(text, bigint, text)");
    server.execute(BEFORE);
    let mut client = connect(&server).await;
    server.execute("INSERT INTO leasehold.fences VALUES ('invoice:42', 34)");
    server.execute(FENCE_SCHEMA);
    server.execute(FENCE_SCHEMA);
    assert_stale(add(&mut client, ANN, 10).await, ANN);
    add(&mut client, BOB, 50).await.expect("written");
    let call = "SELECT leasehold.fence('invoice:42', 34)";
    client.batch_execute(call).await.expect("fenced");
}

#[tokio::test]
async fn missing_function_is_not_a_stale_token() {
    let server = start();
    server.execute("DROP FUNCTION leasehold.fence");
    let mut client = connect(&server).await;
    let result = add(&mut client, ANN, 1).await;
    assert!(matches!(result, Err(FenceError::Database(_))), "{result:?}");
    assert_eq!(total(&server), "100");
}
