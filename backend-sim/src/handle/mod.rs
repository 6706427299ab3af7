//! The public handles (the server, its clients, tasks), and the environment variables that choose a
//! run.

mod backend;
mod control;
pub(crate) mod environment;
mod failover;
mod runtime;
mod server;
mod tasks;

pub use backend::SimBackend;
pub use server::SimServer;
pub use tasks::JoinHandle;
