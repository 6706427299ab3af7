//! Tests of the pages, the error messages, the metrics and the exports.

mod blocking;
mod connect;
mod deployment;
mod exports;
mod guarantees;
mod links;
mod messages;
mod metrics;
mod migration;
#[path = "../shared/mod.rs"]
mod shared;
