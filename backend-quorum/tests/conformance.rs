//! The conformance suite on three simulated servers, in virtual time.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{
    BoxFuture, Capabilities, Key, LockBackend, Runtime, bounds, forward_lock_backend,
};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, Timing};
use leasehold_quorum::Quorum;
use leasehold_sim::{SimBackend, SimOptions, SimServer};

mod ignored;

const FOREIGN: &str = "string";

#[derive(Debug)]
struct Simulated;

#[async_trait]
impl Harness for Simulated {
    fn name(&self) -> &'static str {
        "quorum"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::minimal();
        capabilities.independent_renewal = true;
        capabilities.batches = true;
        capabilities
    }

    fn abilities(&self) -> Abilities {
        Abilities::default()
            .plant_foreign(true)
            .virtual_time(true)
            .several_servers(true)
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
        let case = namespace.rsplit_once('-').map_or(namespace, |it| it.0);
        let seed = case.bytes().fold(0, |seed: u64, byte| {
            seed.wrapping_mul(31).wrapping_add(byte.into())
        });
        // With one latency for all messages, the expiry that a client is told is exact.
        let servers = [0, 1, 2].map(|n| SimServer::with_options(SimOptions::new(seed ^ n)));
        servers[1].step_clock_forward(Duration::from_secs(3_600));
        let runtime = servers[0].client("process").runtime();
        Ok(Arc::new(SimEnvironment { servers, runtime }))
    }
}

#[derive(Debug)]
struct SimEnvironment {
    servers: [SimServer; 3],
    /// All clients are in one process, so they have one clock.
    runtime: Arc<dyn Runtime>,
}

#[derive(Debug)]
struct InProcess(SimBackend, Arc<dyn Runtime>);

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockBackend for InProcess {
    forward_lock_backend! {
        |wrapper| wrapper.0;
        capabilities hello clock read_clock listen acquire poll renew release convert inspect
        force_release list write_note close
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.1)
    }
}

#[async_trait]
impl Environment for SimEnvironment {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        let links = self.servers.iter().map(|server| server.client("client"));
        let links = links.map(|link| InProcess(link, Arc::clone(&self.runtime)));
        Ok(Arc::new(Quorum::new(links)?.max_lease(bounds::MAX_LEASE)?))
    }

    async fn let_time_pass(&self, duration: Duration) {
        self.servers[0].advance(duration).await;
    }

    async fn plant_foreign(&self, key: &Key) -> Result<(), SetupError> {
        for server in &self.servers {
            server.plant_foreign(key, FOREIGN);
        }
        Ok(())
    }

    async fn foreign_is_untouched(&self, key: &Key) -> Result<bool, SetupError> {
        let is_there = |server: &SimServer| server.foreign(key).as_deref() == Some(FOREIGN);
        Ok(self.servers.iter().all(is_there))
    }
}

fn main() -> ExitCode {
    leasehold_conformance::run(Simulated, ignored::ON_A_QUORUM)
}
