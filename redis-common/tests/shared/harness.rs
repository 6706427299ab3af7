//! The harness of the conformance suite for a real server.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{Capabilities, Key, LockBackend};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, Timing};
use leasehold_redis_common::script::{Protocol, ScriptSettings};
use leasehold_redis_common::{Options, RespVersion};
use leasehold_test_servers::{Authority, RedisServer, SentinelServers, ServerOptions};

use crate::client;

/// The user of the backends. It has only the documented rights.
const USER: &str = "locks";
const FOREIGN: &str = "another program's value";

/// Cases that need virtual time. They would take minutes here.
const CANNOT_RUN: &[&str] = &[
    "long_spans::token_is_remembered",
    "long_spans::token_outlives_an_expired_holder",
    "long_spans::longest_lease",
    "long_spans::no_copy_outlives_its_watermark",
];

/// Runs the suite on the named backend. `documentation` contains the rights that it needs.
pub(crate) fn run(name: &'static str, documentation: &'static str) -> ExitCode {
    leasehold_conformance::run(Redis::start(name, documentation), CANNOT_RUN)
}

/// One server for all cases. Each case has a separate key prefix.
#[derive(Debug)]
pub(crate) struct Redis {
    name: &'static str,
    server: Topology,
    /// With TLS, the authority of the server's certificate, as PEM.
    authority: Option<String>,
}

/// What a backend connects to.
#[derive(Debug)]
enum Topology {
    Single(RedisServer),
    Sentinel(SentinelServers),
}

impl Topology {
    /// Starts the topology that `LEASEHOLD_TOPOLOGY` names: a single server, or `sentinel`.
    fn start(options: ServerOptions) -> Self {
        match std::env::var("LEASEHOLD_TOPOLOGY").as_deref() {
            Err(_) => Self::Single(options.start()),
            Ok("sentinel") => {
                let sentinels = ServerOptions::default();
                // No failover, however busy the machine is.
                let down_after = Duration::from_secs(60);
                Self::Sentinel(SentinelServers::start_with(options, sentinels, down_after))
            }
            Ok(other) => panic!("LEASEHOLD_TOPOLOGY is {other:?}, not sentinel"),
        }
    }

    /// The URL of the server that has the locks.
    fn url(&self) -> String {
        match self {
            Self::Single(server) => server.url(),
            Self::Sentinel(servers) => servers.server(servers.primary()).url(),
        }
    }

    /// The URL for backends.
    fn backend_url(&self, tls: bool) -> String {
        match self {
            Self::Single(server) if tls => server.tls_url(),
            Self::Single(server) => server.url(),
            Self::Sentinel(_) if tls => panic!("LEASEHOLD_TLS needs a single server"),
            Self::Sentinel(servers) => servers.url(),
        }
    }
}

impl Redis {
    /// Starts a server for the named backend, whose user has the documented rights. The variable
    /// `LEASEHOLD_TLS` adds TLS: `server`, or `proxy` for servers that are built without it. The
    /// variable `LEASEHOLD_TOPOLOGY` can put sentinels in front.
    pub(crate) fn start(name: &'static str, documentation: &'static str) -> Self {
        let user = [USER, "on", ">secret", "~*", "&*"];
        let rights = user.into_iter().chain(documented_rights(documentation));
        let mut options = ServerOptions::default().with_config("user", rights);
        let authority = Authority::new();
        let identity = authority.issue("127.0.0.1");
        let tls = std::env::var("LEASEHOLD_TLS").ok();
        match tls.as_deref() {
            None => {}
            Some("server") => options = options.with_tls(identity, None),
            Some("proxy") => options = options.with_tls_proxy(identity),
            Some(other) => panic!("LEASEHOLD_TLS is {other:?}, not server or proxy"),
        }
        Self {
            name,
            server: Topology::start(options),
            authority: tls.map(|_| authority.certificate()),
        }
    }
}

/// The protocol version: `LEASEHOLD_RESP`, `2` or `3`.
fn resp() -> RespVersion {
    match std::env::var("LEASEHOLD_RESP").as_deref() {
        Ok("2") => RespVersion::Resp2,
        Ok("3") | Err(_) => RespVersion::Resp3,
        Ok(other) => panic!("LEASEHOLD_RESP is {other:?}, not 2 or 3"),
    }
}

/// The command rights in the crate's documentation.
fn documented_rights(documentation: &'static str) -> impl Iterator<Item = &'static str> {
    documentation
        .lines()
        .skip_while(|line| !line.contains("ACL SETUSER"))
        .take_while(|line| !line.contains("```"))
        .flat_map(str::split_whitespace)
        .filter(|word| word.starts_with(['+', '-']))
}

#[async_trait]
impl Harness for Redis {
    fn name(&self) -> &'static str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::full()
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
        let protocol = Protocol::new(&prefix, ScriptSettings::default())?;
        let mut options = Options::new()
            .key_prefix(prefix)
            .resp(resp())
            // A busy machine may need longer than the default.
            .connect_timeout(Duration::from_secs(5));
        let backend_url = self.server.backend_url(self.authority.is_some());
        if let Some(authority) = &self.authority {
            options = options.root_certificates(authority.as_str());
        }
        Ok(Arc::new(Namespace {
            url: self.server.url(),
            backend_url: backend_url.replace("://", &format!("://{USER}:secret@")),
            protocol,
            options,
        }))
    }
}

#[derive(Debug)]
struct Namespace {
    url: String,
    backend_url: String,
    protocol: Protocol,
    options: Options,
}

impl Namespace {
    async fn query<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, SetupError> {
        let client = redis::Client::open(self.url.as_str())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        Ok(command.query_async(&mut connection).await?)
    }
}

#[async_trait]
impl Environment for Namespace {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        Ok(client::connect_with(&self.backend_url, self.options.clone()).await?)
    }

    async fn let_time_pass(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    async fn plant_foreign(&self, key: &Key) -> Result<(), SetupError> {
        let mut set = redis::cmd("SET");
        set.arg(self.protocol.key(key)).arg(FOREIGN);
        self.query(&set).await
    }

    async fn foreign_is_untouched(&self, key: &Key) -> Result<bool, SetupError> {
        let mut get = redis::cmd("GET");
        get.arg(self.protocol.key(key));
        let found: Option<String> = self.query(&get).await?;
        Ok(found.as_deref() == Some(FOREIGN))
    }
}
