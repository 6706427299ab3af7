//! Real Redis servers for tests, and a proxy that loses what it is told to lose.
//!
//! - [`RedisServer`] starts a server of its own in a temporary folder, and can kill, restart,
//!   stop and continue it. It is gone when the value is dropped, when the test panics, and when
//!   the test process itself is killed.
//! - [`FaultProxy`] stands between a client and a server and eats requests or replies, delays
//!   them, goes silent, or cuts connections.
//!
//! A missing `redis-server` is a failure, never a skipped test.

mod process;
mod proxy;
mod resp;
mod server;

pub use proxy::FaultProxy;
pub use resp::Request;
pub use server::{Data, RedisServer, ServerOptions, Version};
