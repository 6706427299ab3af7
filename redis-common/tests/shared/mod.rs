//! Tests on real servers of what all Redis backends do alike. Each backend compiles them into its
//! own tests, where `crate::client` connects and `crate::ways` lists the ways to make a backend.

mod faults;
mod guardian;
mod notices;
pub(crate) mod recovery;
mod refusals;
mod runtimes;
pub(crate) mod support;
