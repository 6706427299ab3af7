//! Tests of the pages, the error messages, the metrics and the exports.

mod cluster;
mod connect;
mod exports;
mod links;
mod messages;
mod metrics;
mod migration;
mod sentinel;
