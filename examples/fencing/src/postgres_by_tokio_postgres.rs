//! `tokio-postgres`, which leasehold brings along. `Fence` keeps the order.

use leasehold::postgres::{Claim, FenceError, tokio_postgres};

use crate::Refused;

/// Adds to an account under the claim, which `Fence::claim` made. Returns its balance.
///
/// # Cancel safety
/// If you drop the future, the addition may be committed or not.
pub async fn add(
    client: &mut tokio_postgres::Client,
    claim: &Claim,
    id: i64,
    amount: i64,
) -> Result<i64, Refused> {
    let transaction = claim
        .begin(client.build_transaction())
        .await
        .map_err(refused)?;
    let read = "SELECT balance FROM account WHERE id = $1";
    let row = transaction.query_one(read, &[&id]).await.map_err(failed)?;
    let balance = row.get::<_, i64>(0) + amount;
    let write = "UPDATE account SET balance = $2 WHERE id = $1";
    transaction
        .execute(write, &[&id, &balance])
        .await
        .map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(balance)
}

/// What the errors of a claim and of its transactions say.
pub fn refused(error: FenceError) -> Refused {
    match error {
        FenceError::Stale { .. } => Refused::Stale,
        FenceError::NotClaimed { .. } => Refused::NotClaimed,
        error => Refused::Database(error.into()),
    }
}

fn failed(error: tokio_postgres::Error) -> Refused {
    Refused::Database(error.into())
}
