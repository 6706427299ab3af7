//! A holder is paused until the next one has read. Its late write is refused, and no addition is lost.

use leasehold::postgres::{FENCE_SCHEMA, Fence, tokio_postgres};
use leasehold::{FencingToken, Key};
use leasehold_fencing_example::{
    Refused, postgres_by_sqlx, postgres_by_tokio_postgres, sqlite_by_sqlx,
};
use leasehold_test_servers::PostgresServer;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{PgPool, SqlitePool};

/// A key, and what `fencing_token()` of the guards of two holders may return, one after the other.
fn two_holders() -> (Key, FencingToken, FencingToken) {
    let key = Key::new("account:7").expect("a key");
    (key, FencingToken::new(33), FencingToken::new(34))
}

async fn postgres() -> (PostgresServer, PgPool, tokio_postgres::Client) {
    let server = PostgresServer::start();
    server.execute("postgres", FENCE_SCHEMA);
    server.execute(
        "postgres",
        "CREATE TABLE account (id bigint PRIMARY KEY, balance bigint NOT NULL);
         INSERT INTO account VALUES (7, 100);",
    );
    let folder = server.folder().to_str().expect("text");
    let options = PgConnectOptions::new_without_pgpass()
        .socket(folder)
        .port(server.port())
        .username("owner")
        .database("postgres");
    let pool = PgPoolOptions::new()
        .max_connections(4)
        .connect_with(options)
        .await;
    let mut config = tokio_postgres::Config::new();
    config
        .host_path(folder)
        .port(server.port())
        .user("owner")
        .dbname("postgres");
    let (client, connection) = config
        .connect(tokio_postgres::NoTls)
        .await
        .expect("connected");
    tokio::spawn(connection);
    (server, pool.expect("connected"), client)
}

async fn sqlite() -> (tempfile::TempDir, SqlitePool) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("accounts.sqlite");
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true);
    let pool = SqlitePool::connect_with(options).await.expect("opened");
    let table = "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, fence INTEGER NOT NULL DEFAULT 0)";
    sqlx::query(table).execute(&pool).await.expect("created");
    let row = "INSERT INTO account (id, balance) VALUES (7, 100)";
    sqlx::query(row).execute(&pool).await.expect("inserted");
    (folder, pool)
}

async fn balance(pool: &PgPool) -> i64 {
    let balance = sqlx::query_scalar("SELECT balance FROM account WHERE id = 7");
    balance.fetch_one(pool).await.expect("a row")
}

#[tokio::test]
async fn sqlx_on_postgres() {
    use postgres_by_sqlx::{add, claim};
    let (_server, pool, _client) = postgres().await;
    let (key, earlier, later) = two_holders();
    let ann = claim(&pool, &key, earlier).await.expect("the first");
    assert_eq!(add(&pool, &ann, 7, 10).await.expect("claimed"), 110);
    // Ann is paused, and Bob takes over.
    let bob = claim(&pool, &key, later).await.expect("a later token");
    assert!(matches!(add(&pool, &ann, 7, 10).await, Err(Refused::Stale)));
    assert!(matches!(
        claim(&pool, &key, earlier).await,
        Err(Refused::Stale)
    ));
    assert_eq!(add(&pool, &bob, 7, 50).await.expect("claimed"), 160);
    assert_eq!(balance(&pool).await, 160);
}

/// Without `Claim`, with the functions alone: the database notices each wrong order.
#[tokio::test]
async fn sqlx_on_postgres_in_a_wrong_order() {
    use postgres_by_sqlx::refused;
    let (_server, pool, _client) = postgres().await;
    let fence = |token: i64| sqlx::query("SELECT leasehold.fence('account:7', $1)").bind(token);
    let write = "UPDATE account SET balance = 0 WHERE id = 7";

    let mut forgotten = pool.begin().await.expect("begun");
    let error = fence(5)
        .execute(&mut *forgotten)
        .await
        .expect_err("not claimed");
    assert!(matches!(refused(error), Refused::NotClaimed));
    sqlx::query(write)
        .execute(&mut *forgotten)
        .await
        .expect_err("the transaction has failed");
    drop(forgotten);

    let claim = sqlx::query("SELECT leasehold.claim('account:7', 5)");
    claim.execute(&pool).await.expect("claimed");
    let mut late = pool.begin().await.expect("begun");
    sqlx::query(write)
        .execute(&mut *late)
        .await
        .expect("written, but not committed");
    let error = fence(5)
        .execute(&mut *late)
        .await
        .expect_err("not the first statement");
    let code = error.as_database_error().and_then(|error| error.code());
    assert_eq!(code.as_deref(), Some("LH002"));
    // PostgreSQL answers the commit of a failed transaction with a rollback.
    let _ = late.commit().await;
    assert_eq!(balance(&pool).await, 100);

    // A transaction within a transaction is a savepoint.
    let mut outer = pool.begin().await.expect("begun");
    let mut inner = sqlx::Acquire::begin(&mut *outer)
        .await
        .expect("a savepoint");
    let error = fence(5)
        .execute(&mut *inner)
        .await
        .expect_err("in a savepoint");
    let code = error.as_database_error().and_then(|error| error.code());
    assert_eq!(code.as_deref(), Some("LH002"));
}

#[tokio::test]
async fn tokio_postgres_on_postgres() {
    use postgres_by_tokio_postgres::{add, refused};
    let (_server, pool, mut client) = postgres().await;
    let (key, earlier, later) = two_holders();
    let fence = Fence::new();
    let ann = fence
        .claim(&client, &key, earlier)
        .await
        .expect("the first");
    assert_eq!(add(&mut client, &ann, 7, 10).await.expect("claimed"), 110);
    let bob = fence
        .claim(&client, &key, later)
        .await
        .expect("a later token");
    assert!(matches!(
        add(&mut client, &ann, 7, 10).await,
        Err(Refused::Stale)
    ));
    let again = fence.claim(&client, &key, earlier).await.map_err(refused);
    assert!(matches!(again, Err(Refused::Stale)));
    assert_eq!(add(&mut client, &bob, 7, 50).await.expect("claimed"), 160);
    assert_eq!(balance(&pool).await, 160);
}

/// Both client libraries fence each other off.
#[tokio::test]
async fn sqlx_and_tokio_postgres_together() {
    let (_server, pool, mut client) = postgres().await;
    let (key, earlier, later) = two_holders();
    let ann = Fence::new()
        .claim(&client, &key, earlier)
        .await
        .expect("the first");
    let bob = postgres_by_sqlx::claim(&pool, &key, later)
        .await
        .expect("a later token");
    let late = postgres_by_tokio_postgres::add(&mut client, &ann, 7, 10).await;
    assert!(matches!(late, Err(Refused::Stale)));
    assert_eq!(
        postgres_by_sqlx::add(&pool, &bob, 7, 50)
            .await
            .expect("claimed"),
        150
    );
}

#[tokio::test]
async fn sqlx_on_sqlite() {
    use sqlite_by_sqlx::{claim, write};
    let (_folder, pool) = sqlite().await;
    let (_, earlier, later) = two_holders();
    // Ann reads, and is paused. Bob reads.
    let seen = claim(&pool, 7, earlier).await.expect("the first");
    let balance = claim(&pool, 7, later).await.expect("a later token");
    let late = write(&pool, 7, seen + 10, earlier).await;
    assert!(matches!(late, Err(Refused::Stale)));
    write(&pool, 7, balance + 50, later).await.expect("claimed");
    assert!(matches!(
        claim(&pool, 7, earlier).await,
        Err(Refused::Stale)
    ));
    assert_eq!(claim(&pool, 7, later).await.expect("the same holder"), 150);
}

#[tokio::test]
async fn sqlx_on_sqlite_in_a_wrong_order() {
    use sqlite_by_sqlx::{claim, write};
    let (_folder, pool) = sqlite().await;
    let (_, earlier, later) = two_holders();
    let forgotten = write(&pool, 7, 0, earlier).await;
    assert!(matches!(forgotten, Err(Refused::NotClaimed)));
    claim(&pool, 7, earlier).await.expect("the first");
    let forgotten = write(&pool, 7, 0, later).await;
    assert!(matches!(forgotten, Err(Refused::NotClaimed)));
    // A claim that is rolled back is none.
    let mut transaction = pool.begin().await.expect("begun");
    let claimed = sqlx::query("UPDATE account SET fence = ?1 WHERE id = 7 AND fence <= ?1");
    let claimed = claimed
        .bind(later.get().cast_signed())
        .execute(&mut *transaction)
        .await;
    assert_eq!(claimed.expect("updated").rows_affected(), 1);
    transaction.rollback().await.expect("rolled back");
    let late = write(&pool, 7, 0, later).await;
    assert!(matches!(late, Err(Refused::NotClaimed)));
    assert_eq!(claim(&pool, 7, earlier).await.expect("still the last"), 100);
}
