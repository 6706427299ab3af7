//! The conformance suite on an etcd server.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{Capabilities, Key, List, LockBackend, bounds};
use leasehold_conformance::{
    Abilities, Environment, Harness, SetupError, TcpProxy, Timing, WITHOUT_A_CLOCK,
};
use leasehold_etcd::{EtcdBackend, Options};
use leasehold_test_servers::{Authority, EtcdServer};

const FOREIGN: &str = "another program's value";

/// Also cases that know which poll is written, that need to know who listens, and that take hours.
const CANNOT_RUN: &[&str] = &[
    "long_spans::*",
    "notifications::group_is_notified_together",
    "notifications::last_reader_notifies_the_writer",
    "notifications::leaving_writer_lets_readers_in",
    "notifications::permits_change_hands_in_order",
    "notifications::pushed_grant_is_the_offer",
    "notifications::pushed_offer_expires_unless_confirmed",
    "unreachable::all_unreachable_counts_as_free",
    "unreachable::its_ticket_is_kept",
    "unreachable::marked_unreachable_at_most_twice",
    "unreachable::unreachable_is_shown",
    "unreachable::unreachable_waiter_is_passed_over",
];

/// One server for all cases. Each case has a separate key prefix.
#[derive(Debug)]
struct Etcd {
    server: Arc<EtcdServer>,
    /// With `LEASEHOLD_TLS`, it requires TLS, and certificates of clients.
    authority: Option<Authority>,
}

#[async_trait]
impl Harness for Etcd {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full();
        capabilities.reachability = false;
        capabilities.rw_locks = false;
        capabilities.semaphores = false;
        capabilities.convert = false;
        capabilities.time_of_day = false;
        capabilities.batches = false;
        capabilities
    }

    fn abilities(&self) -> Abilities {
        let abilities = Abilities::default().plant_foreign(true).clock(false);
        abilities.cut(true).freeze(true)
    }

    fn timing(&self) -> Timing {
        // A busy machine may stall a process for more than 100 ms.
        Timing::real().unit(Duration::from_millis(300))
    }

    async fn environment(&self, namespace: &str) -> Result<Arc<dyn Environment>, SetupError> {
        let prefix = format!("{namespace}:");
        // A busy machine may need longer than the default.
        let mut options = Options::new()
            .key_prefix(prefix.as_str())
            .call_timeout(bounds::MAX_CALL_TIMEOUT);
        let mut url = self.server.url();
        if let Some(authority) = &self.authority {
            let client = authority.issue("client");
            options = options.root_certificates(authority.certificate());
            options = options.client_certificate(client.certificate, client.key);
        }
        let mut proxy = None;
        if namespace.starts_with("outages-") {
            let started = TcpProxy::start(([127, 0, 0, 1], self.server.port()).into()).await?;
            let port = format!(":{}", started.address().port());
            url = url.replace(&format!(":{}", self.server.port()), &port);
            options = options.call_timeout(bounds::CALL_TIMEOUT);
            proxy = Some(started);
        }
        Ok(Arc::new(Namespace {
            server: Arc::clone(&self.server),
            url,
            options,
            proxy,
            backends: Mutex::default(),
        }))
    }
}

/// The clients of a case. They look at every key before time passes: a lease that nobody observes doesn't end.
#[derive(Debug)]
struct Namespace {
    server: Arc<EtcdServer>,
    url: String,
    options: Options,
    /// Between the backends and the server, in the cases that need it.
    proxy: Option<TcpProxy>,
    backends: Mutex<Vec<Arc<dyn LockBackend>>>,
}

impl Namespace {
    fn backends(&self) -> std::sync::MutexGuard<'_, Vec<Arc<dyn LockBackend>>> {
        self.backends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self, key: &Key) -> String {
        format!("leasehold/{}/key/{key}", self.options.key_prefix)
    }
}

#[async_trait]
impl Environment for Namespace {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        let connecting = EtcdBackend::connect_with(&self.url, self.options.clone());
        let backend: Arc<dyn LockBackend> = Arc::new(connecting.await?);
        self.backends().push(Arc::clone(&backend));
        Ok(backend)
    }

    async fn let_time_pass(&self, duration: Duration) {
        let backends = self.backends().clone();
        for backend in backends {
            // A closed backend looks at nothing.
            let keys = backend.list(&List::new("")).await.map(|page| page.keys);
            for key in keys.unwrap_or_default() {
                drop(backend.inspect(&key).await);
            }
        }
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
        self.server.execute(&["put", &self.key(key), FOREIGN]);
        Ok(())
    }

    async fn foreign_is_untouched(&self, key: &Key) -> Result<bool, SetupError> {
        let value = ["get", "--print-value-only", &self.key(key)];
        Ok(self.server.execute(&value) == FOREIGN)
    }
}

fn main() -> ExitCode {
    let authority = std::env::var_os("LEASEHOLD_TLS").map(|_| Authority::new());
    let with_tls = |it: &Authority| EtcdServer::start_with_tls(&it.issue("127.0.0.1"), it);
    let server = authority.as_ref().map(with_tls);
    let server = Arc::new(server.unwrap_or_else(EtcdServer::start));
    leasehold_conformance::run(
        Etcd { server, authority },
        &[WITHOUT_A_CLOCK, CANNOT_RUN].concat(),
    )
}
