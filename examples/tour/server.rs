//! The lock services that the tour can run on.

use std::sync::Arc;

use leasehold::backend::LockBackend;
use leasehold::sim::SimServer;
use leasehold::{ConnectOptions, RedisLibrary};

use crate::tour::Result;

/// The client libraries.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Client {
    RedisRs,
    Fred,
}

/// A lock service that simulated processes connect to.
pub(crate) enum Service {
    Simulator(SimServer),
    Redis(String, Client),
}

impl Service {
    /// Connects another process.
    pub(crate) async fn connect(&self, name: &str) -> Result<Arc<dyn LockBackend>> {
        let (url, library) = match self {
            Self::Simulator(server) => return Ok(Arc::new(server.client(name))),
            Self::Redis(url, Client::RedisRs) => (url, RedisLibrary::RedisRs),
            Self::Redis(url, Client::Fred) => (url, RedisLibrary::Fred),
        };
        // Each run has its own prefix, so that several tours can share a server.
        let prefix = format!("leasehold-tour-{}:", std::process::id());
        let options = ConnectOptions::new().redis_library(library);
        Ok(options.key_prefix(prefix).backend(url).await?)
    }
}
