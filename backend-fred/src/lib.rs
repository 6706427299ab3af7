//! leasehold's LockBackend on the fred crate

mod backend;
mod error;
mod link;
mod notices;
mod wire;

pub use backend::FredBackend;
pub use error::ConnectError;
pub use leasehold_redis_protocol::Options;
