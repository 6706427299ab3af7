//! A primary with two replicas, and three sentinels that watch them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::process::CHANGE_WITHIN;
use crate::server::{RedisServer, ServerOptions};
use crate::waiting::{block_until, within};

const SERVERS: usize = 3;
const SENTINELS: usize = 3;

/// After three times the `failover-timeout`, no sentinel goes on with a failover.
const GIVEN_UP_AFTER: Duration = Duration::from_millis(3 * FAILOVER_TIMEOUT_MS);

const FAILOVER_TIMEOUT_MS: u64 = 3_000;

/// The sentinels' user on the servers. A server that takes its rights away is isolated from them.
const WATCHER: &str = "sentinel";

/// Three servers, of which one is the primary, and three sentinels. They listen on ports of
/// 127.0.0.1, and each works in a temporary folder. A [`FaultProxy`](crate::FaultProxy) can be put
/// in front of each sentinel, and in front of each server for clients that are given its address.
///
/// Dropping this value kills all of them.
#[derive(Debug)]
#[must_use]
pub struct SentinelServers {
    sentinels: Vec<RedisServer>,
    servers: Vec<RedisServer>,
}

impl SentinelServers {
    /// The name of the service.
    pub const SERVICE: &str = "mymaster";

    /// Starts servers without persistence. The sentinels promote a replica if the primary has been
    /// silent for `down_after`.
    pub fn start(down_after: Duration) -> Self {
        let plain = ServerOptions::default();
        Self::start_with(&plain, &plain, down_after)
    }

    /// Starts servers with the first options, and sentinels with the second. If the servers have
    /// TLS, the sentinels need it too.
    pub fn start_with(
        servers: &ServerOptions,
        sentinels: &ServerOptions,
        down_after: Duration,
    ) -> Self {
        let server = || {
            let rights = [WATCHER, "on", ">watch", "~*", "&*", "+@all"];
            let options = servers.clone().with_tls_between_servers();
            // By default, a replica whose handshake meets a failover gives up only after 60 s.
            options
                .with_config("user", rights)
                .with_config("repl-timeout", ["6"])
                .with_config("repl-ping-replica-period", ["1"])
        };
        let primary = server().start();
        let port = primary.peer_port();
        let of_primary = || ["127.0.0.1".into(), port.to_string()];
        let mut servers = vec![primary];
        for _ in 1..SERVERS {
            servers.push(server().with_config("replicaof", of_primary()).start());
        }
        let options = sentinels.clone().with_tls_between_servers();
        let options = options.with_sentinel(config(port, down_after));
        let sentinels = (0..SENTINELS).map(|_| options.clone().start()).collect();
        let started = Self { sentinels, servers };
        started.wait_until_known();
        started.wait_until_in_sync();
        started
    }

    /// The URL of the sentinels, `redis-sentinel://127.0.0.1:PORT?…`.
    pub fn url(&self) -> String {
        let addresses = self.sentinels.iter().map(RedisServer::address);
        Self::url_of("redis-sentinel", addresses)
    }

    /// The URL of the sentinels' ports with TLS, `rediss-sentinel://127.0.0.1:PORT?…`.
    pub fn tls_url(&self) -> String {
        let addresses = self.sentinels.iter().map(RedisServer::peer_address);
        Self::url_of("rediss-sentinel", addresses)
    }

    /// A URL of sentinels at other addresses, for example of proxies.
    pub fn url_of(scheme: &str, addresses: impl IntoIterator<Item = SocketAddr>) -> String {
        let addresses: Vec<String> = addresses.into_iter().map(|it| it.to_string()).collect();
        let nodes = addresses[1..].iter().map(|it| format!("&node={it}"));
        let (first, nodes) = (&addresses[0], nodes.collect::<String>());
        let service = Self::SERVICE;
        format!("{scheme}://{first}/?sentinelServiceName={service}{nodes}")
    }

    /// The number of the server that the sentinels name as the primary.
    pub fn primary(&self) -> usize {
        let named = self.sentinels.iter().find_map(|it| self.named_by(it));
        named.expect("a sentinel that names a server")
    }

    /// The numbers of the servers that are primaries in their own eyes: two, from the promotion of a replica until
    /// the old primary follows it.
    pub fn primaries(&self) -> Vec<usize> {
        let is_primary = |number: &usize| self.says(*number, "role:master");
        (0..SERVERS).filter(is_primary).collect()
    }

    /// The server with this number: 0 to 2.
    pub fn server(&self, number: usize) -> &RedisServer {
        &self.servers[number]
    }

    /// The server with this number: 0 to 2.
    pub fn server_mut(&mut self, number: usize) -> &mut RedisServer {
        &mut self.servers[number]
    }

    /// The sentinel with this number: 0 to 2.
    pub fn sentinel(&self, number: usize) -> &RedisServer {
        &self.sentinels[number]
    }

    /// The sentinel with this number: 0 to 2.
    pub fn sentinel_mut(&mut self, number: usize) -> &mut RedisServer {
        &mut self.sentinels[number]
    }

    /// Makes the sentinels promote a replica, with `SENTINEL FAILOVER`. Returns the number of the
    /// new primary once all sentinels name it.
    pub fn fail_over(&self) -> usize {
        let command = format!("SENTINEL FAILOVER {}", Self::SERVICE);
        let begun = Instant::now();
        // Sentinels may give up a failover that they have agreed to, or replace the primary on their own before.
        while begun.elapsed() < CHANGE_WITHIN {
            let old = self.primary();
            block_until("the failover begins", || {
                // It is refused while another one is going on, or no replica is fit.
                let replies = self.sentinels.iter().map(|it| it.values(&command));
                replies.flatten().any(|reply| reply == ["OK"])
            });
            let mut new = None;
            within(GIVEN_UP_AFTER, || {
                new = self.successor_of(old);
                new.is_some()
            });
            if let Some(new) = new {
                return new;
            }
        }
        panic!("too late: the sentinels have promoted no replica");
    }

    /// Waits until all sentinels that run name another server than `old`, and that server has
    /// become a primary. Returns its number.
    pub fn wait_for_another_primary(&self, old: usize) -> usize {
        let mut new = None;
        block_until("another primary is named", || {
            new = self.successor_of(old);
            new.is_some()
        });
        new.expect("a server")
    }

    /// The primary that all sentinels that run name, if it isn't `old`.
    fn successor_of(&self, old: usize) -> Option<usize> {
        let mut named = self.sentinels.iter().filter_map(|it| self.named_by(it));
        let new = named.next()?;
        (new != old && named.all(|it| it == new) && self.says(new, "role:master")).then_some(new)
    }

    /// Waits until a server has no replicas left.
    pub fn wait_until_alone(&self, number: usize) {
        let alone = || self.says(number, "connected_slaves:0");
        block_until("the replicas have left", alone);
    }

    /// Cuts a server off from the sentinels: it refuses all their commands, so to them it is down.
    /// Clients with another user are still served.
    pub fn isolate(&self, number: usize) {
        self.set_watcher_rights(number, "-@all");
    }

    /// Ends [`isolate`](Self::isolate).
    pub fn rejoin(&self, number: usize) {
        self.set_watcher_rights(number, "+@all");
    }

    fn set_watcher_rights(&self, number: usize, rights: &str) {
        let command = format!("ACL SETUSER {WATCHER} {rights}");
        let reply = self.servers[number].values(&command).expect("a reply");
        assert_eq!(reply, ["OK"]);
    }

    /// Waits until both replicas have everything that the primary has. On a busy machine, the
    /// sentinels may replace the primary meanwhile.
    pub fn wait_until_in_sync(&self) {
        block_until("the replicas are in sync", || {
            let primary = self.primary();
            let written = self.offset(primary, "master_repl_offset:");
            let mut replicas = (0..SERVERS).filter(|&number| number != primary);
            replicas.all(|number| {
                self.says(number, "master_link_status:up")
                    && self.offset(number, "slave_repl_offset:") >= written
            })
        });
    }

    fn wait_until_known(&self) {
        block_until("the sentinels know all servers", || {
            self.sentinels.iter().all(|sentinel| {
                let state = sentinel.values(&format!("SENTINEL MASTER {}", Self::SERVICE));
                let state = state.unwrap_or_default();
                let is = |name: &str, value: &str| {
                    let mut pairs = state.windows(2);
                    pairs.any(|pair| pair[0] == name && pair[1] == value)
                };
                is("flags", "master")
                    && is("num-slaves", "2")
                    && is("num-other-sentinels", "2")
                    && self.is_connected(sentinel)
            })
        });
    }

    /// Whether a sentinel has a connection to each other one. It opens them up to 1 s after it knows them.
    fn is_connected(&self, sentinel: &RedisServer) -> bool {
        let others = sentinel.values(&format!("SENTINEL SENTINELS {}", Self::SERVICE));
        let others = others.unwrap_or_default();
        !others.is_empty() && !others.iter().any(|it| it.contains("disconnected"))
    }

    /// The number of the server that a sentinel names. `None` if the sentinel doesn't answer.
    fn named_by(&self, sentinel: &RedisServer) -> Option<usize> {
        let command = format!("SENTINEL GET-MASTER-ADDR-BY-NAME {}", Self::SERVICE);
        let address = sentinel.values(&command).ok()?;
        let port = address.get(1)?;
        let mut servers = self.servers.iter();
        servers.position(|server| server.peer_port().to_string() == *port)
    }

    fn offset(&self, number: usize, field: &str) -> Option<u64> {
        let info = self.replication(number);
        info.iter()
            .find_map(|line| line.strip_prefix(field)?.parse().ok())
    }

    fn says(&self, number: usize, line: &str) -> bool {
        self.replication(number).iter().any(|it| it == line)
    }

    fn replication(&self, number: usize) -> Vec<String> {
        let info = self.servers[number].values("INFO replication");
        info.unwrap_or_default()
    }
}

fn config(port: u16, down_after: Duration) -> String {
    let service = SentinelServers::SERVICE;
    format!(
        "sentinel monitor {service} 127.0.0.1 {port} 2\n\
         sentinel auth-user {service} {WATCHER}\n\
         sentinel auth-pass {service} watch\n\
         sentinel down-after-milliseconds {service} {}\n\
         sentinel failover-timeout {service} {FAILOVER_TIMEOUT_MS}\n\
         sentinel parallel-syncs {service} 2\n",
        down_after.as_millis()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOWN_AFTER: Duration = Duration::from_millis(500);

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "nothing shows that the sentinels have given up"
    )]
    fn failover_that_the_sentinels_give_up_is_begun_again() {
        let all = SentinelServers::start(DOWN_AFTER);
        let old = all.primary();
        let replicas = || (0..SERVERS).filter(|&number| number != old);
        replicas().for_each(|number| all.server(number).pause());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The sentinels have promoted a replica that doesn't answer.
                std::thread::sleep(Duration::from_millis(FAILOVER_TIMEOUT_MS + 1_000));
                replicas().for_each(|number| all.server(number).resume());
            });
            assert_ne!(all.fail_over(), old);
        });
    }

    #[test]
    fn isolated_primary_is_replaced_and_goes_on_until_it_rejoins() {
        let all = SentinelServers::start(DOWN_AFTER);
        let old = all.primary();
        all.isolate(old);
        let new = all.wait_for_another_primary(old);
        assert!(all.says(old, "role:master") && all.says(new, "role:master"));
        all.rejoin(old);
        block_until("it is a replica", || all.says(old, "role:slave"));
        all.wait_until_in_sync();
    }
}
