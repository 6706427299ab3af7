//! `sqlx` on SQLite 3.35 or later. Each row that the lock protects has a column `fence`.
//!
//! A write finds its row only if it was claimed with the same token, so a claim that was forgotten is noticed.

use leasehold::FencingToken;
use sqlx::SqlitePool;

use crate::Refused;

/// Claims an account for a token, and reads its balance.
///
/// # Cancel safety
/// If you drop the future, the account may be claimed or not. Claim it again.
pub async fn claim(pool: &SqlitePool, id: i64, token: FencingToken) -> Result<i64, Refused> {
    // One statement, so that nobody comes between the claim and the read.
    sqlx::query_scalar(
        "UPDATE account SET fence = ?1 WHERE id = ?2 AND fence <= ?1 RETURNING balance",
    )
    .bind(token.get().cast_signed())
    .bind(id)
    .fetch_optional(pool)
    .await
    .map_err(failed)?
    .ok_or(Refused::Stale)
}

/// Writes the balance of an account that was claimed with this token.
///
/// # Cancel safety
/// If you drop the future, the balance may be written or not.
pub async fn write(
    pool: &SqlitePool,
    id: i64,
    balance: i64,
    token: FencingToken,
) -> Result<(), Refused> {
    let written = sqlx::query("UPDATE account SET balance = ?3 WHERE id = ?2 AND fence = ?1")
        .bind(token.get().cast_signed())
        .bind(id)
        .bind(balance)
        .execute(pool)
        .await
        .map_err(failed)?;
    if written.rows_affected() == 1 {
        return Ok(());
    }
    // Only for the message: the write was refused already.
    let fence: Option<i64> = sqlx::query_scalar("SELECT fence FROM account WHERE id = ?1")
        .bind(id)
        .fetch_optional(pool)
        .await
        .map_err(failed)?;
    match fence > Some(token.get().cast_signed()) {
        true => Err(Refused::Stale),
        false => Err(Refused::NotClaimed),
    }
}

fn failed(error: sqlx::Error) -> Refused {
    Refused::Database(error.into())
}
