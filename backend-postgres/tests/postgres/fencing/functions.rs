//! What the functions refuse, as programs in SQL call them.

use leasehold_api::Key;
use leasehold_postgres::{FENCE_SCHEMA, row_key};
use tokio_postgres::error::SqlState;

use super::{ANN, BOB, add, assert_stale, claim, connect, refused, start, total};

/// The SQLSTATE for a call in the wrong place.
const MISPLACED: &str = "LH002";

/// What SQL programs write: a claim in one transaction and a fence in the next.
#[tokio::test]
async fn fence_without_a_claim_is_refused() {
    let server = start();
    let client = connect(&server).await;
    let fence =
        "BEGIN; SELECT leasehold.fence('invoice:42', 34); UPDATE invoices SET total = 9; COMMIT";
    let unclaimed = async || {
        refused(&client, fence, "LH003").await;
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

/// If the failure were undone with the savepoint, a stale transaction would be committed.
#[tokio::test]
async fn fence_within_a_savepoint_is_refused() {
    let server = start();
    let client = connect(&server).await;
    drop(claim(&client, BOB).await.expect("claimed"));
    // All of these tokens are good.
    let call = "SELECT leasehold.fence('invoice:42', 34)";
    let claim = call.replace("fence(", "claim(");
    let block = format!(
        "DO $$ BEGIN PERFORM {}; EXCEPTION WHEN division_by_zero THEN END $$",
        call.trim_start_matches("SELECT ")
    );
    for misplaced in [
        format!("BEGIN; SAVEPOINT s; {call}"),
        format!("BEGIN; SAVEPOINT s; {claim}"),
        // Also a second time, within a transaction that is fenced.
        format!("BEGIN; {call}; SAVEPOINT s; {call}"),
        block.clone(),
    ] {
        refused(&client, &misplaced, MISPLACED).await;
        client.batch_execute("ROLLBACK").await.expect("rolled back");
    }
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
    refused(&client, late, MISPLACED).await;
    client.batch_execute("COMMIT").await.expect("rolled back");
    assert_eq!(total(&server), "100");
    // The next transaction of the connection isn't taken for this one.
    let first = "BEGIN; SELECT leasehold.fence('invoice:42', 34); COMMIT";
    client.batch_execute(first).await.expect("fenced");
    refused(&client, late, MISPLACED).await;
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
        refused(&client, &late, MISPLACED).await;
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
            refused(&client, &call, SqlState::INVALID_PARAMETER_VALUE.code()).await;
        }
    }
    assert_eq!(server.execute("SELECT count(*) FROM leasehold.fences"), "0");
    // What a session sets doesn't change the name of a row.
    let old_strings = "SET standard_conforming_strings = off; SET escape_string_warning = off;
        SELECT leasehold.claim('42', 34, 'billing:')";
    client.batch_execute(old_strings).await.expect("claimed");
    let stored = row_key("billing:", &Key::new("42").expect("valid"));
    let select = "SELECT key FROM leasehold.fences";
    let row = client.query_one(select, &[]).await;
    assert_eq!(row.expect("a row").get::<_, Vec<u8>>(0), stored);
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
