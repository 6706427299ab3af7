//! Plain data about a run: events, messages, faults, and the log that keeps them.

mod data;
mod event;
mod fault;
mod log;
mod message;

pub use data::{Data, Tail};
pub use event::{Call, ClientEvent, Entry, Event, Reads, ServerAnswer, ServerEvent};
pub use fault::Fault;
pub use message::{Content, Fate, Message};

pub(crate) use log::Log;
