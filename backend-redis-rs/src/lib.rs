//! leasehold's LockBackend on the redis crate

mod backend;
mod error;
mod link;
mod notices;
mod wire;

pub use backend::RedisBackend;
pub use error::ConnectError;
pub use leasehold_redis_protocol::Options;
