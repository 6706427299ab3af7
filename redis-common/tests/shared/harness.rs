//! The harness of the conformance suite for a real server.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{Capabilities, Key, LockBackend, bounds};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, Timing};
use leasehold_redis_common::script::{Protocol, ScriptSettings};
use leasehold_redis_common::{Options, RespVersion, ServerChecks};
use leasehold_test_servers::{
    Authority, FaultProxy, RedisCluster, RedisServer, SentinelServers, ServerOptions,
};

use crate::client;

/// The user of the backends. It has only the documented rights.
const USER: &str = "locks";
const FOREIGN: &str = "another program's value";
/// The silence of a primary after which it is replaced. A busy machine must not cause a failover.
const NO_FAILOVER_WITHIN: Duration = Duration::from_secs(60);

/// Cases that need virtual time. They would take minutes here.
const CANNOT_RUN: &[&str] = &[
    "long_spans::token_is_remembered",
    "long_spans::token_outlives_an_expired_holder",
    "long_spans::longest_lease",
    "long_spans::no_copy_outlives_its_watermark",
    "long_spans::note_is_kept_for_two_days",
];

/// Without shard channels, a cluster has no push: with RESP2, and before Redis 7.0.
const NEED_PUSH: &[&str] = &[
    "client_push::*",
    "client_renewal::revoked_before_the_subscription_is_noticed",
    "notifications::*",
    "unreachable::*",
];

/// Runs the suite on the named backend. `documentation` contains the rights that it needs.
pub(crate) fn run(name: &'static str, documentation: &'static str) -> ExitCode {
    let redis = Redis::start(name, documentation);
    let without_proxy: &[&str] = if redis.has_proxy() {
        &[]
    } else {
        &["outages::*"]
    };
    let without_push = if redis.capabilities.push {
        &[][..]
    } else {
        NEED_PUSH
    };
    let server = Arc::clone(&redis.server);
    let ignored = [CANNOT_RUN, without_proxy, without_push].concat();
    let verdict = leasehold_conformance::run(redis, &ignored);
    match server.denied() {
        // A script may do without a command that is denied, only slower.
        Some(denied) => {
            eprintln!("the user lacks a right: {denied}");
            ExitCode::FAILURE
        }
        None => verdict,
    }
}

/// One server for all cases. Each case has a separate key prefix.
#[derive(Debug)]
pub(crate) struct Redis {
    name: &'static str,
    server: Arc<Topology>,
    capabilities: Capabilities,
    /// With TLS, the authority of the server's certificate, as PEM.
    authority: Option<String>,
}

/// What a backend connects to.
#[derive(Debug)]
enum Topology {
    Single(Box<RedisServer>),
    Sentinel(SentinelServers),
    Cluster(RedisCluster),
}

impl Topology {
    /// The topology that `LEASEHOLD_TOPOLOGY` names: a single server, `sentinel` or `cluster`.
    fn name() -> Option<String> {
        std::env::var("LEASEHOLD_TOPOLOGY").ok()
    }

    fn start(options: ServerOptions) -> Self {
        match Self::name().as_deref() {
            None => Self::Single(Box::new(options.start())),
            Some("cluster") => {
                let timeout = NO_FAILOVER_WITHIN.as_millis().to_string();
                let options = options.with_config("cluster-node-timeout", [timeout]);
                Self::Cluster(RedisCluster::start_with(6, |_| options.clone()))
            }
            Some("sentinel") => {
                let sentinels = ServerOptions::default();
                Self::Sentinel(SentinelServers::start_with(
                    &options,
                    &sentinels,
                    NO_FAILOVER_WITHIN,
                ))
            }
            Some(other) => panic!("LEASEHOLD_TOPOLOGY is {other:?}, not sentinel or cluster"),
        }
    }

    /// The URL of the server that has the lock with this Redis key.
    fn url_of(&self, key: &str) -> String {
        match self {
            Self::Cluster(cluster) => cluster.nodes()[cluster.primary_of(key)].url(),
            Self::Single(server) => server.url(),
            Self::Sentinel(servers) => servers.server(servers.primary()).url(),
        }
    }

    /// What a server has denied its user.
    fn denied(&self) -> Option<String> {
        let servers = match self {
            Self::Single(server) => std::slice::from_ref(&**server),
            Self::Sentinel(servers) => std::slice::from_ref(servers.server(servers.primary())),
            Self::Cluster(cluster) => cluster.nodes(),
        };
        let mut logs = servers.iter().map(|server| server.run(&["ACL", "LOG"]));
        logs.find(|log| log != "*0")
    }

    /// A single server has no dangerous setting. Servers with replicas would have to wait for them
    /// before each write.
    fn checks(&self) -> ServerChecks {
        match self {
            Self::Single(_) => ServerChecks::Reject,
            Self::Sentinel(_) | Self::Cluster(_) => ServerChecks::Warn,
        }
    }

    /// The URL for backends.
    fn backend_url(&self, tls: bool) -> String {
        match self {
            Self::Single(server) if tls => server.tls_url(),
            Self::Single(server) => server.url(),
            _ if tls => panic!("LEASEHOLD_TLS needs a single server"),
            Self::Cluster(cluster) => cluster.url(),
            Self::Sentinel(servers) => servers.url(),
        }
    }
}

impl Redis {
    /// Whether connections can lead through a proxy: to one server, without TLS.
    fn has_proxy(&self) -> bool {
        matches!(*self.server, Topology::Single(_)) && self.authority.is_none()
    }

    /// Starts a server for the named backend, whose user has the documented rights. The variable
    /// `LEASEHOLD_TLS` adds TLS: `server`, or `proxy` for servers that are built without it. The
    /// variable `LEASEHOLD_TOPOLOGY` can put sentinels in front, or start a cluster.
    pub(crate) fn start(name: &'static str, documentation: &'static str) -> Self {
        let user = [USER, "on", ">secret", "resetkeys", "~leasehold:*"];
        // Redis 6.2 grants all channels unless they are reset.
        let user = user.into_iter().chain(["resetchannels", "&leasehold:*"]);
        let is_cluster = Topology::name().as_deref() == Some("cluster");
        let has_shard_channels = RedisServer::default_version().major >= 7;
        let blocks = match (is_cluster, has_shard_channels) {
            (false, _) => 1,
            (true, false) => 2,
            (true, true) => 3,
        };
        let rights = documented_rights(documentation, blocks);
        let rights: Vec<_> = user.chain(rights).collect();
        let page = documented_rights(include_str!("../../../docs/redis.md"), 1);
        let page: Vec<_> = page.collect();
        let in_page = |right: &&str| *right == "+client|info" || page.contains(right);
        assert!(documented_rights(documentation, 1).all(|right| in_page(&right)));
        let mut options = ServerOptions::default()
            .with_config("user", rights)
            // So the checks of the server have nothing to complain about.
            .with_config("appendonly", ["yes"])
            .with_config("appendfsync", ["no"]);
        let authority = Authority::new();
        let identity = authority.issue("127.0.0.1");
        let tls = std::env::var("LEASEHOLD_TLS").ok();
        match tls.as_deref() {
            None => {}
            Some("server") => options = options.with_tls(identity, None),
            Some("proxy") => options = options.with_tls_proxy(identity),
            Some(other) => panic!("LEASEHOLD_TLS is {other:?}, not server or proxy"),
        }
        let mut capabilities = Capabilities::full();
        if is_cluster {
            capabilities.push = has_shard_channels && resp() == RespVersion::Resp3;
            capabilities.reachability = capabilities.push;
            capabilities.batches = false;
        }
        Self {
            name,
            server: Arc::new(Topology::start(options)),
            capabilities,
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

/// The command rights in these blocks of the crate's documentation: for all servers, for clusters,
/// and for notifications in clusters.
fn documented_rights(
    documentation: &'static str,
    blocks: usize,
) -> impl Iterator<Item = &'static str> {
    documentation
        .split("```")
        .filter(|block| block.contains("ACL SETUSER") && !block.contains("+sentinel"))
        .take(blocks)
        .flat_map(str::split_whitespace)
        // For the shell.
        .map(|word| word.trim_matches('\''))
        .filter(|word| word.starts_with(['+', '-']))
}

#[async_trait]
impl Harness for Redis {
    fn name(&self) -> &'static str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn abilities(&self) -> Abilities {
        let has_proxy = self.has_proxy();
        Abilities::default()
            .plant_foreign(true)
            .cut(has_proxy)
            .freeze(has_proxy)
    }

    fn timing(&self) -> Timing {
        // A busy machine may stall a process for more than 100 ms.
        Timing::real().unit(Duration::from_millis(300))
    }

    async fn environment(&self, namespace: &str) -> Result<Arc<dyn Environment>, SetupError> {
        // The user has rights for this prefix only.
        let prefix = format!("leasehold:{namespace}:");
        let protocol = Protocol::new(&prefix, ScriptSettings::default())?;
        let mut options = Options::new()
            .key_prefix(prefix)
            .resp(resp())
            .server_checks(self.server.checks())
            // A busy machine may need longer than the defaults.
            .call_timeout(bounds::MAX_CALL_TIMEOUT)
            .connect_timeout(Duration::from_secs(5));
        let mut backend_url = self.server.backend_url(self.authority.is_some());
        let mut proxy = None;
        if namespace.starts_with("outages-") {
            options = options.call_timeout(bounds::CALL_TIMEOUT);
        }
        if let (Topology::Single(server), true) = (&*self.server, namespace.starts_with("outages-"))
            && self.has_proxy()
        {
            let started = FaultProxy::start(server.address()).await;
            backend_url = started.url();
            proxy = Some(started);
        }
        if let Some(authority) = &self.authority {
            options = options.root_certificates(authority.as_str());
        }
        Ok(Arc::new(Namespace {
            server: Arc::clone(&self.server),
            proxy,
            backend_url: backend_url.replace("://", &format!("://{USER}:secret@")),
            protocol,
            options,
        }))
    }
}

#[derive(Debug)]
struct Namespace {
    server: Arc<Topology>,
    /// Between the backends and the server, in the cases that need it.
    proxy: Option<FaultProxy>,
    backend_url: String,
    protocol: Protocol,
    options: Options,
}

impl Namespace {
    fn proxy(&self) -> Result<&FaultProxy, SetupError> {
        let proxy = self.proxy.as_ref();
        proxy.ok_or_else(|| "this case has no proxy".into())
    }

    /// Sends a command to the server that has the key.
    async fn query<T: redis::FromRedisValue>(
        &self,
        key: &Key,
        command: &redis::Cmd,
    ) -> Result<T, SetupError> {
        let key = String::from_utf8(self.protocol.key(key))?;
        let client = redis::Client::open(self.server.url_of(&key))?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        Ok(command.query_async(&mut connection).await?)
    }
}

#[async_trait]
impl Environment for Namespace {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        let options = self.options.clone();
        Ok(client::connect_with(&self.backend_url, options).await?)
    }

    async fn let_time_pass(&self, duration: Duration) {
        #[expect(clippy::disallowed_methods, reason = "the cases are in real time")]
        tokio::time::sleep(duration).await;
    }

    async fn cut(&self) -> Result<(), SetupError> {
        self.proxy()?.cut_connections();
        Ok(())
    }

    async fn freeze(&self, frozen: bool) -> Result<(), SetupError> {
        let proxy = self.proxy()?;
        match frozen {
            true => proxy.black_hole(),
            false => proxy.heal(),
        }
        Ok(())
    }

    async fn plant_foreign(&self, key: &Key) -> Result<(), SetupError> {
        let mut set = redis::cmd("SET");
        set.arg(self.protocol.key(key)).arg(FOREIGN);
        self.query(key, &set).await
    }

    async fn foreign_is_untouched(&self, key: &Key) -> Result<bool, SetupError> {
        let mut get = redis::cmd("GET");
        get.arg(self.protocol.key(key));
        let found: Option<String> = self.query(key, &get).await?;
        Ok(found.as_deref() == Some(FOREIGN))
    }
}
