//! The conformance suite on objects in memory.

mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::ConnectError;
use leasehold_conformance::{SetupError, Timing, WITHOUT_A_CLOCK};
use leasehold_object_store::{ObjectStoreBackend, Options};
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use support::{CANNOT_RUN, Objects, Store};

#[derive(Debug)]
struct Memory(Arc<dyn ObjectStore>);

#[async_trait]
impl Store for Memory {
    async fn connect(&self, options: Options) -> Result<ObjectStoreBackend, ConnectError> {
        ObjectStoreBackend::from_store(Arc::clone(&self.0), options).await
    }

    async fn put(&self, path: &str, text: &'static str) -> Result<(), SetupError> {
        self.0.put(&path.into(), text.into()).await?;
        Ok(())
    }

    async fn get(&self, path: &str) -> Result<String, SetupError> {
        let bytes = self.0.get(&path.into()).await?.bytes().await?;
        Ok(String::from_utf8(bytes.into())?)
    }
}

fn main() -> ExitCode {
    let objects = Objects {
        name: "object-store",
        // A busy machine may stall a process for more than 100 ms.
        timing: Timing::real().unit(Duration::from_millis(300)),
        store: Arc::new(Memory(Arc::new(InMemory::new()))),
    };
    leasehold_conformance::run(objects, &[WITHOUT_A_CLOCK, CANNOT_RUN].concat())
}
