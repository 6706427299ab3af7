//! The server's identity and version.

use leasehold_api::{BackendError, ClockId};

use super::slots::NodeAddress;

/// The oldest server version that runs the scripts.
const OLDEST: (u32, u32) = (6, 2);

/// The clock of a server without a `run_id`. A connection watches it for changes.
pub(crate) const WATCHED: ClockId = ClockId::new(1);
/// The clock of notifications from a server without a `run_id`. No reply has this id, so the client
/// renews a lock that it was granted by a notification before it returns the guard.
pub(crate) const UNKNOWN: ClockId = ClockId::new(0);

/// How a server must run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerMode {
    Standalone,
    /// As a node of a cluster.
    Cluster,
}

/// The parts of `INFO` that a backend uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerInfo {
    /// The id of the server's clock, derived from its `run_id`. Some services don't tell it.
    pub(crate) clock: Option<ClockId>,
    /// The server's version as it reports it.
    pub(crate) version: String,
    /// `master` or `slave`.
    pub(crate) role: Option<String>,
    /// Whether the server has `SET … IFEQ`: Valkey since 8.1, Redis since 8.4.
    pub(crate) compares: bool,
}

impl ServerInfo {
    /// Reads the answer to `INFO` and checks that the server can be used. Valkey reports its
    /// mode and version under other names than Redis, and a compatible `redis_version`.
    ///
    /// # Errors
    /// [`BackendError::Rejected`] if
    /// - the answer has no version, as with some proxies;
    /// - the version is older than 6.2;
    /// - the server is a sentinel;
    /// - the server runs in another mode. A node of a cluster has only some of the keys, and a batch
    ///   would span nodes.
    pub(crate) fn parse(info: &str, expected: ServerMode) -> Result<Self, BackendError> {
        // Some proxies and forks report no mode.
        if let Some(mode) = field(info, "redis_mode").or(field(info, "server_mode")) {
            check_mode(mode, expected)?;
        }
        let (valkey, redis) = (field(info, "valkey_version"), field(info, "redis_version"));
        let Some(version) = valkey.or(redis) else {
            return Err(BackendError::rejected(
                "the server's answer to INFO names no redis_version",
            ));
        };
        let compares_since = if valkey.is_some() { (8, 1) } else { (8, 4) };
        let mut numbers = version.split('.').map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= OLDEST => Ok(Self {
                clock: field(info, "run_id").map(clock_of),
                version: version.into(),
                role: field(info, "role").map(Into::into),
                compares: (major, minor) >= compares_since,
            }),
            _ => Err(BackendError::rejected(format!(
                "the server has version {version}, Redis 6.2 or newer is needed"
            ))),
        }
    }
}

fn check_mode(mode: &str, expected: ServerMode) -> Result<(), BackendError> {
    let problem = match (mode, expected) {
        ("standalone", ServerMode::Standalone) | ("cluster", ServerMode::Cluster) => return Ok(()),
        ("standalone", _) => "the server runs in standalone mode; write redis://HOST:PORT".into(),
        ("cluster", _) => {
            "the server is a node of a cluster; write redis-cluster://HOST:PORT".into()
        }
        ("sentinel", _) => "the server is a sentinel; write redis-sentinel://HOST:PORT\
                            /?sentinelServiceName=NAME"
            .into(),
        _ => format!("the server runs in {mode} mode, which has no locks"),
    };
    Err(BackendError::rejected(problem))
}

impl ServerInfo {
    /// Whether the server has shard channels. Redis has them since 7.0, and so do all versions of
    /// Valkey.
    pub(crate) fn has_shard_channels(&self) -> bool {
        let major = self.version.split('.').next().map(str::parse::<u32>);
        matches!(major, Some(Ok(7..)))
    }
}

/// A field of an answer to `INFO`.
pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value.trim())
        .filter(|value| !value.is_empty())
}

/// Hashes the `run_id`. It is unique, but its format is not specified.
fn clock_of(run_id: &str) -> ClockId {
    hashed(run_id)
}

/// The clock of a node without a `run_id`. Nodes at different addresses have different clocks.
pub(crate) fn address_clock(address: &NodeAddress) -> ClockId {
    hashed(&address.to_string())
}

fn hashed(name: &str) -> ClockId {
    let digest = sha1_smol::Sha1::from(name).digest().bytes();
    let mut start = [0; 8];
    start.copy_from_slice(&digest[..8]);
    ClockId::new(u64::from_be_bytes(start))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::ServerMode::{Cluster, Standalone};
    use super::*;

    fn info(version: &str, run_id: &str) -> String {
        format!("# Server\r\nredis_version:{version}\r\nos:Linux\r\nrun_id:{run_id}\r\n")
    }

    #[test]
    fn clock_depends_only_on_the_run_id() {
        let parse = |version, run_id| {
            ServerInfo::parse(&info(version, run_id), Standalone).expect("usable")
        };
        let first = parse("7.0.15", "aa");
        let plain = info("7.0.15", "aa") + "redis_mode:standalone\r\n";
        assert_eq!(
            ServerInfo::parse(&plain, Standalone).expect("usable"),
            first
        );
        assert_eq!(first.version, "7.0.15");
        assert_eq!(first.clock, parse("6.2.0", "aa").clock);
        assert_ne!(first.clock, parse("7.0.15", "ab").clock);
    }

    #[test]
    fn run_id_is_optional() {
        for text in [info("7.0.15", ""), "redis_version:7.0.15\r\n".into()] {
            assert_eq!(
                ServerInfo::parse(&text, Standalone).expect("usable").clock,
                None
            );
        }
    }

    /// The fields of Valkey 9.1.
    fn valkey(mode: &str) -> String {
        format!(
            "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n\
             server_mode:{mode}\r\nrun_id:aa\r\n"
        )
    }

    #[test]
    fn valkey_is_read_under_its_own_names() {
        let usable = ServerInfo::parse(&valkey("standalone"), Standalone).expect("usable");
        assert_eq!(usable.version, "9.1.2");
        assert_eq!(usable.clock, Some(clock_of("aa")));
    }

    #[test]
    fn unusable_server_is_rejected_with_a_reason() {
        for (text, reason) in [
            (info("6.0.16", "aa"), "6.2 or newer"),
            (info("unknown", "aa"), "6.2 or newer"),
            ("run_id:aa\r\n".into(), "no redis_version"),
            (
                info("7.0.15", "aa") + "redis_mode:cluster\r\n",
                "node of a cluster; write redis-cluster://",
            ),
            (
                info("7.0.15", "aa") + "redis_mode:sentinel\r\n",
                "is a sentinel",
            ),
            (valkey("cluster"), "node of a cluster"),
            (valkey("sentinel"), "redis-sentinel://"),
        ] {
            let error = ServerInfo::parse(&text, Standalone).expect_err("unusable");
            assert!(matches!(error, BackendError::Rejected { .. }), "{error:?}");
            assert!(error.to_string().contains(reason), "{error}");
        }
    }

    #[test]
    fn cluster_needs_nodes_of_a_cluster() {
        let node = info("7.0.15", "aa") + "redis_mode:cluster\r\n";
        assert!(ServerInfo::parse(&node, Cluster).is_ok());
        assert!(ServerInfo::parse(&info("7.0.15", "aa"), Cluster).is_ok());
        for (mode, reason) in [
            ("standalone", "redis://"),
            ("sentinel", "redis-sentinel://"),
        ] {
            let error = ServerInfo::parse(&valkey(mode), Cluster).expect_err("unusable");
            assert!(error.to_string().contains(reason), "{error}");
        }
    }

    #[test]
    fn nodes_without_a_run_id_have_different_clocks() {
        let at = |port| {
            let host = "10.0.0.1".into();
            address_clock(&NodeAddress { host, port })
        };
        assert_ne!(at(1), at(2));
        assert_eq!(at(1), at(1));
    }

    proptest! {
        #[test]
        fn info_is_read_or_refused(
            info in prop_oneof![
                "(redis_mode|server_mode):(standalone|cluster|sentinel|)\r\n(redis|valkey)_version:[0-9.]{0,9}\r\n(run_id:.{0,9}|)",
                any::<String>(),
            ],
        ) {
            for mode in [Standalone, Cluster] {
                if let Ok(found) = ServerInfo::parse(&info, mode) {
                    prop_assert!(!found.version.is_empty());
                    let _ = found.has_shard_channels();
                }
            }
        }
    }
}
