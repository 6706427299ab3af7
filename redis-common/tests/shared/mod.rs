//! Tests of all Redis backends on real servers. Each backend includes them in its own tests, where
//! `crate::client` connects and `crate::constructors` lists the constructors.

mod checks;
mod connecting;
mod events;
mod failover;
mod faults;
mod recovery;
mod refusals;
mod renewal_thread;
mod runtimes;
mod subscription;
pub(crate) mod support;
mod tls;
