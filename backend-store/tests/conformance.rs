//! The conformance suite on a store in memory, in virtual time. A fifth of the writes meet a conflict,
//! and a tenth arrive a second time later.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the store in memory uses tokio's paused clock"
)]

#[expect(dead_code, reason = "the other tests use the rest")]
mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{BoxFuture, Capabilities, Key, LockBackend};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, Timing};

use support::{Fault, Faults, Server};

const FOREIGN: &[u8] = b"another program's value";

#[derive(Debug)]
struct Memory;

#[async_trait]
impl Harness for Memory {
    fn name(&self) -> &'static str {
        "store"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full();
        capabilities.independent_renewal = false;
        capabilities.batches = false;
        capabilities
    }

    fn abilities(&self) -> Abilities {
        Abilities::default().plant_foreign(true).virtual_time(true)
    }

    fn timing(&self) -> Timing {
        Timing::simulated()
    }

    fn block_on(&self, case: BoxFuture<'static, ()>) {
        support::block_on(case);
    }

    async fn environment(&self, namespace: &str) -> Result<Arc<dyn Environment>, SetupError> {
        // Each case has its own seed, which is the same in every run.
        let case = namespace.rsplit_once('-').map_or(namespace, |it| it.0);
        let seed = case.bytes().fold(0, |seed: u64, byte| {
            seed.wrapping_mul(31).wrapping_add(byte.into())
        });
        let server = Server::new(seed, Duration::from_millis(1));
        if seed.is_multiple_of(2) {
            server.compare_tags();
        }
        server.set_faults(
            Faults::default()
                .share(Fault::Conflict, 20)
                .share(Fault::Copied, 10),
        );
        // Each case runs with one of the two ways to learn who listens.
        if seed.is_multiple_of(2) {
            server.compare_reach();
        }
        Ok(Arc::new(MemoryEnvironment { server }))
    }
}

#[derive(Debug)]
struct MemoryEnvironment {
    server: Arc<Server>,
}

#[async_trait]
impl Environment for MemoryEnvironment {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        Ok(Arc::new(self.server.client()))
    }

    async fn let_time_pass(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    async fn plant_foreign(&self, key: &Key) -> Result<(), SetupError> {
        self.server.put(key, FOREIGN);
        Ok(())
    }

    async fn foreign_is_untouched(&self, key: &Key) -> Result<bool, SetupError> {
        Ok(self.server.row(key).is_some_and(|row| row.bytes == FOREIGN))
    }
}

fn main() -> ExitCode {
    leasehold_conformance::run(Memory, &["outages::*"])
}
