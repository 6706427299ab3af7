//! Fenced writes with `mysql_async`. Each row that the lock protects has a column `fence`.
//!
//! ```sh
//! cargo run --example fenced -- mysql://locks@localhost/shop
//! ```

use leasehold_api::{FencingToken, LockClient};
use leasehold_mysql::MysqlBackend;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder, TxOpts};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Connects to the database of the accounts.
///
/// # Cancel safety
/// If you drop the future, the connection is closed.
pub(crate) async fn connect(url: &str) -> Result<Conn, Failure> {
    let opts = OptsBuilder::from_opts(mysql_async::Opts::from_url(url)?);
    // Otherwise, a second claim with the same token finds no row, because it changes none.
    Ok(Conn::new(opts.client_found_rows(true)).await?)
}

/// Claims an account for a token, and reads its balance. `None` if a later holder has claimed it.
///
/// # Cancel safety
/// If you drop the future, the account may be claimed or not. Claim it again, over another connection.
pub(crate) async fn claim(
    conn: &mut Conn,
    id: u64,
    token: FencingToken,
) -> Result<Option<i64>, Failure> {
    let mut transaction = conn.start_transaction(TxOpts::default()).await?;
    // The first statement: what the `SELECT` sees is from after it.
    let claim = "UPDATE account SET fence = ? WHERE id = ? AND fence <= ?";
    let values = (token.get(), id, token.get());
    transaction.exec_drop(claim, values).await?;
    let balance = match transaction.affected_rows() {
        0 => None,
        _ => {
            let balance = "SELECT balance FROM account WHERE id = ?";
            transaction.exec_first(balance, (id,)).await?
        }
    };
    transaction.commit().await?;
    Ok(balance)
}

/// Writes the balance of an account that was claimed with this token. `false` if it was not, or a later holder has
/// claimed it since.
///
/// # Cancel safety
/// If you drop the future, the balance may be written or not.
pub(crate) async fn write(
    conn: &mut Conn,
    id: u64,
    balance: i64,
    token: FencingToken,
) -> Result<bool, Failure> {
    let write = "UPDATE account SET balance = ? WHERE id = ? AND fence = ?";
    conn.exec_drop(write, (balance, id, token.get())).await?;
    Ok(conn.affected_rows() == 1)
}

/// Adds to a balance while it holds the lock of the account.
#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::args().nth(1).ok_or("the URL is missing")?;
    let mut database = connect(&url).await?;
    let accounts = "CREATE TABLE IF NOT EXISTS account
        (id BIGINT UNSIGNED PRIMARY KEY, balance BIGINT NOT NULL, fence BIGINT UNSIGNED NOT NULL)";
    database.query_drop(accounts).await?;
    let account = "INSERT IGNORE INTO account VALUES (7, 0, 0)";
    database.query_drop(account).await?;

    let locks = LockClient::new(MysqlBackend::connect(&url).await?);
    let guard = locks.mutex("account:7")?.lock().await?;
    let token = guard.fencing_token();
    let balance = claim(&mut database, 7, token).await?.ok_or("late")?;
    if !write(&mut database, 7, balance + 1, token).await? {
        return Err("late".into());
    }
    guard.release().await?;
    println!("the balance is {}", balance + 1);
    Ok(())
}
