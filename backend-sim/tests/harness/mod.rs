//! The simulator as the conformance suite sees it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{BoxFuture, Capabilities, Key, LockBackend};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, Timing};
use leasehold_sim::{Latency, SimOptions, SimServer};

const FOREIGN: &str = "string";

#[derive(Debug)]
pub(crate) struct Simulated;

#[async_trait]
impl Harness for Simulated {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::full()
    }

    fn abilities(&self) -> Abilities {
        Abilities::default().plant_foreign(true).virtual_time(true)
    }

    fn timing(&self) -> Timing {
        Timing::simulated()
    }

    fn block_on(&self, case: BoxFuture<'static, ()>) {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O starts")
            .block_on(case);
    }

    async fn environment(&self, namespace: &str) -> Result<Arc<dyn Environment>, SetupError> {
        // Each case has its own seed, which is the same in every run.
        let case = namespace
            .rsplit_once('-')
            .map_or(namespace, |(case, _)| case);
        let seed = case.bytes().fold(0, |seed: u64, byte| {
            seed.wrapping_mul(31).wrapping_add(byte.into())
        });
        let latency = Latency::between(Duration::ZERO, Duration::from_millis(2));
        let server = SimServer::with_options(SimOptions::new(seed).latency(latency));
        Ok(Arc::new(SimEnvironment { server }))
    }
}

#[derive(Debug)]
struct SimEnvironment {
    server: SimServer,
}

#[async_trait]
impl Environment for SimEnvironment {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        Ok(Arc::new(self.server.client("client")))
    }

    async fn let_time_pass(&self, duration: Duration) {
        self.server.advance(duration).await;
    }

    async fn plant_foreign(&self, key: &Key) -> Result<(), SetupError> {
        self.server.plant_foreign(key, FOREIGN);
        Ok(())
    }

    async fn foreign_is_untouched(&self, key: &Key) -> Result<bool, SetupError> {
        Ok(self.server.foreign(key).as_deref() == Some(FOREIGN))
    }
}
