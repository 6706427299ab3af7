//! The accounts: on Postgres, and in memory for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use deadpool_postgres::Pool;

use crate::Deposit;

pub type DatabaseError = Box<dyn std::error::Error + Send + Sync>;

/// What a claim has read.
#[derive(Clone, Copy, Debug)]
pub struct Account {
    pub balance: i64,
    /// Whether the request was booked before.
    pub has_request: bool,
}

pub trait Accounts: Clone + Send + Sync + 'static {
    /// Claims the account for the holder with this token, and reads it. `None` if a later holder has claimed it.
    fn claim(
        &self,
        id: i64,
        token: i64,
        request: i64,
    ) -> impl Future<Output = Result<Option<Account>, DatabaseError>> + Send;
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
    CREATE TABLE deposit (request BIGINT PRIMARY KEY, account BIGINT NOT NULL, amount BIGINT NOT NULL);";

impl Accounts for Pool {
    async fn claim(
        &self,
        id: i64,
        token: i64,
        request: i64,
    ) -> Result<Option<Account>, DatabaseError> {
        let database = self.get().await?;
        let claim = "UPDATE account SET fence = $2 WHERE id = $1 AND fence <= $2 RETURNING balance";
        let Some(row) = database.query_opt(claim, &[&id, &token]).await? else {
            return Ok(None);
        };
        // A statement of its own: within the claim, it would see what was there before the claim waited.
        let seen = "SELECT EXISTS (SELECT FROM deposit WHERE request = $1)";
        let has_request = database.query_one(seen, &[&request]).await?.get(0);
        let balance = row.get(0);
        Ok(Some(Account {
            balance,
            has_request,
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
            INSERT INTO deposit SELECT $4, id, $5 FROM written";
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

/// Accounts that come into being with their first deposit.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Mutex<BTreeMap<i64, Row>>>);

#[derive(Debug, Default)]
struct Row {
    balance: i64,
    fence: i64,
    requests: BTreeSet<i64>,
}

impl Memory {
    fn with<T>(&self, id: i64, act: impl FnOnce(&mut Row) -> T) -> T {
        act(self
            .0
            .lock()
            .expect("no request panics")
            .entry(id)
            .or_default())
    }

    pub fn balance(&self, id: i64) -> i64 {
        self.with(id, |row| row.balance)
    }
}

impl Accounts for Memory {
    async fn claim(
        &self,
        id: i64,
        token: i64,
        request: i64,
    ) -> Result<Option<Account>, DatabaseError> {
        Ok(self.with(id, |row| {
            let claimed = row.fence <= token;
            claimed.then(|| {
                row.fence = token;
                let has_request = row.requests.contains(&request);
                Account {
                    balance: row.balance,
                    has_request,
                }
            })
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
        Ok(self.with(id, |row| {
            let claimed = row.fence == token;
            if claimed {
                row.balance = balance;
                row.requests.insert(deposit.request);
            }
            claimed
        }))
    }

    async fn ping(&self) -> Result<(), DatabaseError> {
        Ok(())
    }
}
