//! The conformance suite on three real Redis servers, and on three backends of different types.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "real servers have real time"
)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use leasehold_api::{Capabilities, LockBackend, bounds};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, Timing};
use leasehold_fred::FredBackend;
use leasehold_quorum::Quorum;
use leasehold_redis_rs::{Options, RedisBackend};
use leasehold_test_servers::RedisServer;

mod ignored;
#[expect(dead_code, reason = "the tests of stores use the rest")]
#[path = "../../backend-store/tests/support/mod.rs"]
mod store;

/// Three servers for all cases. Each case has a separate key prefix.
#[derive(Clone, Debug)]
struct Real {
    name: &'static str,
    servers: Arc<[RedisServer; 3]>,
    mixed: bool,
}

#[async_trait]
impl Harness for Real {
    fn name(&self) -> &'static str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::minimal();
        // The store in memory has neither.
        capabilities.independent_renewal = !self.mixed;
        capabilities.batches = !self.mixed;
        capabilities
    }

    fn abilities(&self) -> Abilities {
        Abilities::default().several_servers(true)
    }

    fn timing(&self) -> Timing {
        // A stamp is the moment of the call, so a call that takes long looks early.
        Timing::real().tolerance(Duration::from_millis(50))
    }

    async fn environment(&self, namespace: &str) -> Result<Arc<dyn Environment>, SetupError> {
        let store = store::Server::new(1, Duration::ZERO);
        let now = SystemTime::UNIX_EPOCH.elapsed()?;
        store.step_clock(|_| now);
        Ok(Arc::new(Namespace {
            real: self.clone(),
            options: Options::new()
                .key_prefix(format!("leasehold:{namespace}:"))
                // A busy machine may need longer than the default.
                .connect_timeout(Duration::from_secs(5)),
            store,
        }))
    }
}

#[derive(Debug)]
struct Namespace {
    real: Real,
    options: Options,
    store: Arc<store::Server>,
}

impl Namespace {
    async fn redis(&self, server: usize) -> Result<Arc<dyn LockBackend>, SetupError> {
        let (url, options) = (self.real.servers[server].url(), self.options.clone());
        Ok(Arc::new(RedisBackend::connect_with(&url, options).await?))
    }

    async fn fred(&self, server: usize) -> Result<Arc<dyn LockBackend>, SetupError> {
        let (url, options) = (self.real.servers[server].url(), self.options.clone());
        Ok(Arc::new(FredBackend::connect_with(&url, options).await?))
    }
}

#[async_trait]
impl Environment for Namespace {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        let first = self.redis(0).await?;
        let servers = if self.real.mixed {
            [first, self.fred(1).await?, Arc::new(self.store.client())]
        } else {
            [first, self.redis(1).await?, self.redis(2).await?]
        };
        Ok(Arc::new(
            Quorum::new(servers)?
                .max_lease(bounds::MAX_LEASE)?
                .call_timeout(bounds::MAX_CALL_TIMEOUT)?,
        ))
    }

    async fn let_time_pass(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

fn main() -> ExitCode {
    let servers = Arc::new([0, 1, 2].map(|_| RedisServer::start()));
    // What needs virtual time, or a value that another program wrote.
    let everywhere = ignored::ON_A_QUORUM.iter().copied();
    let mut ignored: Vec<_> = everywhere
        .filter(|case| !case.starts_with("foreign::") && !case.starts_with("long_spans::"))
        .collect();
    ignored.extend([
        "batches::acquire_of_a_foreign_key_touches_no_other",
        "batches::one_error_touches_no_other",
        "client_batching::failed_call_harms_no_other",
        "foreign::*",
        "long_spans::*",
    ]);
    let run = |name, mixed| {
        let servers = Arc::clone(&servers);
        let harness = Real {
            name,
            servers,
            mixed,
        };
        leasehold_conformance::run(harness, &ignored)
    };
    let results = [run("quorum-redis", false), run("quorum-mixed", true)];
    let failed = results.into_iter().find(|it| *it != ExitCode::SUCCESS);
    failed.unwrap_or(ExitCode::SUCCESS)
}
