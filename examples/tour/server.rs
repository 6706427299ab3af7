//! The lock services that the tour can run on.

use std::sync::Arc;

use leasehold::LockBackend;
use leasehold::fred_rs::FredBackend;
use leasehold::redis_rs::RedisBackend;
use leasehold::sim::SimServer;

use crate::tour::{Connect, Result};

/// Connects to the simulator.
pub(crate) struct OnSimulator(pub(crate) SimServer);

#[async_trait::async_trait]
impl Connect for OnSimulator {
    async fn connect(&self, name: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(Arc::new(self.0.client(name)))
    }
}

/// The client libraries.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Client {
    RedisRs,
    Fred,
}

/// Connects to a Redis server.
pub(crate) struct OnServer {
    url: String,
    client: Client,
    prefix: String,
}

impl OnServer {
    pub(crate) fn new(url: String, client: Client) -> Self {
        // Each run has its own prefix, so that several tours can share a server.
        let prefix = format!("leasehold-tour-{}:", std::process::id());
        Self {
            url,
            client,
            prefix,
        }
    }
}

#[async_trait::async_trait]
impl Connect for OnServer {
    async fn connect(&self, _name: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(match self.client {
            Client::RedisRs => {
                let options = leasehold::redis_rs::Options::new().key_prefix(&self.prefix);
                Arc::new(RedisBackend::connect_with(&self.url, options).await?)
            }
            Client::Fred => {
                let options = leasehold::fred_rs::Options::new().key_prefix(&self.prefix);
                Arc::new(FredBackend::connect_with(&self.url, options).await?)
            }
        })
    }
}
