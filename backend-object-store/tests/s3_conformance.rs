//! The conformance suite on an S3 server.

mod support;

use std::process::ExitCode;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::ConnectError;
use leasehold_conformance::{SetupError, Timing, WITHOUT_A_CLOCK};
use leasehold_object_store::{ObjectStoreBackend, Options};
use leasehold_test_servers::SeaweedFs;
use support::{CANNOT_RUN, Objects, Store};

#[async_trait]
impl Store for LazyLock<SeaweedFs> {
    async fn connect(&self, options: Options) -> Result<ObjectStoreBackend, ConnectError> {
        ObjectStoreBackend::connect_with(&self.url(""), options).await
    }

    async fn put(&self, path: &str, text: &'static str) -> Result<(), SetupError> {
        SeaweedFs::put(self, path, text.as_bytes());
        Ok(())
    }

    async fn get(&self, path: &str) -> Result<String, SetupError> {
        Ok(SeaweedFs::get(self, path).ok_or("no such object")?)
    }
}

fn main() -> ExitCode {
    let objects: Objects<LazyLock<SeaweedFs>> = Objects {
        name: "object-store-s3",
        // A call may take five of them, and a case may wait for 60.
        timing: Timing::real()
            .unit(Duration::from_secs(1))
            .watchdog(Duration::from_secs(180)),
        // Nobody needs it to list the cases.
        store: Arc::new(LazyLock::new(SeaweedFs::start)),
    };
    leasehold_conformance::run(objects, &[WITHOUT_A_CLOCK, CANNOT_RUN].concat())
}
