//! Additions to an account by whoever holds its lock, such that a holder that wakes up late is refused.
//!
//! Each module is for one client library, to copy from. All have the same order: claim, read, write. The tests
//! do it in a wrong order, and see that the database refuses.
//!
//! - [`postgres_by_sqlx`]: `sqlx` on Postgres, with the functions of `leasehold::postgres::FENCE_SCHEMA`
//! - [`postgres_by_tokio_postgres`]: the same through `leasehold::postgres::Fence`
//! - [`sqlite_by_sqlx`]: `sqlx` on SQLite, with a column of the row

pub mod postgres_by_sqlx;
pub mod postgres_by_tokio_postgres;
pub mod sqlite_by_sqlx;

/// Why an addition was refused.
#[derive(Debug)]
pub enum Refused {
    /// A later holder has claimed the account. Stop, and take the lock again.
    Stale,
    /// The database doesn't have the claim. Claim, and read again.
    NotClaimed,
    /// Anything else.
    Database(Box<dyn std::error::Error + Send + Sync>),
}
