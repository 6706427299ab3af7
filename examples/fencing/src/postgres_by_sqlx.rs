//! `sqlx` on Postgres. The database has the functions of `leasehold::postgres::FENCE_SCHEMA`.
//!
//! [`Claim`] is what keeps the order: a fenced transaction begins only through it, and only
//! [`claim`] makes one.

use leasehold::{FencingToken, Key};
use sqlx::{PgPool, PgTransaction};

use crate::Refused;

/// A key that a holder has claimed.
#[derive(Clone, Debug)]
pub struct Claim {
    key: String,
    token: i64,
}

/// Claims a key. Do it once, before you read.
///
/// # Cancel safety
/// If you drop the future, the key may be claimed or not. Claim it again.
pub async fn claim(pool: &PgPool, key: &Key, token: FencingToken) -> Result<Claim, Refused> {
    let claim = Claim {
        key: key.as_str().to_owned(),
        token: token.get().cast_signed(),
    };
    // Not in a transaction: the claim must be committed before you read.
    sqlx::query("SELECT leasehold.claim($1, $2)")
        .bind(&claim.key)
        .bind(claim.token)
        .execute(pool)
        .await
        .map_err(refused)?;
    Ok(claim)
}

impl Claim {
    /// Begins a transaction, if the claim still stands.
    ///
    /// # Cancel safety
    /// If you drop the future, the transaction is rolled back.
    pub async fn begin(&self, pool: &PgPool) -> Result<PgTransaction<'static>, Refused> {
        let mut transaction = pool.begin().await.map_err(refused)?;
        // First, and as a statement of its own.
        sqlx::query("SELECT leasehold.fence($1, $2)")
            .bind(&self.key)
            .bind(self.token)
            .execute(&mut *transaction)
            .await
            .map_err(refused)?;
        Ok(transaction)
    }
}

/// Adds to an account under the claim. Returns its balance.
///
/// # Cancel safety
/// If you drop the future, the addition may be committed or not.
pub async fn add(pool: &PgPool, claim: &Claim, id: i64, amount: i64) -> Result<i64, Refused> {
    let mut transaction = claim.begin(pool).await?;
    let balance: i64 = sqlx::query_scalar("SELECT balance FROM account WHERE id = $1")
        .bind(id)
        .fetch_one(&mut *transaction)
        .await
        .map_err(refused)?;
    sqlx::query("UPDATE account SET balance = $2 WHERE id = $1")
        .bind(id)
        .bind(balance + amount)
        .execute(&mut *transaction)
        .await
        .map_err(refused)?;
    transaction.commit().await.map_err(refused)?;
    Ok(balance + amount)
}

/// What the SQLSTATE of an error says.
pub fn refused(error: sqlx::Error) -> Refused {
    match error
        .as_database_error()
        .and_then(|error| error.code())
        .as_deref()
    {
        Some("LH001") => Refused::Stale,
        Some("LH003") => Refused::NotClaimed,
        _ => Refused::Database(error.into()),
    }
}
