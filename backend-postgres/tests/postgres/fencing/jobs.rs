//! The effects of a job are committed once.

use tokio_postgres::Client;

use super::{ANN, claim, code, connect, start, total};

/// Runs an occurrence of a job: adds 1, and records that it is done.
async fn run_job(client: &mut Client, fire: i64, token: i64) -> Result<(), tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    let done = "SELECT leasehold.done('report', $1, $2)";
    transaction.execute(done, &[&fire, &token]).await?;
    let update = "UPDATE invoices SET total = total + 1";
    transaction.execute(update, &[]).await?;
    transaction.commit().await
}

async fn runs(client: &mut Client, fire: i64, token: i64) {
    let ran = run_job(client, fire, token).await;
    ran.unwrap_or_else(|error| panic!("{fire} with {token}: {error}"));
}

async fn is_refused(client: &mut Client, fire: i64, token: i64, state: &str) {
    let error = run_job(client, fire, token).await.expect_err(state);
    assert_eq!(code(&error), Some(state), "{error}");
}

#[tokio::test]
async fn effects_of_a_job_are_committed_once() {
    let server = start();
    let mut client = connect(&server).await;
    runs(&mut client, 1_000, 33).await;
    // The same occurrence, an earlier one, and both under a later token.
    for (fire, token) in [(1_000, 33), (999, 33), (1_000, 34), (1, 35)] {
        is_refused(&mut client, fire, token, "LH004").await;
    }
    runs(&mut client, 2_000, 36).await;
    // An earlier holder.
    is_refused(&mut client, 3_000, 35, "LH001").await;
    // A rollback takes "done" back with the effects.
    let transaction = client.transaction().await.expect("a transaction");
    let done = "SELECT leasehold.done('report', 3000, 37)";
    transaction.execute(done, &[]).await.expect("not done yet");
    transaction.rollback().await.expect("rolled back");
    runs(&mut client, 3_000, 37).await;
    assert_eq!(total(&server), "103");
    // Other keys are fenced before.
    let _ = claim(&client, ANN).await.expect("free");
    let transaction = client.transaction().await.expect("a transaction");
    for fence in [
        "SELECT leasehold.fence('invoice:42', 33)",
        "SELECT leasehold.done('report', 4000, 38)",
    ] {
        let fenced = transaction.execute(fence, &[]).await;
        fenced.expect("in this order");
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
    is_refused(&mut client, in_days(3), 33, "LH005").await;
    // No more than two days.
    runs(&mut client, in_days(1), 33).await;
    // Recorded while the clock of this server was ahead.
    let ahead = in_days(300);
    server.execute(&format!("UPDATE leasehold.jobs SET done = {ahead}"));
    is_refused(&mut client, in_days(0), 34, "LH005").await;
    // As the hint says.
    server.execute("DELETE FROM leasehold.jobs");
    runs(&mut client, in_days(0), 34).await;
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
