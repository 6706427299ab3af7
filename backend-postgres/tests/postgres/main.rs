//! What a real server shows: lost connections, restarts, rights, and fenced transactions.

#[path = "../support/mod.rs"]
mod support;

mod connections;
mod fencing;
mod rows;
mod setup;
