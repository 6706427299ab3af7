//! The conformance suite on a MariaDB server.

mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{Capabilities, Key, LockBackend, bounds};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, TcpProxy, Timing};
use leasehold_mysql::{MysqlBackend, Options};
use leasehold_test_servers::{Authority, MariaDb};
use mysql_async::prelude::Queryable;

const FOREIGN: &[u8] = b"another program's value";

/// The store can't notify, and time is real.
const CANNOT_RUN: &[&str] = &[
    "client_push::*",
    "client_renewal::revoked_before_the_subscription_is_noticed",
    "long_spans::*",
    "notifications::*",
    "outages::cut_subscription_reports_the_gap",
    "outages::pushes_arrive_again_after_a_cut",
    "unreachable::*",
];

/// One server for all cases. Each case has a separate key prefix.
#[derive(Debug)]
struct Mysql {
    server: MariaDb,
    /// With `LEASEHOLD_TLS`, it requires TLS.
    authority: Option<Authority>,
}

#[async_trait]
impl Harness for Mysql {
    fn name(&self) -> &'static str {
        "mysql"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full();
        capabilities.push = false;
        capabilities.reachability = false;
        capabilities.batches = false;
        capabilities
    }

    fn abilities(&self) -> Abilities {
        Abilities::default()
            .plant_foreign(true)
            .cut(true)
            .freeze(true)
    }

    fn timing(&self) -> Timing {
        // A busy machine may stall a process for more than 100 ms.
        Timing::real().unit(Duration::from_millis(300))
    }

    async fn environment(&self, namespace: &str) -> Result<Arc<dyn Environment>, SetupError> {
        let prefix = format!("{namespace}:");
        let url = self.server.socket_url(support::USER);
        // A busy machine may need longer than the default.
        let mut options = Options::new()
            .key_prefix(prefix.as_str())
            .call_timeout(bounds::MAX_CALL_TIMEOUT);
        let mut backend_url = self.server.url(support::USER);
        if let Some(authority) = &self.authority {
            backend_url += "?require_ssl=true";
            options = options.root_certificates(authority.certificate());
        }
        let mut proxy = None;
        if namespace.starts_with("outages-") {
            let started = TcpProxy::start(([127, 0, 0, 1], self.server.port()).into()).await?;
            let port = format!(":{}/", started.address().port());
            backend_url = backend_url.replace(&format!(":{}/", self.server.port()), &port);
            options = options.call_timeout(bounds::CALL_TIMEOUT);
            proxy = Some(started);
        }
        Ok(Arc::new(Namespace {
            url,
            backend_url,
            prefix,
            options,
            proxy,
        }))
    }
}

#[derive(Debug)]
struct Namespace {
    url: String,
    backend_url: String,
    prefix: String,
    options: Options,
    /// Between the backends and the server, in the cases that need it.
    proxy: Option<TcpProxy>,
}

impl Namespace {
    async fn sql(&self) -> Result<mysql_async::Conn, mysql_async::Error> {
        mysql_async::Conn::from_url(&self.url).await
    }
}

#[async_trait]
impl Environment for Namespace {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        let connecting = MysqlBackend::connect_with(&self.backend_url, self.options.clone());
        Ok(Arc::new(connecting.await?))
    }

    async fn let_time_pass(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    async fn cut(&self) -> Result<(), SetupError> {
        self.proxy.as_ref().ok_or("no proxy")?.cut();
        Ok(())
    }

    async fn freeze(&self, frozen: bool) -> Result<(), SetupError> {
        self.proxy.as_ref().ok_or("no proxy")?.freeze(frozen);
        Ok(())
    }

    async fn plant_foreign(&self, key: &Key) -> Result<(), SetupError> {
        let statement = "INSERT INTO leasehold_locks VALUES (?, ?, 0, ?, ?)";
        let row = (&self.prefix, key.as_str(), FOREIGN, u64::MAX);
        self.sql().await?.exec_drop(statement, row).await?;
        Ok(())
    }

    async fn foreign_is_untouched(&self, key: &Key) -> Result<bool, SetupError> {
        let query = "SELECT state FROM leasehold_locks WHERE prefix = ? AND name = ?";
        let state: Option<Vec<u8>> = self
            .sql()
            .await?
            .exec_first(query, (&self.prefix, key.as_str()))
            .await?;
        Ok(state.as_deref() == Some(FOREIGN))
    }
}

fn main() -> ExitCode {
    let authority = std::env::var_os("LEASEHOLD_TLS").map(|_| Authority::new());
    let with_tls =
        |it: &Authority| support::prepared(MariaDb::start_with_tls(&it.issue("127.0.0.1"), it));
    let server = authority.as_ref().map(with_tls);
    let server = server.unwrap_or_else(|| support::server(&[]));
    leasehold_conformance::run(Mysql { server, authority }, CANNOT_RUN)
}
