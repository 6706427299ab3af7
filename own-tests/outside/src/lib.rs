//! What each feature of the facade adds to it.

pub use leasehold::LockClient;
#[cfg(feature = "fred")]
pub use leasehold::fred_rs::FredBackend;
#[cfg(feature = "postgres")]
pub use leasehold::postgres::PostgresBackend;
#[cfg(feature = "quorum")]
pub use leasehold::quorum::Quorum;
#[cfg(feature = "redis-rs")]
pub use leasehold::redis_rs::RedisBackend;
#[cfg(feature = "sim")]
pub use leasehold::sim::SimServer;
#[cfg(feature = "store")]
pub use leasehold::store::StoreBackend;
