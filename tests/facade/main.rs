//! The pages, the error messages and the metrics that users see.

mod links;
mod messages;
mod metrics;
