//! Tests of the pages, the error messages and the metrics.

mod links;
mod messages;
mod metrics;
