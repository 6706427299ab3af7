//! A late transaction has no effect, and no addition is lost.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use leasehold_api::{FencingToken, Key, LockClient};
use leasehold_postgres::{
    Claim, FENCE_SCHEMA, Fence, FenceError, Options, PostgresBackend, row_key,
};
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

async fn claim(client: &Client, token: FencingToken) -> Result<Claim, FenceError> {
    Fence::new().claim(client, &key(), token).await
}

async fn begin(client: &mut Client, token: FencingToken) -> Result<Transaction<'_>, FenceError> {
    let claim = claim(client, token).await?;
    claim.begin(client.build_transaction()).await
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

/// Runs an occurrence of a job: adds 1, and records that it is done.
async fn run_job(client: &mut Client, fire: i64, token: i64) -> Result<(), tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    let done = "SELECT leasehold.done('report', $1, $2)";
    transaction.execute(done, &[&fire, &token]).await?;
    let update = "UPDATE invoices SET total = total + 1";
    transaction.execute(update, &[]).await?;
    transaction.commit().await
}

#[tokio::test]
async fn effects_of_a_job_are_committed_once() {
    let server = start();
    let mut client = connect(&server).await;
    run_job(&mut client, 1_000, 33)
        .await
        .expect("the first run");
    // The same occurrence, an earlier one, and both under a later token.
    for (fire, token) in [(1_000, 33), (999, 33), (1_000, 34), (1, 35)] {
        let error = run_job(&mut client, fire, token).await.expect_err("done");
        assert_eq!(code(&error), Some("LH004"), "{error}");
    }
    run_job(&mut client, 2_000, 36)
        .await
        .expect("the next occurrence");
    let error = run_job(&mut client, 3_000, 35)
        .await
        .expect_err("an earlier holder");
    assert_eq!(code(&error), Some("LH001"), "{error}");
    // A rollback takes "done" back with the effects.
    let transaction = client.transaction().await.expect("a transaction");
    let done = "SELECT leasehold.done('report', 3000, 37)";
    transaction.execute(done, &[]).await.expect("not done yet");
    transaction.rollback().await.expect("rolled back");
    run_job(&mut client, 3_000, 37)
        .await
        .expect("it runs again");
    assert_eq!(total(&server), "103");
    // Other keys are fenced before.
    let _ = claim(&client, ANN).await.expect("free");
    let transaction = client.transaction().await.expect("a transaction");
    for fence in [
        "SELECT leasehold.fence('invoice:42', 33)",
        "SELECT leasehold.done('report', 4000, 38)",
    ] {
        transaction
            .execute(fence, &[])
            .await
            .expect("in this order");
    }
    transaction.commit().await.expect("committed");
    // Another prefix is another job.
    let done = "SELECT leasehold.done('report', 1, 1, 'billing:')";
    client.execute(done, &[]).await.expect("another job");
}

/// A clock that was wrong for a moment must not silence a job: neither that of the lock service, nor that of Postgres.
#[tokio::test]
async fn done_ahead_of_the_clock_is_an_error() {
    let server = start();
    let mut client = connect(&server).await;
    let in_days = |days: i64| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let millis = now.expect("after 1970").as_millis();
        i64::try_from(millis).expect("this century") + days * 86_400_000
    };
    let error = run_job(&mut client, in_days(3), 33).await;
    assert_eq!(code(&error.expect_err("ahead")), Some("LH005"));
    run_job(&mut client, in_days(1), 33)
        .await
        .expect("no more than two days");
    // Recorded while the clock of this server was ahead.
    server.execute(&format!(
        "UPDATE leasehold.jobs SET done = {}",
        in_days(300)
    ));
    let error = run_job(&mut client, in_days(0), 34).await;
    assert_eq!(code(&error.expect_err("ahead")), Some("LH005"));
    server.execute("DELETE FROM leasehold.jobs");
    run_job(&mut client, in_days(0), 34)
        .await
        .expect("as the hint says");
    assert_eq!(total(&server), "102");
}

#[tokio::test]
async fn two_runs_of_an_occurrence_commit_one() {
    let server = start();
    let (mut one, mut other) = (connect(&server).await, connect(&server).await);
    for fire in 1..=20 {
        let (first, second) = tokio::join!(
            run_job(&mut one, fire, 2 * fire),
            run_job(&mut other, fire, 2 * fire)
        );
        assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
    }
    assert_eq!(total(&server), "120");
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
        write(bob.expect("begun again"), seen + 50)
            .await
            .expect("written");
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
    assert!(
        matches!(&bob, FenceError::NotClaimed { token: BOB, .. }),
        "{bob:?}"
    );
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
        assert!(
            matches!(bob, Some(FenceError::NotClaimed { .. })),
            "{bob:?}"
        );
        assert_eq!(total(&server), format!("{}", 110 + 10 * run));
    }
}

/// What SQL programs write: a claim in one transaction and a fence in the next.
#[tokio::test]
async fn fence_without_a_claim_is_refused() {
    let server = start();
    let client = connect(&server).await;
    let fence =
        "BEGIN; SELECT leasehold.fence('invoice:42', 34); UPDATE invoices SET total = 9; COMMIT";
    let unclaimed = async || {
        let error = client.batch_execute(fence).await.expect_err("refused");
        assert_eq!(code(&error), Some("LH003"));
        client.batch_execute("ROLLBACK").await.expect("rolled back");
        assert_eq!(total(&server), "100");
    };
    unclaimed().await;
    let claim = "SELECT leasehold.claim('invoice:42', 34)";
    let rolled_back = format!("BEGIN; {claim}; SELECT total FROM invoices; ROLLBACK");
    client.batch_execute(&rolled_back).await.expect("executed");
    unclaimed().await;
    client.batch_execute(claim).await.expect("claimed");
    client.batch_execute(fence).await.expect("fenced");
    // One transaction may do everything.
    let one = format!("BEGIN; {claim}; UPDATE invoices SET total = 150; COMMIT");
    client.batch_execute(&one).await.expect("claimed");
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
    let claim = claim(&anns, ANN).await.expect("claimed");
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let ann = claim.begin(anns.build_transaction()).await.expect("begun");
        let seen = read(&ann).await;
        let late = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
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

/// If the failure were undone with the savepoint, a stale transaction would be committed.
#[tokio::test]
async fn fence_within_a_savepoint_is_refused() {
    let server = start();
    let mut client = connect(&server).await;
    drop(claim(&client, BOB).await.expect("claimed"));
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

    // So is a claim.
    let claim = call.replace("fence(", "claim(");
    let within = format!("BEGIN; SAVEPOINT s; {claim}");
    let error = client.batch_execute(&within).await.expect_err("refused");
    assert_eq!(code(&error), Some(MISPLACED));
    client.batch_execute("ROLLBACK").await.expect("rolled back");

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
    drop(claim(&client, BOB).await.expect("claimed"));
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

/// The transaction has read another key's rows before that key is fenced, and has written since.
#[tokio::test]
async fn second_fence_after_a_write_is_refused() {
    let server = start();
    let client = connect(&server).await;
    let (a, b) = ("leasehold.fence('a', 34)", "leasehold.fence('b', 34)");
    let claims = "SELECT leasehold.claim('a', 34), leasehold.claim('b', 34)";
    client.batch_execute(claims).await.expect("claimed");
    let reads = "SELECT total FROM invoices";
    let writes = [
        "UPDATE invoices SET total = 9",
        "SELECT total FROM invoices FOR UPDATE",
        "SAVEPOINT s; UPDATE invoices SET total = 9; ROLLBACK TO s",
        "CREATE TEMPORARY TABLE other ()",
    ];
    for write in writes {
        let late = format!("BEGIN; SELECT {a}; {reads}; {write}; SELECT {b}; COMMIT");
        let error = client.batch_execute(&late).await.expect_err(write);
        assert_eq!(code(&error), Some(MISPLACED), "{write}");
        client.batch_execute("ROLLBACK").await.expect("rolled back");
    }
    assert_eq!(total(&server), "100");
    let early = format!(
        "BEGIN; SELECT {a}, {b}; {reads}; SELECT {b}; SELECT {a}; {}; COMMIT",
        writes[0]
    );
    client.batch_execute(&early).await.expect("fenced");
    assert_eq!(total(&server), "9");
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
    let settings =
        "SET idle_in_transaction_session_timeout = '200ms'; SET statement_timeout = '200ms'";
    anns.batch_execute(settings).await.expect("set");
    let ann = begin(&mut anns, ANN).await.expect("begun");
    let much = "SELECT repeat('x', 1000) FROM generate_series(1, 100000)";
    let result = ann.query_raw(much, std::iter::empty::<i32>()).await;
    let _unread = result.expect("it is sent");
    paused.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(1)).await;

    let bobs = connect(&server).await;
    let limit = Duration::from_millis(500);
    let fence = Fence::new().lock_timeout(limit);
    let began = Instant::now();
    let key = key();
    let waiting = fence.claim(&bobs, &key, BOB);
    let ended = tokio::time::timeout(Duration::from_secs(10), waiting).await;
    let busy = ended.expect("it doesn't wait forever").err();
    assert!(
        matches!(busy, Some(FenceError::Busy { waited, .. }) if waited == limit),
        "{busy:?}"
    );
    assert!(began.elapsed() >= limit);
    // The connection has its own limit again, and works.
    bobs.batch_execute("SELECT 1 / (SELECT 1 WHERE current_setting('lock_timeout') = '0')::int")
        .await
        .expect("no limit");
    server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'",
    );
    drop(claim(&bobs, BOB).await.expect("claimed"));
}

/// Nothing is sent: the functions are missing.
#[tokio::test]
async fn wrong_arguments_are_refused_before_any_io() {
    let server = start();
    server.execute("DROP FUNCTION leasehold.claim, leasehold.fence, leasehold.lock_fence");
    let client = connect(&server).await;
    let (key, nul) = (key(), Key::new("a\0b").expect("valid"));
    let fence = Fence::new();
    let number = FencingToken::new;
    for (fence, keys, what) in [
        (fence.clone(), vec![], "keys"),
        (
            fence.clone(),
            vec![(&key, FencingToken::NONE)],
            "fencing token",
        ),
        (
            fence.clone(),
            vec![(&key, number(1 << 53))],
            "fencing token",
        ),
        (
            fence.clone(),
            vec![(&key, number(u64::MAX))],
            "fencing token",
        ),
        (fence.clone(), vec![(&key, BOB), (&nul, BOB)], "key"),
        (
            fence.clone().key_prefix("\0"),
            vec![(&key, BOB)],
            "key prefix",
        ),
        (
            fence.clone().lock_timeout(Duration::ZERO),
            vec![(&key, BOB)],
            "lock_timeout",
        ),
        (
            fence.lock_timeout(Duration::MAX),
            vec![(&key, BOB)],
            "lock_timeout",
        ),
    ] {
        let error = fence.claim_all(&client, keys).await.expect_err(what);
        assert!(matches!(error, FenceError::Invalid(_)), "{error:?}");
        assert!(
            error.to_string().starts_with(&format!("{what}: ")),
            "{error}"
        );
    }
}

#[tokio::test]
async fn wrong_arguments_of_the_functions_are_refused() {
    let server = start();
    let client = connect(&server).await;
    for function in ["claim", "fence"] {
        for arguments in [
            "NULL, 34",
            "'invoice:42', NULL",
            "'invoice:42', 0",
            "'invoice:42', 34, NULL",
            "'invoice:42', 34, '', 0",
            "'invoice:42', 34, '', NULL",
        ] {
            let call = format!("SELECT leasehold.{function}({arguments})");
            let error = client.batch_execute(&call).await.expect_err(&call);
            assert_eq!(
                error.code(),
                Some(&SqlState::INVALID_PARAMETER_VALUE),
                "{call}"
            );
        }
    }
    assert_eq!(server.execute("SELECT count(*) FROM leasehold.fences"), "0");
    // What a session sets doesn't change the name of a row.
    let old_strings = "SET standard_conforming_strings = off; SET escape_string_warning = off;
        SELECT leasehold.claim('42', 34, 'billing:')";
    client.batch_execute(old_strings).await.expect("claimed");
    let stored = row_key("billing:", &Key::new("42").expect("valid"));
    let row = client
        .query_one("SELECT key FROM leasehold.fences", &[])
        .await;
    assert_eq!(row.expect("a row").get::<_, Vec<u8>>(0), stored);
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

/// The function as it was before fences had prefixes, and as it was when it claimed.
const BEFORE: [&str; 2] = [
    "CREATE FUNCTION leasehold.fence(name text, new_token bigint) RETURNS void
        LANGUAGE plpgsql AS $$ BEGIN RAISE 'an old one'; END $$",
    "CREATE FUNCTION leasehold.fence(name text, new_token bigint, key_prefix text DEFAULT '')
        RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'an old one'; END $$",
];

#[tokio::test]
async fn schema_of_fences_is_its_own_upgrade() {
    for before in BEFORE {
        let server = start();
        server.execute("DROP FUNCTION leasehold.claim, leasehold.fence, leasehold.lock_fence");
        server.execute(before);
        let mut client = connect(&server).await;
        server.execute("INSERT INTO leasehold.fences VALUES ('invoice:42', 34)");
        server.execute(FENCE_SCHEMA);
        server.execute(FENCE_SCHEMA);
        assert_stale(add(&mut client, ANN, 10).await, ANN);
        add(&mut client, BOB, 50).await.expect("written");
        let call = "SELECT leasehold.fence('invoice:42', 34)";
        client.batch_execute(call).await.expect("fenced");
    }
}

#[tokio::test]
async fn missing_function_is_not_a_stale_token() {
    let server = start();
    server.execute("DROP FUNCTION leasehold.claim");
    let mut client = connect(&server).await;
    let result = add(&mut client, ANN, 1).await;
    assert!(matches!(result, Err(FenceError::Database(_))), "{result:?}");
    assert_eq!(total(&server), "100");
}
