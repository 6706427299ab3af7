//! The facade on Postgres. `./test deep` runs these tests with the others on Postgres.

#[path = "shared/mod.rs"]
mod shared;

use std::sync::Arc;

use leasehold::RedisLibrary;
use leasehold::postgres::tokio_postgres::{self, NoTls};
use leasehold_test_servers::PostgresServer;

use page::deposit;

/// The first example of the README and of the guide, for a holder that somebody may overtake.
mod page {
    use std::error::Error;

    use leasehold::LockClient;
    use leasehold::postgres::tokio_postgres::Client;

    pub(super) async fn deposit(
        locks: &LockClient,
        database: &Client,
        amount: i64,
    ) -> Result<(), Box<dyn Error>> {
        let guard = locks.mutex("account:7")?.lock().await?; // waits for its turn
        let token = guard.fencing_token().get().cast_signed();

        // Claim the row and read it, unless a later holder has claimed it.
        let claim = "UPDATE account SET fence = $1 WHERE id = 7 AND fence <= $1 RETURNING balance";
        let Some(row) = database.query_opt(claim, &[&token]).await? else {
            return Err("a later holder has claimed the account".into());
        };
        let balance = row.get(0);

        let balance = booked(balance, amount).await; // as long as it takes: the lock is renewed

        // Write, unless a later holder has claimed the row meanwhile.
        let write = "UPDATE account SET balance = $2 WHERE id = 7 AND fence = $1";
        if database.execute(write, &[&token, &balance]).await? != 1 {
            return Err("somebody else has the account now".into());
        }
        Ok(()) // the guard is dropped, which releases the lock
    }

    async fn booked(balance: i64, amount: i64) -> i64 {
        super::BEFORE_THE_WRITE.with(|overtake| overtake());
        balance + amount
    }
}

tokio::task_local! {
    static BEFORE_THE_WRITE: Box<dyn Fn()>;
}

/// The lines of the function's body, as on the pages and above.
fn body(text: &str) -> Vec<&str> {
    let lines = text.lines().map(str::trim);
    let from = lines.skip_while(|line| !line.starts_with("let guard = locks.mutex(\"account:7\")"));
    from.take_while(|line| !line.starts_with("Ok(())"))
        .collect()
}

#[test]
fn pages_have_the_example_that_is_tested() {
    let tested = body(include_str!("postgres.rs"));
    assert_eq!(tested.len(), 17);
    assert_eq!(body(include_str!("../README.md")), tested);
    assert_eq!(body(include_str!("../docs/guide.md")), tested);
}

/// The URL of the database, which `leasehold::connect` takes too.
fn url(server: &PostgresServer, scheme: &str) -> String {
    let folder = server.folder().display().to_string().replace('/', "%2F");
    format!("{scheme}://owner@{folder}:{}/postgres", server.port())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_holder_of_the_first_example_is_refused() {
    let server = Arc::new(tokio::task::block_in_place(PostgresServer::start));
    let url = url(&server, "postgres");
    let execute = move |statement: &str| {
        tokio::task::block_in_place(|| server.execute("postgres", statement))
    };
    execute(leasehold::postgres::SCHEMA);
    let table = include_str!("../docs/guide.md").split("```sql").nth(1);
    execute(
        table
            .and_then(|it| it.split("```").next())
            .expect("a block"),
    );
    let (database, connection) = tokio_postgres::connect(&url, NoTls)
        .await
        .expect("connected");
    tokio::spawn(connection);
    let locks = leasehold::connect(&url).await.expect("connected");
    let add = async |before_the_write: &'static str| {
        let execute = execute.clone();
        let overtake: Box<dyn Fn()> = Box::new(move || drop(execute(before_the_write)));
        let added = BEFORE_THE_WRITE.scope(overtake, deposit(&locks, &database, 10));
        added.await.map_err(|error| error.to_string())
    };

    assert_eq!(add("SELECT 1").await, Ok(()));
    assert_eq!(execute("SELECT balance FROM account"), "110");

    // A later holder claims and writes, while this one computes. The next one is late from the start.
    let later = "UPDATE account SET fence = 1::bigint << 52, balance = 500";
    let refused = Err("somebody else has the account now".to_owned());
    assert_eq!(add(later).await, refused);
    assert!(add("SELECT 1").await.is_err());
    assert_eq!(execute("SELECT balance FROM account"), "500");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_url_leads_to_postgres() {
    let server = tokio::task::block_in_place(PostgresServer::start);
    server.execute("postgres", leasehold::postgres::SCHEMA);
    let mut mutexes = Vec::new();
    for scheme in ["postgres", "postgresql"] {
        let locks = leasehold::connect(&url(&server, scheme))
            .await
            .expect("connected");
        let backend = format!("{:?}", locks.backend());
        assert!(backend.starts_with("PostgresBackend"), "{backend}");
        mutexes.push(locks.mutex("k").expect("a good key"));
    }
    let guard = mutexes[0].lock().await.expect("acquired");
    let refused = mutexes[1].try_lock().await.expect("answered");
    assert!(refused.into_guard().is_none());
    guard.release().await.expect("released");
    drop(mutexes[1].lock().await.expect("acquired"));
}

fn blocking_server() -> (PostgresServer, String) {
    let server = PostgresServer::start();
    server.execute("postgres", leasehold::postgres::SCHEMA);
    let url = url(&server, "postgres");
    (server, url)
}

#[test]
fn blocking_locks_work() {
    let (_server, url) = blocking_server();
    let clients = [(); 2].map(|()| shared::connect(&url, RedisLibrary::RedisRs));
    shared::assert_works(&clients);
}

#[test]
fn end_of_a_blocking_program() {
    shared::end_of_a_program("end_of_a_blocking_program", blocking_server);
}
