//! Locks as tutorials write them, each as a small backend on a real Redis server.
//!
//! The conformance suite must reject each lock that has a fault, by the case that shows this very
//! fault. A specimen that passes is a hole in the suite. `docs/specimens.md` has the list.

mod counting;
mod list;
mod lock;
mod mutexes;
mod page;
mod readers_writers;
mod specimen;
mod store;

pub use list::SPECIMENS;
pub use page::page;
pub use specimen::{Clients, Fault, Specimen};
