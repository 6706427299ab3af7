//! A transaction with a stale token has no effect.

use std::time::Duration;

use leasehold_api::{FencingToken, Key, LockClient};
use leasehold_postgres::{FenceError, fence};
use tokio_postgres::{Client, NoTls};

use crate::support::{Server, connect_to};

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a server");
    tokio::spawn(connection);
    client
}

async fn set_total(
    client: &mut Client,
    key: &Key,
    token: FencingToken,
    total: i32,
) -> Result<(), FenceError> {
    let transaction = client.transaction().await.expect("a transaction");
    let write = "UPDATE invoices SET total = $1";
    transaction
        .execute(write, &[&total])
        .await
        .expect("written");
    fence(&transaction, key, token).await?;
    transaction.commit().await.map_err(FenceError::Database)
}

fn start() -> Server {
    let server = Server::start();
    server.execute("CREATE TABLE invoices AS SELECT 0 AS total; GRANT ALL ON invoices TO locks");
    server
}

fn total(server: &Server) -> String {
    server.execute("SELECT total FROM invoices")
}

/// The first holder is paused past its lease. The second one takes the lock and writes. Then the first
/// one wakes up in the middle of its transaction.
#[tokio::test]
async fn late_transaction_of_a_paused_holder_is_rolled_back() {
    let server = start();
    let key = Key::new("invoice:42").expect("valid");
    let locks = async || {
        let backend = connect_to(&server.url()).await;
        LockClient::new(backend)
    };
    let (first, second) = (locks().await, locks().await);
    let lease = Duration::from_millis(500);
    let mutex = first
        .mutex(key.as_str())
        .expect("valid")
        .lease(lease)
        .fixed_lease();
    let paused = mutex.lock().await.expect("a lock");
    let old = paused.fencing_token();
    let mut paused_client = connect(&server.url()).await;
    set_total(&mut paused_client, &key, old, 1)
        .await
        .expect("the holder writes");

    let mutex = second.mutex(key.as_str()).expect("valid");
    let guard = mutex
        .lock()
        .await
        .expect("the lease of the first has ended");
    let new = guard.fencing_token();
    assert!(new > old && !paused.is_valid());
    let mut client = connect(&server.url()).await;
    set_total(&mut client, &key, new, 2)
        .await
        .expect("the new holder writes");

    let late = set_total(&mut paused_client, &key, old, 3).await;
    assert!(
        matches!(&late, Err(FenceError::Stale { token, .. }) if *token == old),
        "{late:?}"
    );
    assert_eq!(total(&server), "2");
    set_total(&mut client, &key, new, 4)
        .await
        .expect("the same token again");
    assert_eq!(total(&server), "4");
    guard.release().await.expect("released");
}

/// A program that ignores the error cannot commit either.
#[tokio::test]
async fn stale_transaction_cannot_be_committed() {
    let server = start();
    let key = Key::new("a").expect("valid");
    let mut client = connect(&server.url()).await;
    set_total(&mut client, &key, FencingToken::new(7), 1)
        .await
        .expect("written");
    let transaction = client.transaction().await.expect("a transaction");
    transaction
        .execute("UPDATE invoices SET total = 9", &[])
        .await
        .expect("written");
    let stale = fence(&transaction, &key, FencingToken::new(6))
        .await
        .expect_err("stale");
    assert_eq!(stale.to_string(), "the fencing token 6 of a is stale");
    transaction.commit().await.ok();
    assert_eq!(total(&server), "1");
    let other = Key::new("b").expect("valid");
    set_total(&mut client, &other, FencingToken::new(6), 2)
        .await
        .expect("another key");
}

/// Two transactions at the same time: the one with the higher token wins, whoever is first.
#[tokio::test]
async fn concurrent_transactions_follow_their_tokens() {
    let server = start();
    let key = Key::new("a").expect("valid");
    let (mut one, mut two) = (connect(&server.url()).await, connect(&server.url()).await);
    let newer = one.transaction().await.expect("a transaction");
    fence(&newer, &key, FencingToken::new(8))
        .await
        .expect("fenced");
    let older = two.transaction().await.expect("a transaction");
    let waiting = fence(&older, &key, FencingToken::new(7));
    let committing = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        newer.commit().await.expect("committed");
    };
    let (result, ()) = tokio::join!(waiting, committing);
    assert!(
        matches!(result, Err(FenceError::Stale { .. })),
        "{result:?}"
    );
}

#[tokio::test]
async fn missing_function_is_not_a_stale_token() {
    let server = start();
    server.execute("DROP FUNCTION leasehold.fence");
    let mut client = connect(&server.url()).await;
    let key = Key::new("a").expect("valid");
    let result = set_total(&mut client, &key, FencingToken::new(1), 1).await;
    assert!(matches!(result, Err(FenceError::Database(_))), "{result:?}");
    assert_eq!(total(&server), "0");
}
