//! Shared by the short examples, which run on the simulator, or on a server with `--redis URL`.

use std::error::Error;
use std::sync::Arc;

use clap::Parser;
use leasehold::backend::LockBackend;
use leasehold::redis_rs::RedisBackend;
use leasehold::sim::SimServer;
use leasehold::{Label, LockClient};

pub(crate) type Anything = Box<dyn Error + Send + Sync>;
pub(crate) type Result<T, E = Anything> = std::result::Result<T, E>;

#[derive(Debug, Parser)]
struct Arguments {
    /// URL of a Redis server. The default is the simulator, in virtual time.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
}

/// A lock service that clients connect to.
#[derive(Clone)]
pub(crate) enum Service {
    Simulator(SimServer),
    Redis(String),
}

impl Service {
    /// Connects a new client, as another process would.
    pub(crate) async fn client(&self, name: &str) -> Result<LockClient> {
        let backend: Arc<dyn LockBackend> = match self {
            Self::Simulator(server) => Arc::new(server.client(name)),
            Self::Redis(url) => Arc::new(RedisBackend::connect(url).await?),
        };
        Ok(LockClient::builder(backend)
            .label(Label::new(name)?)
            .build()?)
    }
}

/// Runs an example on the service that the command line names.
pub(crate) fn run(example: impl AsyncFnOnce(Service) -> Result<()>) -> Result<()> {
    let Arguments { redis } = Arguments::parse();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(redis.is_none()).build()?;
    runtime.block_on(async {
        let service = match redis {
            Some(url) => Service::Redis(url),
            None => Service::Simulator(SimServer::new(1)),
        };
        example(service).await
    })
}
