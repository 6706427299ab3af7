//! The URL of a server. All backends accept the same URLs, and read them in the same way.

use std::fmt;
use std::path::PathBuf;

use leasehold_api::InvalidInput;
use percent_encoding::percent_decode_str;
use url::{Host, Url};

const DEFAULT_PORT: u16 = 6379;
const DEFAULT_SENTINEL_PORT: u16 = 26379;
const SENTINEL_SUFFIX: &str = "-sentinel";
const CLUSTER_SUFFIX: &str = "-cluster";

/// Where a server listens, and who logs in.
///
/// | URL | connects to |
/// |---|---|
/// | `redis://user:password@host:port/database` | a TCP port. All parts but the host are optional. |
/// | `rediss://…` | the same, with TLS |
/// | `redis+unix:///path/to/socket?db=1&user=me&pass=secret` | a Unix socket. The parameters are optional. |
/// | `redis-sentinel://user:password@sentinel:port/database?sentinelServiceName=mymaster&node=sentinel2:port` | the primary that the sentinels name. One `node` for each further sentinel; the default port is 26379. The user and the password are the server's. |
/// | … `&sentinelUsername=me&sentinelPassword=secret` | the same, with the login of the sentinels, if they have one |
/// | `rediss-sentinel://…` | the same, with TLS to the sentinels and to the server |
/// | `redis-cluster://user:password@host:port?node=host2:port2` | a cluster. One node is enough; others help if that one is down. |
/// | `rediss-cluster://…` | the same, with TLS |
///
/// `valkey://`, `valkeys://`, `valkey+unix://`, `unix://`, and `valkey` in place of `redis` before
/// `-sentinel` and `-cluster` mean the same. In parameters, write `%2B` for `+`.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerUrl {
    /// Where the server listens. With Sentinel, where the first sentinel listens. In a cluster, where
    /// the first node listens.
    pub address: Address,
    /// The user name.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// The number of the database.
    pub database: u8,
    /// The sentinels that name the server's address, if the URL has them.
    pub sentinels: Option<Sentinels>,
    /// Where the nodes of a cluster listen, if the URL is a cluster's. It may name only some of them.
    pub cluster: Option<Vec<Address>>,
}

/// The sentinels in a URL.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sentinels {
    /// The name under which they watch the servers.
    pub service: String,
    /// Where they listen.
    pub addresses: Vec<Address>,
    /// The user name on the sentinels.
    pub user: Option<String>,
    /// The password on the sentinels.
    pub password: Option<String>,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A TCP port.
    Tcp {
        /// A name or an IP address, without brackets.
        host: String,
        /// The port.
        port: u16,
        /// Whether to use TLS.
        tls: bool,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// Doesn't show the password.
impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerUrl")
            .field("address", &self.address)
            .field("user", &self.user)
            .field("database", &self.database)
            .field("sentinels", &self.sentinels)
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

/// Shows `host:port`, or the path of a socket.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Address {
    /// The address of a node of a cluster as the node at `asked` names it. A node that doesn't know its own host
    /// leaves it out, or writes a question mark.
    pub(crate) fn told(host: &str, port: u16, asked: &Self) -> Self {
        match asked {
            Self::Tcp { host: own, tls, .. } => Self::Tcp {
                host: if matches!(host, "" | "?") { own } else { host }.to_owned(),
                port,
                tls: *tls,
            },
            // No URL names the socket of a node.
            Self::Unix(_) => asked.clone(),
        }
    }
}

/// Doesn't show the password.
impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinels")
            .field("service", &self.service)
            .field("addresses", &self.addresses)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

impl ServerUrl {
    /// Reads a URL. `has_tls` says whether the backend supports TLS.
    ///
    /// # Errors
    /// [`InvalidInput`] that says what is wrong. It never contains the password.
    pub fn parse(url: &str, has_tls: bool) -> Result<Self, InvalidInput> {
        check_scheme(url, has_tls)?;
        let url = Url::parse(url).map_err(|error| unusable(error.to_string()))?;
        if url.fragment().is_some() {
            return Err(unusable("a fragment has no meaning; write # as %23"));
        }
        let is_unix = url.scheme().ends_with("unix");
        let is_sentinel = url.scheme().ends_with(SENTINEL_SUFFIX);
        let is_cluster = url.scheme().ends_with(CLUSTER_SUFFIX);
        let mut parsed = Self {
            address: if is_unix { socket(&url)? } else { tcp(&url)? },
            user: non_empty(url.username())?,
            password: non_empty(url.password().unwrap_or_default())?,
            database: 0,
            sentinels: None,
            cluster: None,
        };
        if !is_unix {
            parsed.set_database(url.path().trim_matches('/'))?;
        }
        if url.query().is_some_and(|query| query.contains('@')) {
            // The rest of a password with a question mark.
            return Err(unusable("write ? as %3F and @ as %40"));
        }
        if is_cluster && parsed.database != 0 {
            return Err(unusable("a cluster has only database 0"));
        }
        let mut sentinels = Sentinels {
            service: String::new(),
            addresses: Vec::new(),
            user: None,
            password: None,
        };
        let mut nodes = vec![parsed.address.clone()];
        for (name, value) in url.query_pairs() {
            let value = value.into_owned();
            match &*name {
                "db" if is_unix => parsed.set_database(&value)?,
                "user" if is_unix => parsed.user = Some(value),
                "pass" if is_unix => parsed.password = Some(value),
                "node" if is_sentinel || is_cluster => nodes.push(node(&url, &value)?),
                "sentinelServiceName" if is_sentinel => sentinels.service = value,
                "sentinelUsername" if is_sentinel => sentinels.user = Some(value),
                "sentinelPassword" if is_sentinel => sentinels.password = Some(value),
                // The options choose the protocol. The `redis` crate reads this parameter.
                "protocol" => {}
                _ => return Err(unknown_parameter(&url, &name)),
            }
        }
        if is_cluster {
            parsed.cluster = Some(nodes);
        } else if is_sentinel {
            if sentinels.service.is_empty() {
                let problem = "it names no service; write ?sentinelServiceName=mymaster";
                return Err(unusable(problem));
            }
            sentinels.addresses = nodes;
            parsed.sentinels = Some(sentinels);
        }
        Ok(parsed)
    }

    /// Whether connections use TLS.
    pub fn uses_tls(&self) -> bool {
        matches!(self.address, Address::Tcp { tls: true, .. })
    }

    fn set_database(&mut self, number: &str) -> Result<(), InvalidInput> {
        if !number.is_empty() {
            self.database = number
                .parse()
                .map_err(|_| unusable("the database is a number from 0 to 255"))?;
        }
        Ok(())
    }
}

/// Checks that the URL has a supported scheme. The client libraries read some other schemes as
/// `redis`, and would then send the password in plain text.
fn check_scheme(url: &str, has_tls: bool) -> Result<(), InvalidInput> {
    let Some((scheme, _)) = url.split_once("://") else {
        // A URL with an `@` may contain a password.
        let example = match url {
            "" => "redis://localhost".into(),
            _ if url.contains('@') => "redis://user:password@host".into(),
            _ => format!("redis://{url}"),
        };
        return Err(unusable(format!("it has no scheme; write {example}")));
    };
    let lower = scheme.to_ascii_lowercase();
    match without_suffix(&lower) {
        "redis+unix" | "valkey+unix" | "unix" if lower.ends_with(SENTINEL_SUFFIX) => Err(unusable(
            "sentinels have no Unix socket; write redis-sentinel://",
        )),
        "redis+unix" | "valkey+unix" | "unix" if lower.ends_with(CLUSTER_SUFFIX) => Err(unusable(
            "the nodes of a cluster have no Unix socket; write redis-cluster://",
        )),
        "redis" | "valkey" | "redis+unix" | "valkey+unix" | "unix" => Ok(()),
        "rediss" | "valkeys" if has_tls => Ok(()),
        "rediss" | "valkeys" => Err(unusable(format!(
            "{scheme}:// needs TLS; enable the feature tls-rustls"
        ))),
        other if other.contains("sentinel") => Err(unusable(
            "for Sentinel, write redis-sentinel:// or rediss-sentinel://",
        )),
        other if other.contains("cluster") => Err(unusable(
            "for a cluster, write redis-cluster:// or rediss-cluster://",
        )),
        // It may be a password.
        other if other.contains(['@', ':']) => Err(unusable("its scheme is not redis://")),
        _ => Err(unusable(format!(
            "the scheme {scheme}:// is unknown; write redis://, rediss:// or redis+unix://"
        ))),
    }
}

fn tcp(url: &Url) -> Result<Address, InvalidInput> {
    let host = match url.host() {
        Some(Host::Domain(name)) if !name.is_empty() => name.into(),
        Some(Host::Ipv4(ip)) => ip.to_string(),
        Some(Host::Ipv6(ip)) => ip.to_string(),
        _ => return Err(unusable("it has no host")),
    };
    Ok(Address::Tcp {
        host,
        port: url.port().unwrap_or(default_port(url)),
        tls: matches!(without_suffix(url.scheme()), "rediss" | "valkeys"),
    })
}

/// The scheme without the suffix that says what is behind the address.
fn without_suffix(scheme: &str) -> &str {
    let suffixes = [SENTINEL_SUFFIX, CLUSTER_SUFFIX];
    let mut without = suffixes.iter().filter_map(|it| scheme.strip_suffix(it));
    without.next().unwrap_or(scheme)
}

fn default_port(url: &Url) -> u16 {
    if url.scheme().ends_with(SENTINEL_SUFFIX) {
        DEFAULT_SENTINEL_PORT
    } else {
        DEFAULT_PORT
    }
}

/// Reads the address in a parameter `node`: a host, maybe with a port, and nothing else.
fn node(url: &Url, value: &str) -> Result<Address, InvalidInput> {
    let node = Url::parse(&format!("{}://{value}", url.scheme()));
    let address = node.ok().and_then(|node| tcp(&node).ok());
    let is_all = |address: &Address| {
        let shown = address.to_string();
        shown == value || shown == format!("{value}:{}", default_port(url))
    };
    let what = match url.scheme().ends_with(CLUSTER_SUFFIX) {
        true => "another node of the cluster",
        false => "a sentinel",
    };
    let problem = || unusable(format!("write {what} as node=host:port"));
    address.filter(is_all).ok_or_else(problem)
}

/// The host has no meaning. It is allowed because a user name needs one.
fn socket(url: &Url) -> Result<Address, InvalidInput> {
    let path = decoded(url.path())?;
    if path.trim_matches('/').is_empty() {
        return Err(unusable("it has no path to a socket"));
    }
    Ok(Address::Unix(path.into()))
}

fn non_empty(text: &str) -> Result<Option<String>, InvalidInput> {
    let text = decoded(text)?;
    Ok((!text.is_empty()).then_some(text))
}

fn decoded(text: &str) -> Result<String, InvalidInput> {
    let text = percent_decode_str(text).decode_utf8();
    Ok(text.map_err(|_| unusable("it is not UTF-8"))?.into_owned())
}

/// What follows a `&` in a password is read as a parameter, and must not be shown.
fn unknown_parameter(url: &Url, name: &str) -> InvalidInput {
    let is_password = |other: &str| matches!(other, "pass" | "sentinelPassword");
    let mut before = url.query_pairs().take_while(|(other, _)| other != name);
    unusable(match before.any(|(other, _)| is_password(&other)) {
        true => "a parameter after the password is unknown; in a password, write %26 for &".into(),
        false => format!("the parameter {name:?} is unknown"),
    })
}

fn unusable(problem: impl Into<String>) -> InvalidInput {
    InvalidInput::setting("URL", problem.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(url: &str) -> ServerUrl {
        ServerUrl::parse(url, true).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    fn problem(url: &str) -> String {
        let error = ServerUrl::parse(url, true).expect_err("unusable");
        let text = format!("{error} {error:?}");
        assert!(!text.contains("hunter2"), "{url}: {text}");
        error.to_string()
    }

    fn texts(addresses: &[Address]) -> Vec<String> {
        addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn address_of_each_scheme() {
        let tcp = |host: &str, port, tls| Address::Tcp {
            host: host.into(),
            port,
            tls,
        };
        for (url, address) in [
            ("redis://localhost", tcp("localhost", 6379, false)),
            ("REDIS://localhost:7", tcp("localhost", 7, false)),
            ("valkey://10.0.0.1:7/", tcp("10.0.0.1", 7, false)),
            ("rediss://[::1]:7", tcp("::1", 7, true)),
            ("valkeys://a.b", tcp("a.b", 6379, true)),
            ("redis://a/?protocol=resp3", tcp("a", 6379, false)),
            ("unix:///run/a.sock", Address::Unix("/run/a.sock".into())),
            ("redis+unix:///a%20b", Address::Unix("/a b".into())),
            ("valkey+unix://me:pw@host/a", Address::Unix("/a".into())),
        ] {
            assert_eq!(parse(url).address, address, "{url}");
        }
    }

    #[test]
    fn user_password_and_database() {
        for (url, user, password, database) in [
            ("redis://a", None, None, 0),
            ("redis://:p%40ss@a/3", None, Some("p@ss"), 3),
            ("rediss://me:pw@a:1/255/", Some("me"), Some("pw"), 255),
            ("redis+unix://me:pw@host/a", Some("me"), Some("pw"), 0),
            (
                "unix:///a?db=2&user=me&pass=p%26w",
                Some("me"),
                Some("p&w"),
                2,
            ),
        ] {
            let parsed = parse(url);
            assert_eq!(parsed.user.as_deref(), user, "{url}");
            assert_eq!(parsed.password.as_deref(), password, "{url}");
            assert_eq!(parsed.database, database, "{url}");
        }
        let shown = format!("{:?}", parse("redis://me:hunter2@a"));
        assert!(
            shown.contains("me") && !shown.contains("hunter2"),
            "{shown}"
        );
    }

    #[test]
    fn sentinels_their_login_and_the_servers() {
        let url = parse(
            "valkeys-sentinel://me:pw@a/3?sentinelServiceName=m&node=b:1&node=[::1]:2&node=c\
             &sentinelUsername=you&sentinelPassword=hunter2%2B%40",
        );
        assert!(url.uses_tls());
        assert_eq!((url.user.as_deref(), url.database), (Some("me"), 3));
        let shown = format!("{url:?}");
        assert!(
            shown.contains("you") && !shown.contains("hunter2"),
            "{shown}"
        );
        let sentinels = url.sentinels.expect("sentinels");
        assert_eq!(sentinels.service, "m");
        assert_eq!(sentinels.user.as_deref(), Some("you"));
        assert_eq!(sentinels.password.as_deref(), Some("hunter2+@"));
        assert_eq!(
            texts(&sentinels.addresses),
            ["a:26379", "b:1", "[::1]:2", "c:26379"]
        );
        let plain = parse("redis-sentinel://a:7?sentinelServiceName=m");
        assert!(!plain.uses_tls());
        assert_eq!(plain.address.to_string(), "a:7");
    }

    #[test]
    fn cluster_url_names_nodes() {
        let url = parse("rediss-cluster://me:pw@a:7000?node=[::1]:7001&node=c");
        assert!(url.uses_tls());
        assert_eq!(url.password.as_deref(), Some("pw"));
        let nodes = url.cluster.expect("a cluster");
        assert_eq!(texts(&nodes), ["a:7000", "[::1]:7001", "c:6379"]);
        let plain = parse("valkey-cluster://a/?protocol=resp3");
        assert!(!plain.uses_tls() && plain.sentinels.is_none());
        assert_eq!(plain.cluster, Some(vec![plain.address]));
        assert_eq!(parse("redis://a").cluster, None);
    }

    #[test]
    fn unusable_url_is_refused_with_a_reason_and_without_the_password() {
        for (url, reason) in [
            ("", "no scheme; write redis://localhost"),
            ("localhost:1", "no scheme; write redis://localhost:1"),
            (
                "me:hunter2@a",
                "no scheme; write redis://user:password@host",
            ),
            ("http://me:hunter2@a", "the scheme http:// is unknown"),
            (
                "redis+tls://me:hunter2@a",
                "the scheme redis+tls:// is unknown",
            ),
            ("redis+sentinel://me:hunter2@a/m", "write redis-sentinel://"),
            ("rediss-sentinel://me:hunter2@a", "it names no service"),
            ("unix-sentinel:///a?sentinelServiceName=m", "no Unix socket"),
            (
                "redis-sentinel://a?sentinelServiceName=m&node=me:hunter2@b",
                "write ? as %3F and @ as %40",
            ),
            (
                "redis-sentinel://a?sentinelServiceName=m&node=b:1/hunter2",
                "write a sentinel as node=host:port",
            ),
            (
                "redis-sentinel://a?sentinelServiceName=m&node=",
                "write a sentinel as node=host:port",
            ),
            (
                "redis-sentinel://a?sentinelServiceName=m&sentinelPass=hunter2",
                "parameter \"sentinelPass\" is unknown",
            ),
            ("redis+cluster://me:hunter2@a", "write redis-cluster://"),
            ("unix-cluster:///a", "no Unix socket"),
            ("redis-cluster://me:hunter2@a/1", "only database 0"),
            (
                "redis-cluster://me:hunter2@a?node=b:x",
                "write another node of the cluster as node=host:port",
            ),
            (
                "redis-cluster://me:hunter2@a?pass=hunter2",
                "parameter \"pass\" is unknown",
            ),
            (
                "redis://me:hunter2@a?node=b",
                "parameter \"node\" is unknown",
            ),
            ("me:hunter2@redis://a", "its scheme is not redis://"),
            ("redis://", "host"),
            ("redis://:hunter2@", "host"),
            ("redis://me:hunter2@a:99999", "port"),
            ("redis://me:hunter2@a/x", "0 to 255"),
            ("redis://me:hunter2@a/256", "0 to 255"),
            ("redis://me:hunter2@a/1/2", "0 to 255"),
            ("redis://me:%ffhunter2@a", "UTF-8"),
            ("rediss://me:hunter2@a#insecure", "fragment"),
            ("redis://a?pass=hunter2", "parameter \"pass\" is unknown"),
            ("redis://me:1?hunter2@a", "write ? as %3F"),
            ("unix:///a?pass=hun&ter2=x", "write %26 for &"),
            (
                "redis-sentinel://a?sentinelServiceName=m&sentinelPassword=hun&ter2",
                "write %26 for &",
            ),
            ("unix:///a?db=x&pass=hunter2", "0 to 255"),
            ("unix://a?pass=hunter2", "no path to a socket"),
        ] {
            let problem = problem(url);
            assert!(problem.contains(reason), "{url}: {problem}");
            assert!(!problem.contains("ter2"), "{problem}");
        }
    }

    #[test]
    fn tls_is_refused_without_support() {
        for scheme in [
            "rediss",
            "valkeys",
            "REDISS",
            "rediss-sentinel",
            "rediss-cluster",
        ] {
            let url = format!("{scheme}://me:hunter2@a");
            let error = ServerUrl::parse(&url, false).expect_err("no TLS");
            let text = format!("{error} {error:?}");
            assert!(text.contains("needs TLS"), "{text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
    }

    /// Pieces of URLs, some of which are wrong.
    fn pieces() -> impl Strategy<Value = String> {
        let scheme =
            "(redis|rediss|valkey|valkeys|redis\\+unix|unix)(-cluster|-sentinel|)(://|:/|:|)";
        let login = "([a-z%@:#?]{0,6}:hunter2@|:hunter2@|)";
        let host = "([a-zA-Z0-9.%\\[\\]:_-]{0,20}|127\\.0\\.0\\.1|\\[::1\\])(:[0-9]{0,6}|)";
        let rest = "(/[0-9a-z%/]{0,6}|)(\\?[a-zA-Z=&%:@0-9]{0,40}|\\?node=[a-z:0-9.\\[\\]]{0,20}|)(#.{0,4}|)";
        (scheme, login, host, rest)
            .prop_map(|(scheme, login, host, rest)| format!("{scheme}{login}{host}{rest}"))
    }

    proptest! {
        /// A URL that can be read names the same server when its address is read again.
        #[test]
        fn url_is_read_or_refused_without_its_password(
            url in prop_oneof![3 => pieces(), 1 => any::<String>()],
            has_tls in any::<bool>(),
        ) {
            match ServerUrl::parse(&url, has_tls) {
                Ok(parsed) => {
                    prop_assert!(!format!("{parsed:?}").contains("hunter2"), "{url}");
                    prop_assert!(has_tls || !parsed.uses_tls(), "{url}");
                    if let Address::Tcp { tls, .. } = &parsed.address {
                        let scheme = if *tls { "rediss" } else { "redis" };
                        let again = format!("{scheme}://{}", parsed.address);
                        let again = ServerUrl::parse(&again, true).expect("an address");
                        prop_assert_eq!(again.address, parsed.address, "{}", url);
                    }
                }
                Err(error) => {
                    let shown = format!("{error} {error:?}");
                    prop_assert!(!shown.contains("hunter2"), "{url}: {shown}");
                }
            }
        }
    }
}
