//! Tests of all Redis backends with Sentinel. Each backend includes them in its own tests, where `crate::client`
//! connects.

mod events;
#[allow(dead_code, reason = "the tests of single servers use the rest")]
mod requests;
mod sentinel;
#[allow(
    dead_code,
    unused_imports,
    reason = "the tests of single servers use the rest"
)]
mod support;
