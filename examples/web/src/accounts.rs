//! The accounts: on Postgres, and in memory for tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use deadpool_postgres::Pool;

use crate::Deposit;

pub type DatabaseError = Box<dyn std::error::Error + Send + Sync>;

/// What a claim has found.
#[derive(Clone, Copy, Debug)]
pub enum Claim {
    Claimed(Account),
    /// A later holder has claimed the account.
    Stale,
    NoAccount,
}

#[derive(Clone, Copy, Debug)]
pub struct Account {
    pub balance: i64,
    /// The amount that was booked for this request before.
    pub booked: Option<i64>,
}

pub trait Accounts: Clone + Send + Sync + 'static {
    /// Claims the account for the holder with this token, and reads it.
    fn claim(
        &self,
        id: i64,
        token: i64,
        request: i64,
    ) -> impl Future<Output = Result<Claim, DatabaseError>> + Send;
    /// Writes the new balance and the request, if the account is still claimed with this token.
    fn book(
        &self,
        id: i64,
        token: i64,
        deposit: &Deposit,
        balance: i64,
    ) -> impl Future<Output = Result<bool, DatabaseError>> + Send;
    fn ping(&self) -> impl Future<Output = Result<(), DatabaseError>> + Send;
}

pub const SCHEMA: &str = "
    CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, fence BIGINT NOT NULL DEFAULT 0);
    CREATE TABLE deposit (account BIGINT, request BIGINT, amount BIGINT NOT NULL, PRIMARY KEY (account, request));";

impl Accounts for Pool {
    async fn claim(&self, id: i64, token: i64, request: i64) -> Result<Claim, DatabaseError> {
        let database = self.get().await?;
        let claim = "UPDATE account SET fence = $2 WHERE id = $1 AND fence <= $2 RETURNING balance";
        let Some(row) = database.query_opt(claim, &[&id, &token]).await? else {
            let account = "SELECT FROM account WHERE id = $1";
            return Ok(match database.query_opt(account, &[&id]).await? {
                Some(_) => Claim::Stale,
                None => Claim::NoAccount,
            });
        };
        // A statement of its own: within the claim, it would see what was there before the claim waited.
        let seen = "SELECT amount FROM deposit WHERE account = $1 AND request = $2";
        let seen = database.query_opt(seen, &[&id, &request]).await?;
        Ok(Claim::Claimed(Account {
            balance: row.get(0),
            booked: seen.map(|deposit| deposit.get(0)),
        }))
    }

    async fn book(
        &self,
        id: i64,
        token: i64,
        deposit: &Deposit,
        balance: i64,
    ) -> Result<bool, DatabaseError> {
        let write = "WITH written AS (UPDATE account SET balance = $3 WHERE id = $1 AND fence = $2 RETURNING id)
            INSERT INTO deposit (account, request, amount) SELECT id, $4, $5 FROM written";
        let database = self.get().await?;
        let values: [&(dyn deadpool_postgres::tokio_postgres::types::ToSql + Sync); 5] =
            [&id, &token, &balance, &deposit.request, &deposit.amount];
        Ok(database.execute(write, &values).await? == 1)
    }

    async fn ping(&self) -> Result<(), DatabaseError> {
        self.get().await?.simple_query("").await?;
        Ok(())
    }
}

/// Accounts in memory.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Mutex<BTreeMap<i64, Row>>>);

#[derive(Debug, Default)]
struct Row {
    balance: i64,
    fence: i64,
    /// The amount of each request.
    deposits: BTreeMap<i64, i64>,
}

impl Memory {
    /// Empty accounts with these ids.
    pub fn new(ids: impl IntoIterator<Item = i64>) -> Self {
        let rows = ids.into_iter().map(|id| (id, Row::default()));
        Self(Arc::new(Mutex::new(rows.collect())))
    }

    fn rows(&self) -> MutexGuard<'_, BTreeMap<i64, Row>> {
        self.0.lock().expect("no request panics")
    }

    pub fn balance(&self, id: i64) -> i64 {
        self.rows()[&id].balance
    }
}

impl Accounts for Memory {
    async fn claim(&self, id: i64, token: i64, request: i64) -> Result<Claim, DatabaseError> {
        let mut rows = self.rows();
        let Some(row) = rows.get_mut(&id) else {
            return Ok(Claim::NoAccount);
        };
        if row.fence > token {
            return Ok(Claim::Stale);
        }
        row.fence = token;
        Ok(Claim::Claimed(Account {
            balance: row.balance,
            booked: row.deposits.get(&request).copied(),
        }))
    }

    async fn book(
        &self,
        id: i64,
        token: i64,
        deposit: &Deposit,
        balance: i64,
    ) -> Result<bool, DatabaseError> {
        tokio::task::yield_now().await; // where a request can be paused, or dropped
        let mut rows = self.rows();
        let Some(row) = rows.get_mut(&id).filter(|row| row.fence == token) else {
            return Ok(false);
        };
        row.balance = balance;
        row.deposits.insert(deposit.request, deposit.amount);
        Ok(true)
    }

    async fn ping(&self) -> Result<(), DatabaseError> {
        Ok(())
    }
}
