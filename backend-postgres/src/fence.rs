//! Fences a transaction.

use leasehold_api::{FencingToken, Key};
use tokio_postgres::Transaction;

/// The SQLSTATE of the failure of `leasehold.fence`.
const STALE: &str = "LH001";

/// Why a transaction was not fenced. The transaction is aborted: no write of it takes effect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A transaction with a higher token was first. The lock is lost.
    #[error("the fencing token {token} of {key} is stale")]
    #[non_exhaustive]
    Stale {
        /// The key.
        key: Key,
        /// The token.
        token: FencingToken,
    },
    /// The database failed, or the function is missing.
    #[error("the transaction could not be fenced")]
    Database(#[source] tokio_postgres::Error),
}

/// Refuses the transaction unless `token` is at least as high as every token that a transaction has
/// carried for `key`. Every write of a fenced transaction is fenced, whichever tables it writes.
///
/// Call it with the lock's key and with [`Guard::fencing_token`](leasehold_api::Guard::fencing_token). It
/// keeps one row for each key, and locks it until the transaction ends. So call it last, just before the
/// commit: a holder that is paused in between makes the next one wait.
///
/// Other client libraries execute `SELECT leasehold.fence('invoice:42', 17)`, with the same effect.
///
/// The key has no prefix. A key that contains a NUL character can't be fenced: it is no text in Postgres.
///
/// # Errors
/// - [`FenceError::Stale`] if a transaction with a higher token was committed.
/// - [`FenceError::Database`] if the statement fails for another reason. In a transaction of the isolation
///   level `REPEATABLE READ` or above, that may be a serialization failure. Try the transaction again.
///
/// In both cases the server refuses further statements and the commit.
///
/// # Cancel safety
/// If you drop the future, roll the transaction back.
///
/// # Examples
/// ```no_run
/// use leasehold_api::{Key, MutexGuard};
/// use leasehold_postgres::{fence, tokio_postgres};
///
/// async fn pay(
///     client: &mut tokio_postgres::Client,
///     key: &Key,
///     guard: &MutexGuard,
/// ) -> Result<(), Box<dyn std::error::Error>> {
///     let transaction = client.transaction().await?;
///     transaction.execute("UPDATE invoices SET paid = true WHERE id = 42", &[]).await?;
///     fence(&transaction, key, guard.fencing_token()).await?;
///     transaction.commit().await?;
///     Ok(())
/// }
/// ```
pub async fn fence(
    transaction: &Transaction<'_>,
    key: &Key,
    token: FencingToken,
) -> Result<(), FenceError> {
    // Tokens are below 2^53.
    let number = i64::try_from(token.get()).unwrap_or(i64::MAX);
    let statement = "SELECT leasehold.fence($1, $2)";
    let result = transaction
        .execute(statement, &[&key.as_str(), &number])
        .await;
    match result {
        Ok(_) => Ok(()),
        Err(error) if error.code().is_some_and(|code| code.code() == STALE) => {
            let key = key.clone();
            Err(FenceError::Stale { key, token })
        }
        Err(error) => Err(FenceError::Database(error)),
    }
}
