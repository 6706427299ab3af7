//! Begins fenced transactions.

use leasehold_api::{FencingToken, Key};
use tokio_postgres::types::Type;
use tokio_postgres::{Transaction, TransactionBuilder};

/// The SQLSTATE of `leasehold.fence` for a token that is too low.
const STALE: &str = "LH001";

/// Why a transaction was not begun.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A later holder has begun a transaction. The lock is lost.
    #[error("the fencing token {token} of {key} is stale")]
    #[non_exhaustive]
    Stale {
        /// The key.
        key: Key,
        /// The token.
        token: FencingToken,
    },
    /// The database failed, or the function `leasehold.fence` is missing.
    #[error("the transaction could not be fenced")]
    Database(#[source] tokio_postgres::Error),
}

/// Begins transactions that only the latest holder of a lock can begin, on a database that
/// [`FENCE_SCHEMA`](crate::FENCE_SCHEMA) was executed on. The lock may live elsewhere, for example in Redis.
///
/// **Begin each transaction this way that reads or writes what the lock protects.** Then:
///
/// - Once a holder has begun its first transaction, no transaction of an earlier holder begins any more, and
///   none is left to commit. So nobody writes between what the holder reads and what it writes.
/// - An earlier holder that has begun its transaction first may finish it, and the next holder's transaction
///   waits for that. Then it reads what the earlier one has written.
///
/// If you read in one transaction, compute for a long time, and write in another, begin both this way. The
/// second one is refused if a later holder came in between. After the first one has been committed, you
/// may also read without a transaction, on the same server (a replica may lag).
///
/// A transaction keeps the next holder waiting until it ends, even if its process is paused. Set
/// `idle_in_transaction_session_timeout`, so that Postgres ends it.
///
/// # Other client libraries
/// Execute the function `leasehold.fence` as the first statement of each transaction, as a statement of its own:
///
/// ```sql
/// BEGIN;
/// SELECT leasehold.fence('invoice:42', 17);   -- with a prefix: leasehold.fence('invoice:42', 17, 'billing:')
/// SELECT total FROM invoices WHERE id = 42;
/// UPDATE invoices SET total = 150 WHERE id = 42;
/// COMMIT;
/// ```
///
/// It fails with the SQLSTATE
///
/// - `LH001` if the token is too low;
/// - `LH002` if the transaction has written before, or if it is called within a savepoint or a block with
///   `EXCEPTION`: a program that rolls back to the savepoint would undo the failure and go on. Some
///   drivers set a savepoint before each statement. Switch that off. (`ON_ERROR_ROLLBACK` in psql, `autosave`
///   in JDBC.)
///
/// After a failure, the server refuses the transaction's further statements and its commit. The function
/// can't notice that the transaction has *read* before. In `REPEATABLE READ` and `SERIALIZABLE` that is
/// harmless: the function then fails with a serialization failure if an earlier holder has written since.
///
/// # Examples
/// ```no_run
/// use leasehold_api::MutexGuard;
/// use leasehold_postgres::{Fence, tokio_postgres};
///
/// async fn add(
///     client: &mut tokio_postgres::Client,
///     guard: &MutexGuard,
///     amount: i64,
/// ) -> Result<(), Box<dyn std::error::Error>> {
///     let fence = Fence::new();
///     let begin = client.build_transaction();
///     let transaction = fence.begin(begin, guard.key(), guard.fencing_token()).await?;
///     let row = transaction.query_one("SELECT total FROM invoices WHERE id = 42", &[]).await?;
///     let total = row.get::<_, i64>(0) + amount;
///     transaction.execute("UPDATE invoices SET total = $1 WHERE id = 42", &[&total]).await?;
///     transaction.commit().await?;
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Fence {
    key_prefix: String,
}

impl Fence {
    /// A fence without a key prefix.
    ///
    /// # Examples
    /// ```
    /// let fence = leasehold_postgres::Fence::new();
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            key_prefix: String::new(),
        }
    }

    /// Sets the key prefix. Programs with different prefixes don't refuse each other. Use the prefix of the
    /// backend that the lock lives in. The default is empty.
    ///
    /// # Examples
    /// ```
    /// use leasehold_postgres::{Fence, Options};
    ///
    /// let options = Options::new().key_prefix("billing:");
    /// let fence = Fence::new().key_prefix("billing:");
    /// ```
    #[must_use]
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = prefix.into();
        self
    }

    /// Begins a transaction, unless a transaction with a higher token for the key was committed. Waits for
    /// other transactions that were begun with this key to end.
    ///
    /// It keeps one row for each key, which the transaction locks until it ends. The key, the prefix and the
    /// token take one round trip.
    ///
    /// # Errors
    /// - [`FenceError::Stale`] if a transaction with a higher token was committed.
    /// - [`FenceError::Database`] if the database fails. In a transaction of the isolation level
    ///   `REPEATABLE READ` or above, that may be a serialization failure: try again. A key or a prefix that
    ///   contains a NUL character can't be fenced, because it is no text in Postgres.
    ///
    /// # Cancel safety
    /// If you drop the future, the transaction is rolled back.
    ///
    /// # Examples
    /// See [`Fence`].
    pub async fn begin<'a>(
        &self,
        transaction: TransactionBuilder<'a>,
        key: &Key,
        token: FencingToken,
    ) -> Result<Transaction<'a>, FenceError> {
        self.begin_all(transaction, [(key, token)]).await
    }

    /// Begins a transaction with several keys, as [`begin`](Self::begin) does with one.
    ///
    /// Give the keys in the order of [`MultiGuard::fencing_tokens`](leasehold_api::MultiGuard::fencing_tokens), or
    /// transactions with the same keys may deadlock; Postgres then ends one of them.
    ///
    /// # Errors
    /// Those of [`begin`](Self::begin), for the first key that fails.
    ///
    /// # Cancel safety
    /// If you drop the future, the transaction is rolled back.
    ///
    /// # Examples
    /// ```no_run
    /// use leasehold_api::MultiGuard;
    /// use leasehold_postgres::{Fence, tokio_postgres};
    ///
    /// async fn transfer(
    ///     client: &mut tokio_postgres::Client,
    ///     guard: &MultiGuard,
    /// ) -> Result<(), Box<dyn std::error::Error>> {
    ///     let fence = Fence::new();
    ///     let begin = client.build_transaction();
    ///     let transaction = fence.begin_all(begin, guard.fencing_tokens()).await?;
    ///     // … reads and writes both accounts
    ///     transaction.commit().await?;
    ///     Ok(())
    /// }
    /// ```
    pub async fn begin_all<'a, 'k>(
        &self,
        transaction: TransactionBuilder<'a>,
        tokens: impl IntoIterator<Item = (&'k Key, FencingToken)>,
    ) -> Result<Transaction<'a>, FenceError> {
        let transaction = transaction.start().await.map_err(FenceError::Database)?;
        for (key, token) in tokens {
            self.fence(&transaction, key, token).await?;
        }
        Ok(transaction)
    }

    async fn fence(
        &self,
        transaction: &Transaction<'_>,
        key: &Key,
        token: FencingToken,
    ) -> Result<(), FenceError> {
        // Tokens are below 2^53.
        let number = i64::try_from(token.get()).unwrap_or(i64::MAX);
        // Poolers may not know a prepared statement, and it would take a second round trip.
        let result = transaction
            .query_typed(
                "SELECT leasehold.fence($1, $2, $3)",
                &[
                    (&key.as_str(), Type::TEXT),
                    (&number, Type::INT8),
                    (&self.key_prefix, Type::TEXT),
                ],
            )
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
}
