//! Tests of all Redis backends on real servers. Each backend includes them in its own tests, where
//! `crate::client` connects and `crate::constructors` lists the constructors.

mod checks;
mod connecting;
mod drops;
mod events;
mod failover;
pub(crate) mod faults;
mod loading;
pub(crate) mod lossy;
mod pace;
mod recording;
mod recovery;
mod refusals;
mod renewal_thread;
mod replicas;
pub(crate) mod requests;
mod runtimes;
mod stepped_clock;
mod subscription;
pub(crate) mod support;
mod tls;
