//! A lock server in memory and in virtual time, for tests.

mod backend;
mod choices;
mod client;
mod clock;
mod connection;
mod control;
mod faults;
mod gate;
mod log;
mod options;
mod queue;
mod runtime;
mod server;
mod store;
mod timeline;
mod world;

pub use backend::SimBackend;
pub use faults::Fault;
pub use log::{Answer, Call, ClientEvent, Entry, Event, ServerEvent, replay};
pub use options::{Latency, SimOptions};
pub use server::SimServer;
pub use store::Data;
