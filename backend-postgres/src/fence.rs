//! Claims keys, and begins fenced transactions.

use std::time::Duration;

use leasehold_api::{FencingToken, InvalidInput, Key, bounds};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Transaction, TransactionBuilder};

/// The SQLSTATE of the functions for a token that is too low.
const STALE: &str = "LH001";
/// The SQLSTATE of `leasehold.fence` for a key that is not claimed with the token.
const NOT_CLAIMED: &str = "LH003";

/// How long a claim or a fenced transaction waits for another transaction, unless the program says otherwise.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

// One round trip for all keys. They are locked in this order.
const CLAIM: &str = "SELECT leasehold.claim(name, token, $3, $4) \
    FROM unnest($1, $2) AS fence (name, token)";
const FENCE: &str = "SELECT leasehold.fence(name, token, $3, $4) \
    FROM unnest($1, $2) AS fence (name, token)";

/// Why a key was not claimed, or a transaction was not begun.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A later holder has claimed the key. The lock is lost.
    #[error("the fencing token {token} of {key} is stale")]
    #[non_exhaustive]
    Stale {
        /// The key.
        key: Key,
        /// The token.
        token: FencingToken,
    },
    /// The database doesn't have the claim any more. It was made in a transaction that was rolled back, or a crash
    /// or a failover of the database has lost it. Claim again, and read again what you have read.
    #[error("the claim of {key} with the fencing token {token} is gone")]
    #[non_exhaustive]
    NotClaimed {
        /// The key.
        key: Key,
        /// The token.
        token: FencingToken,
    },
    /// Another transaction with the key has not ended within [`Fence::lock_timeout`]. Try again. If that doesn't
    /// help, its process may be paused.
    #[error("another transaction with the same key has not ended within {waited:?}")]
    #[non_exhaustive]
    Busy {
        /// How long it was waited for.
        waited: Duration,
    },
    /// An argument is wrong. Nothing was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// The database failed, or its functions are missing or of another version: execute
    /// [`FENCE_SCHEMA`](crate::FENCE_SCHEMA).
    #[error("the database could not check the fencing token")]
    Database(#[source] Error),
}

/// Fences off earlier holders of a lock, on a database that [`FENCE_SCHEMA`](crate::FENCE_SCHEMA) was executed
/// on. The lock may live elsewhere, for example in Redis.
///
/// 1. [**Claim**](Self::claim) the key with the fencing token of your guard, once, before you read.
/// 2. **Begin each transaction through the [`Claim`]** that reads or writes what the lock protects.
///
/// Then:
///
/// - Once a holder has claimed, no transaction of an earlier holder begins any more, and none is left to commit. So
///   nobody writes between what the holder reads and what it writes, in whichever of its transactions.
/// - An earlier holder that has begun its transaction before may finish it, and the claim waits for that. So the
///   holder reads what the earlier one has written.
/// - A transaction is refused if the claim doesn't stand any more: because a later holder has claimed, or because the
///   database has lost the claim. It is not made again behind your back, because somebody may have written in the
///   meantime.
///
/// Between its transactions, the holder may also read without one, on the same server (a replica may lag).
///
/// # A paused process
/// A transaction keeps the next holder waiting until it ends, even if its process is paused. Set
/// `idle_in_transaction_session_timeout`, so that Postgres ends it. That setting doesn't end a transaction whose
/// process was paused while Postgres sent it a result, and neither does `statement_timeout`. So a claim waits for
/// [`lock_timeout`](Self::lock_timeout) at most. An administrator can end such a transaction with
/// `pg_terminate_backend`.
///
/// # Other client libraries
/// Use the functions, each as a statement of its own:
///
/// ```sql
/// SELECT leasehold.claim('invoice:42', 17);   -- once, before you read
///
/// BEGIN;
/// SELECT leasehold.fence('invoice:42', 17);   -- first in each transaction
/// SELECT total FROM invoices WHERE id = 42;
/// UPDATE invoices SET total = 150 WHERE id = 42;
/// COMMIT;
/// ```
///
/// If one transaction is all that you need, begin it with `leasehold.claim` instead, and leave `leasehold.fence` out.
///
/// Both functions take the key, the token, and two more arguments that may be left out: `key_prefix`, and `max_wait_ms`
/// (10,000 ms). They fail with the SQLSTATE
///
/// - `LH001` if the token is too low;
/// - `LH003` if the key is not claimed with the token: claim, and read again;
/// - `LH002` if the transaction has written before, or if the function is called within a savepoint or a block with
///   `EXCEPTION`. To fence several keys, call the function for each before you write;
/// - `55P03` if another transaction with the key has not ended in time;
/// - `22023` if an argument is `NULL` or out of range.
///
/// After a failure, the server refuses the transaction's further statements and its commit. **Not within a savepoint or
/// a block with `EXCEPTION`:** a transaction that rolls back to the savepoint goes on, and its next write is committed,
/// although the fence was refused. Some drivers set a savepoint before each statement (`ON_ERROR_ROLLBACK` in psql,
/// `autosave` in JDBC). Switch that off. The functions can't notice that the transaction has *read* before. In `REPEATABLE READ` and `SERIALIZABLE` that is
/// harmless: they then fail with a serialization failure if an earlier holder has written since.
///
/// They write, so they fail in a `READ ONLY` transaction. Holders with the same token, such as readers that overlap,
/// wait for each other's transactions, and in `REPEATABLE READ` and above they may get a serialization failure.
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
///     let claim = Fence::new().claim(client, guard.key(), guard.fencing_token()).await?;
///     let transaction = claim.begin(client.build_transaction()).await?;
///     let row = transaction.query_one("SELECT total FROM invoices WHERE id = 42", &[]).await?;
///     let total = row.get::<_, i64>(0) + amount;
///     transaction.execute("UPDATE invoices SET total = $1 WHERE id = 42", &[&total]).await?;
///     transaction.commit().await?;
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Fence {
    key_prefix: String,
    lock_timeout: Duration,
}

impl Default for Fence {
    fn default() -> Self {
        Self::new()
    }
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
            lock_timeout: LOCK_TIMEOUT,
        }
    }

    /// Sets the key prefix. Programs with different prefixes don't refuse each other. The default is empty. If you have
    /// set a prefix for the backend that the lock lives in, set the same one here.
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

    /// Sets how long a claim, and the begin of a transaction, wait for each other transaction with the same key: 1 ms
    /// to 1 h. The default is 10 s. Postgres measures it, in place of its setting `lock_timeout`.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// let fence = leasehold_postgres::Fence::new().lock_timeout(Duration::from_secs(60));
    /// ```
    #[must_use]
    pub const fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = timeout;
        self
    }

    /// Claims a key: from now on, no transaction with a lower token begins. Waits for the transactions with this
    /// key that have begun.
    ///
    /// Call it once for each token, before you read what the lock protects, and outside of a transaction. After
    /// an upgrade or a downgrade, the guard has a new token: claim again. It takes one round trip and one
    /// commit.
    ///
    /// **What you have read before counts no more**, also if you have claimed before with the same token.
    ///
    /// # Errors
    /// - [`FenceError::Stale`] if a later holder has claimed the key.
    /// - [`FenceError::Busy`] if another transaction with the key doesn't end in time.
    /// - [`FenceError::Invalid`], before any I/O, for a key or a prefix that contains a NUL character, which is
    ///   no text in Postgres; for the token 0; and for a token or a time that is out of range.
    /// - [`FenceError::Database`] if the database fails.
    ///
    /// # Cancel safety
    /// If you drop the future, the key may be claimed or not. Both are safe: claim it again. The connection is in
    /// use until the server has answered.
    ///
    /// # Examples
    /// See [`Fence`].
    pub async fn claim(
        &self,
        client: &Client,
        key: &Key,
        token: FencingToken,
    ) -> Result<Claim, FenceError> {
        self.claim_all(client, [(key, token)]).await
    }

    /// Claims several keys, as [`claim`](Self::claim) does with one, in one round trip and one commit.
    ///
    /// Give the keys in the order of [`MultiGuard::fencing_tokens`](leasehold_api::MultiGuard::fencing_tokens), or
    /// transactions with the same keys may deadlock; Postgres then ends one of them.
    ///
    /// # Errors
    /// Those of [`claim`](Self::claim), for the first key that fails. Then none is claimed.
    /// [`FenceError::Invalid`] if there are no keys.
    ///
    /// # Cancel safety
    /// That of [`claim`](Self::claim).
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
    ///     let claim = Fence::new().claim_all(client, guard.fencing_tokens()).await?;
    ///     let transaction = claim.begin(client.build_transaction()).await?;
    ///     // … reads and writes both accounts
    ///     transaction.commit().await?;
    ///     Ok(())
    /// }
    /// ```
    pub async fn claim_all<'k>(
        &self,
        client: &Client,
        tokens: impl IntoIterator<Item = (&'k Key, FencingToken)>,
    ) -> Result<Claim, FenceError> {
        let claim = Claim::new(self, tokens)?;
        let claimed = client.query_typed(CLAIM, &claim.parameters()).await;
        claimed.map_err(|error| claim.explain(error))?;
        Ok(claim)
    }
}

/// A key, or several, that a holder has claimed with its fencing token. Each of its transactions begins here.
///
/// It belongs to no connection. A clone is the same claim.
#[derive(Clone, Debug)]
#[must_use = "begin each transaction through the claim"]
pub struct Claim {
    keys: Vec<(Key, FencingToken)>,
    // The arguments of the functions.
    names: Vec<String>,
    tokens: Vec<i64>,
    key_prefix: String,
    lock_timeout: Duration,
    max_wait_ms: i32,
}

impl Claim {
    fn new<'k>(
        fence: &Fence,
        tokens: impl IntoIterator<Item = (&'k Key, FencingToken)>,
    ) -> Result<Self, InvalidInput> {
        let limits = Duration::from_millis(1)..=bounds::MAX_LEASE;
        bounds::check_time("lock_timeout", fence.lock_timeout, limits)?;
        check_text("key prefix", &fence.key_prefix)?;
        let keys = tokens.into_iter().map(|(key, token)| (key.clone(), token));
        let keys: Vec<_> = keys.collect();
        if keys.is_empty() {
            return Err(InvalidInput::setting("keys", "there are none to claim"));
        }
        for (key, token) in &keys {
            check_text("key", key.as_str())?;
            if !(1..1 << 53).contains(&token.get()) {
                let problem = format!("{token} is none of a backend: those are 1 to 2^53 - 1");
                return Err(InvalidInput::setting("fencing token", &problem));
            }
        }
        let names = keys.iter().map(|(key, _)| key.as_str().to_owned());
        Ok(Self {
            names: names.collect(),
            tokens: keys.iter().map(|it| it.1.get().cast_signed()).collect(),
            keys,
            key_prefix: fence.key_prefix.clone(),
            lock_timeout: fence.lock_timeout,
            max_wait_ms: i32::try_from(fence.lock_timeout.as_millis()).unwrap_or(i32::MAX),
        })
    }

    /// Begins a transaction, if the claim still stands. Waits for other transactions that were begun with the
    /// same keys.
    ///
    /// The transaction keeps the keys locked until it ends. It takes one round trip more than a transaction that
    /// is not fenced.
    ///
    /// # Errors
    /// - [`FenceError::Stale`] if a later holder has claimed a key.
    /// - [`FenceError::NotClaimed`] if the database has lost the claim.
    /// - [`FenceError::Busy`] if another transaction with a key doesn't end in time.
    /// - [`FenceError::Database`] if the database fails. In a transaction of the isolation level
    ///   `REPEATABLE READ` or above, that may be a serialization failure: try again. A `READ ONLY` transaction can't be
    ///   fenced.
    ///
    /// # Cancel safety
    /// If you drop the future, the transaction is rolled back, as soon as the server has answered.
    ///
    /// # Examples
    /// See [`Fence`].
    pub async fn begin<'a>(
        &self,
        transaction: TransactionBuilder<'a>,
    ) -> Result<Transaction<'a>, FenceError> {
        let transaction = transaction.start().await.map_err(FenceError::Database)?;
        let fenced = transaction.query_typed(FENCE, &self.parameters()).await;
        fenced.map_err(|error| self.explain(error))?;
        Ok(transaction)
    }

    // Poolers may not know a prepared statement, and it would take a second round trip. So the types are given.
    fn parameters(&self) -> [(&(dyn ToSql + Sync), Type); 4] {
        [
            (&self.names, Type::TEXT_ARRAY),
            (&self.tokens, Type::INT8_ARRAY),
            (&self.key_prefix, Type::TEXT),
            (&self.max_wait_ms, Type::INT4),
        ]
    }

    /// What an error of the functions means.
    fn explain(&self, error: Error) -> FenceError {
        // The detail of an error of the functions is the name of the key.
        let name = error.as_db_error().and_then(|error| error.detail());
        let found = self.keys.iter().find(|(key, _)| name == Some(key.as_str()));
        match (error.code().map(SqlState::code), found.cloned()) {
            (Some(STALE), Some((key, token))) => FenceError::Stale { key, token },
            (Some(NOT_CLAIMED), Some((key, token))) => FenceError::NotClaimed { key, token },
            _ if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => FenceError::Busy {
                waited: self.lock_timeout,
            },
            _ => FenceError::Database(error),
        }
    }
}

fn check_text(what: &'static str, text: &str) -> Result<(), InvalidInput> {
    if text.contains('\0') {
        return Err(InvalidInput::setting(
            what,
            "Postgres has no text with a NUL character",
        ));
    }
    Ok(())
}
