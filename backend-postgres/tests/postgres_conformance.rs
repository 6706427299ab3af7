//! The conformance suite on a real server.

#[expect(dead_code, reason = "the other tests use the rest")]
mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{Capabilities, Key, LockBackend};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, Timing};
use leasehold_postgres::{Options, PostgresBackend};

use support::{Server, patient, sql_client};

const FOREIGN: &[u8] = b"another program's value";

/// Cases that need virtual time, which would take minutes here, and faults of the network.
const CANNOT_RUN: &[&str] = &[
    "long_spans::token_is_remembered",
    "long_spans::token_outlives_an_expired_holder",
    "long_spans::longest_lease",
    "long_spans::no_copy_outlives_its_watermark",
    "long_spans::note_is_kept_for_two_days",
    "outages::*",
];

/// One server for all cases. Each case has a separate key prefix.
#[derive(Debug)]
struct Postgres {
    server: Server,
}

#[async_trait]
impl Harness for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full();
        capabilities.batches = false;
        capabilities
    }

    fn abilities(&self) -> Abilities {
        Abilities::default().plant_foreign(true)
    }

    fn timing(&self) -> Timing {
        // A busy machine may stall a process for more than 100 ms.
        Timing::real().unit(Duration::from_millis(300))
    }

    async fn environment(&self, namespace: &str) -> Result<Arc<dyn Environment>, SetupError> {
        let prefix = format!("{namespace}:");
        Ok(Arc::new(Namespace {
            url: self.server.url(),
            // A busy machine may need longer than the default.
            options: patient()
                .key_prefix(prefix)
                .call_timeout(Duration::from_secs(5)),
        }))
    }
}

#[derive(Debug)]
struct Namespace {
    url: String,
    options: Options,
}

impl Namespace {
    fn key(&self, key: &Key) -> Vec<u8> {
        leasehold_postgres::row_key(&self.options.key_prefix, key)
    }
}

#[async_trait]
impl Environment for Namespace {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        let backend = PostgresBackend::connect_with(&self.url, self.options.clone()).await?;
        Ok(Arc::new(backend))
    }

    async fn let_time_pass(&self, duration: Duration) {
        #[expect(clippy::disallowed_methods, reason = "the cases are in real time")]
        tokio::time::sleep(duration).await;
    }

    async fn plant_foreign(&self, key: &Key) -> Result<(), SetupError> {
        let statement = "INSERT INTO leasehold.locks VALUES ($1, 0, $2, $3)";
        let client = sql_client(&self.url).await;
        let row = self.key(key);
        client
            .execute(statement, &[&row, &FOREIGN, &i64::MAX])
            .await?;
        Ok(())
    }

    async fn foreign_is_untouched(&self, key: &Key) -> Result<bool, SetupError> {
        let statement = "SELECT state FROM leasehold.locks WHERE key = $1";
        let client = sql_client(&self.url).await;
        let row = client.query_opt(statement, &[&self.key(key)]).await?;
        Ok(row.is_some_and(|row| row.get::<_, &[u8]>(0) == FOREIGN))
    }
}

fn main() -> ExitCode {
    let server = Server::start();
    leasehold_conformance::run(Postgres { server }, CANNOT_RUN)
}
