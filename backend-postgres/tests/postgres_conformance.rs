//! The conformance suite on a real server.

#[expect(dead_code, reason = "the other tests use the rest")]
mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{Capabilities, Key, LockBackend};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, Timing};
use leasehold_postgres::{Options, PostgresBackend};
use leasehold_test_servers::PgBouncer;

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
/// Cases that need subscriptions, too.
const CANNOT_RUN_WITHOUT_PUSH: &[&str] = &[
    "client_push::*",
    "client_renewal::revoked_before_the_subscription_is_noticed",
    "notifications::*",
    "unreachable::*",
];

/// How the clients reach the server: what `LEASEHOLD_TOPOLOGY` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Topology {
    /// Directly.
    Direct,
    /// Through a pooler in transaction mode.
    Pooled,
    /// In turn directly, and through such a pooler with subscriptions around it.
    Mixed,
}

/// One server for all cases. Each case has a separate key prefix.
#[derive(Debug)]
struct Postgres {
    server: Server,
    topology: Topology,
    pooler: (PgBouncer, String),
}

#[async_trait]
impl Harness for Postgres {
    fn name(&self) -> &'static str {
        match self.topology {
            Topology::Direct => "postgres",
            Topology::Pooled => "postgres-pooled",
            Topology::Mixed => "postgres-mixed",
        }
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full();
        capabilities.batches = false;
        if self.topology == Topology::Pooled {
            capabilities.push = false;
            capabilities.reachability = false;
        }
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
            pooled_url: self.pooler.1.clone(),
            topology: self.topology,
            connected: AtomicUsize::new(0),
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
    pooled_url: String,
    topology: Topology,
    /// How many clients have connected.
    connected: AtomicUsize,
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
        let (options, number) = (self.options.clone(), &self.connected);
        let is_odd = number.fetch_add(1, Ordering::Relaxed) % 2 == 1;
        let (url, options) = match self.topology {
            Topology::Pooled => (&self.pooled_url, options.pooled(true)),
            Topology::Mixed if is_odd => (&self.pooled_url, options.direct_url(&self.url)),
            Topology::Mixed | Topology::Direct => (&self.url, options),
        };
        Ok(Arc::new(PostgresBackend::connect_with(url, options).await?))
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
    let topology = match std::env::var("LEASEHOLD_TOPOLOGY").as_deref() {
        Err(_) => Topology::Direct,
        Ok("pooled") => Topology::Pooled,
        Ok("mixed") => Topology::Mixed,
        Ok(other) => panic!("LEASEHOLD_TOPOLOGY is {other:?}, not pooled or mixed"),
    };
    let server = Server::start();
    let pooler = server.pooler("pool_mode = transaction\nmax_client_conn = 2000");
    let mut cannot_run = CANNOT_RUN.to_vec();
    if topology == Topology::Pooled {
        cannot_run.extend(CANNOT_RUN_WITHOUT_PUSH);
    }
    let postgres = Postgres {
        server,
        topology,
        pooler,
    };
    leasehold_conformance::run(postgres, &cannot_run)
}
