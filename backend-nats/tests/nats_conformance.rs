//! The conformance suite on a NATS server.

mod support;

use std::process::ExitCode;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leasehold_api::{Capabilities, Key, LockBackend, bounds};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, TcpProxy, Timing};
use leasehold_nats::{NatsBackend, Options};
use leasehold_test_servers::NatsServers;
use serde_json::json;
use support::ask;

const FOREIGN: &str = "another program's value";

/// The store can't tell who listens, and time is real.
const CANNOT_RUN: &[&str] = &[
    "long_spans::*",
    "unreachable::all_unreachable_counts_as_free",
    "unreachable::its_ticket_is_kept",
    "unreachable::marked_unreachable_at_most_twice",
    "unreachable::unreachable_is_shown",
    "unreachable::unreachable_waiter_is_passed_over",
];

/// One server for all cases. Each case has a separate key prefix.
#[derive(Debug)]
struct Nats {
    /// Nobody needs it to list the cases.
    server: LazyLock<NatsServers>,
}

#[async_trait]
impl Harness for Nats {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full();
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
        // A busy machine may need longer than the default.
        let mut options = Options::new()
            .key_prefix(prefix.as_str())
            .call_timeout(bounds::MAX_CALL_TIMEOUT);
        let url = self.server.url();
        let (mut backend_url, mut proxy) = (url.clone(), None);
        if namespace.starts_with("outages-") {
            let server = ([127, 0, 0, 1], self.server.port(0)).into();
            let started = TcpProxy::start(server).await?;
            backend_url = format!("nats://{}", started.address());
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
    /// The subject of a key that has only letters, digits, `-` and `:`.
    fn subject_of(&self, key: &Key) -> String {
        let name = format!("{}{key}", self.prefix).replace(':', "=3A");
        format!("$KV.leasehold.{name}")
    }
}

#[async_trait]
impl Environment for Namespace {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        let connecting = NatsBackend::connect_with(&self.backend_url, self.options.clone());
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
        let answer = ask(&self.url, &self.subject_of(key), &json!(FOREIGN)).await;
        let sequence = answer.and_then(|answer| answer["seq"].as_u64());
        sequence.ok_or("it was not stored")?;
        Ok(())
    }

    async fn foreign_is_untouched(&self, key: &Key) -> Result<bool, SetupError> {
        let request = json!({ "last_by_subj": self.subject_of(key) });
        let subject = "$JS.API.STREAM.MSG.GET.KV_leasehold";
        let answer = ask(&self.url, subject, &request).await.ok_or("no answer")?;
        Ok(answer["message"]["data"] == STANDARD.encode(json!(FOREIGN).to_string()))
    }
}

fn main() -> ExitCode {
    let nats = Nats {
        server: LazyLock::new(|| NatsServers::start("")),
    };
    leasehold_conformance::run(nats, CANNOT_RUN)
}
