//! The simulator as the conformance suite sees it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{BoxFuture, Capabilities, Key, LockBackend};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, Timing};
use leasehold_sim::{Latency, SimBackend, SimOptions, SimServer};

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
        Abilities::default()
            .plant_foreign(true)
            .virtual_time(true)
            .cut(true)
            .freeze(true)
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
        let clients = Mutex::default();
        Ok(Arc::new(SimEnvironment { server, clients }))
    }
}

#[derive(Debug)]
struct SimEnvironment {
    server: SimServer,
    clients: Mutex<Vec<SimBackend>>,
}

impl SimEnvironment {
    fn clients(&self) -> Vec<SimBackend> {
        let clients = self.clients.lock();
        clients.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl Environment for SimEnvironment {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        let client = self.server.client("client");
        let clients = self.clients.lock();
        clients
            .unwrap_or_else(PoisonError::into_inner)
            .push(client.clone());
        Ok(Arc::new(client))
    }

    async fn let_time_pass(&self, duration: Duration) {
        self.server.advance(duration).await;
    }

    async fn cut(&self) -> Result<(), SetupError> {
        self.clients().iter().for_each(SimBackend::drop_connection);
        Ok(())
    }

    async fn freeze(&self, frozen: bool) -> Result<(), SetupError> {
        for client in self.clients() {
            match frozen {
                true => client.isolate(),
                false => client.rejoin(),
            }
        }
        Ok(())
    }

    async fn plant_foreign(&self, key: &Key) -> Result<(), SetupError> {
        self.server.plant_foreign(key, FOREIGN);
        Ok(())
    }

    async fn foreign_is_untouched(&self, key: &Key) -> Result<bool, SetupError> {
        Ok(self.server.foreign(key).as_deref() == Some(FOREIGN))
    }
}
