//! Redis servers behind proxies that drop replies, and a backend for each constructor.

use std::slice;
use std::sync::Arc;

use leasehold_api::{Convert, ForceRelease, Key, Poll, bounds};
use leasehold_redis_common::Options;
use leasehold_test_servers::{FaultProxy, RedisCluster, RedisServer, Request};

use super::faults::Setup;
use super::requests::{
    Backend, LEASE, acquire, acquired, mutex, only, operation, release, renew, session, soon,
};
use crate::constructors::{CONSTRUCTORS, ON_CLUSTER};

enum Servers {
    Single(Box<RedisServer>),
    Cluster(RedisCluster),
}

impl Servers {
    fn start() -> Self {
        match ON_CLUSTER {
            false => Self::Single(Box::new(RedisServer::start())),
            true => Self::Cluster(RedisCluster::start_without_replicas()),
        }
    }

    /// Starts a proxy in front of each server. Returns the one of the server that has the key, the others,
    /// and a URL that leads through them.
    async fn behind_proxies(&self, key: &Key) -> (FaultProxy, Vec<FaultProxy>, String) {
        let nodes = match self {
            Self::Single(server) => slice::from_ref(&**server),
            Self::Cluster(cluster) => cluster.nodes(),
        };
        let mut proxies = Vec::new();
        for node in nodes {
            proxies.push(FaultProxy::start(node.address()).await);
        }
        let addresses: Vec<_> = proxies.iter().map(FaultProxy::address).collect();
        let (node, url) = match self {
            Self::Single(_) => (0, proxies[0].url()),
            Self::Cluster(cluster) => {
                cluster.announce(&addresses);
                let stored = format!("{}{{{key}}}", bounds::DEFAULT_KEY_PREFIX);
                (
                    cluster.primary_of(&stored),
                    RedisCluster::url_at(&addresses),
                )
            }
        };
        (proxies.remove(node), proxies, url)
    }

    /// The URL without the proxies. The nodes of a cluster name the proxies even so.
    fn url(&self) -> String {
        match self {
            Self::Single(server) => server.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }
}

/// A setup for each constructor, all on the same servers, each with a separate key prefix.
pub(crate) async fn setups(key: &Key) -> Vec<Setup> {
    let servers = Servers::start();
    let (proxy, others, url) = servers.behind_proxies(key).await;
    let proxy = Arc::new(proxy);
    let direct_url = servers.url();
    load_scripts(&CONSTRUCTORS[0].open(&direct_url).await, key).await;
    let servers = Arc::new((servers, others));
    let mut setups = Vec::new();
    for constructor in CONSTRUCTORS {
        let options = Options::new().key_prefix(format!("{}:", constructor.name));
        let direct = CONSTRUCTORS[0]
            .open_with(&direct_url, options.clone())
            .await;
        let url = url.clone();
        let open = move || (constructor.make)(url.clone(), options.clone());
        let tested = open().await;
        // Only replies of the test's own calls are to be lost, and not of the check of a new connection.
        tested.inspect(key).await.expect("the server answers");
        setups.push(Setup {
            name: constructor.name,
            open: Box::new(open),
            reconnects: constructor.reconnects,
            proxy: Arc::clone(&proxy),
            has_effect: Request::is_script,
            tested,
            direct,
            _servers: servers.clone(),
        });
    }
    setups
}

/// Runs every script once. Otherwise the lost reply could be `NOSCRIPT`.
async fn load_scripts(backend: &Backend, key: &Key) {
    let operation = operation(session(9), 1);
    let request = mutex(key, operation, soon(backend).await);
    let answer = acquire(backend, &request).await.expect("an answer");
    let held = acquired(&answer.reply);
    let poll = Poll::new(key.clone(), operation, false);
    only(backend.poll(&[poll]).await).expect("an answer");
    let renewed = renew(backend, key, operation, LEASE).await;
    renewed.expect("an answer");
    let convert = Convert::to_shared(key.clone(), operation, held.token);
    backend.convert(&convert).await.expect("an answer");
    let force = ForceRelease::new(key.clone(), vec![held.token]);
    backend.force_release(&force).await.expect("an answer");
    let released = release(backend, key, operation).await;
    released.expect("an answer");
}
