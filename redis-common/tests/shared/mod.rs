//! Tests on real servers of what all Redis backends do alike. Each backend compiles them into its
//! own tests, where `crate::client` connects and `crate::constructors` lists the constructors.

mod faults;
pub(crate) mod recovery;
mod refusals;
mod renewal_thread;
mod runtimes;
mod subscription;
pub(crate) mod support;
