//! The server's identity and version.

use leasehold_api::{BackendError, ClockId};

/// The oldest server version that runs the scripts.
const OLDEST: (u32, u32) = (6, 2);

/// The clock of a server without a `run_id`. A connection watches it for changes.
pub(crate) const WATCHED: ClockId = ClockId::new(1);
/// The clock of notifications from a server without a `run_id`. No reply has this id, so the client
/// renews a lock that it was granted by a notification before it returns the guard.
pub(crate) const UNKNOWN: ClockId = ClockId::new(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerMode {
    Standalone,
    Cluster,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerInfo {
    /// Such as `Valkey 9.1.0`.
    pub(crate) version: String,
    /// The id of the server's clock, derived from its `run_id`. Some services don't tell it.
    pub(crate) clock: Option<ClockId>,
    /// `master` or `slave`.
    pub(crate) role: Option<String>,
    /// Whether it reads its data after a start, or as a replica from its primary. It has no append-only file meanwhile.
    pub(crate) is_loading: bool,
    /// Redis has them since 7.0, and so do all versions of Valkey.
    pub(crate) has_shard_channels: bool,
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
        let mut numbers = version.split('.').map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= OLDEST => Ok(Self {
                version: match valkey {
                    Some(version) => format!("Valkey {version}"),
                    None => format!("Redis {version}"),
                },
                clock: field(info, "run_id").map(clock_named),
                role: field(info, "role").map(Into::into),
                is_loading: ["loading", "async_loading"]
                    .iter()
                    .any(|it| field(info, it) == Some("1")),
                has_shard_channels: major >= 7,
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

pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value.trim())
        .filter(|value| !value.is_empty())
}

/// The clock of the server with this `run_id`, or of the node without one at this address. A `run_id` is unique,
/// but its format is not specified.
pub(crate) fn clock_named(name: &str) -> ClockId {
    let digest = sha1_smol::Sha1::from(name).digest().bytes();
    let start = digest.first_chunk().expect("20 bytes");
    ClockId::new(u64::from_be_bytes(*start))
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
        let clock = |text: String| ServerInfo::parse(&text, Standalone).expect("usable").clock;
        let first = clock(info("7.0.15", "aa"));
        assert_eq!(
            clock(info("7.0.15", "aa") + "redis_mode:standalone\r\n"),
            first
        );
        assert_eq!(clock(info("6.2.0", "aa")), first);
        assert_ne!(clock(info("7.0.15", "ab")), first);
        for without in [info("7.0.15", ""), "redis_version:7.0.15\r\n".into()] {
            assert_eq!(clock(without), None);
        }
    }

    #[test]
    fn server_that_loads_says_so() {
        let is_loading = |fields: &str| {
            let text = info("7.0.15", "aa") + fields;
            let server = ServerInfo::parse(&text, Standalone);
            server.expect("usable").is_loading
        };
        assert!(!is_loading(""));
        assert!(!is_loading("loading:0\r\nasync_loading:0\r\n"));
        assert!(is_loading("loading:1\r\nasync_loading:0\r\n"));
        assert!(is_loading("loading:0\r\nasync_loading:1\r\n"));
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
        assert!(usable.has_shard_channels);
        assert_eq!(usable.clock, Some(clock_named("aa")));
    }

    #[test]
    fn unusable_server_is_rejected_with_a_reason() {
        let redis = |mode: &str| info("7.0.15", "aa") + "redis_mode:" + mode + "\r\n";
        for (text, expected, reason) in [
            (info("6.0.16", "aa"), Standalone, "6.2 or newer"),
            (info("unknown", "aa"), Standalone, "6.2 or newer"),
            ("run_id:aa\r\n".into(), Standalone, "no redis_version"),
            (
                redis("cluster"),
                Standalone,
                "node of a cluster; write redis-cluster://",
            ),
            (redis("sentinel"), Standalone, "is a sentinel"),
            (valkey("cluster"), Standalone, "node of a cluster"),
            (valkey("sentinel"), Standalone, "redis-sentinel://"),
            (valkey("standalone"), Cluster, "redis://"),
            (valkey("sentinel"), Cluster, "redis-sentinel://"),
        ] {
            let error = ServerInfo::parse(&text, expected).expect_err("unusable");
            assert!(matches!(error, BackendError::Rejected { .. }), "{error:?}");
            assert!(error.to_string().contains(reason), "{error}");
        }
        for node in [redis("cluster"), info("7.0.15", "aa")] {
            assert!(ServerInfo::parse(&node, Cluster).is_ok(), "{node}");
        }
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
                let is_read = ServerInfo::parse(&info, mode).is_ok();
                prop_assert!(!is_read || info.contains("_version:"));
            }
        }
    }
}
