//! The URL of a server. All backends accept the same URLs, and read them in the same way.

use std::fmt;
use std::path::PathBuf;

use leasehold_api::InvalidInput;
use percent_encoding::percent_decode_str;
use url::{Host, Url};

const DEFAULT_PORT: u16 = 6379;

/// Where a server listens, and who logs in.
///
/// | URL | connects to |
/// |---|---|
/// | `redis://user:password@host:port/database` | a TCP port. All parts but the host are optional. |
/// | `rediss://…` | the same, with TLS |
/// | `redis+unix:///path/to/socket?db=1&user=me&pass=secret` | a Unix socket. The parameters are optional. |
///
/// `valkey://`, `valkeys://`, `valkey+unix://` and `unix://` mean the same.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerUrl {
    /// Where the server listens.
    pub address: Address,
    /// The user name.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// The number of the database.
    pub database: u8,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
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
            .finish_non_exhaustive()
    }
}

impl ServerUrl {
    /// Reads a URL. `has_tls` says whether the backend supports TLS.
    ///
    /// # Errors
    /// [`InvalidInput::Setting`] that says what is wrong. It never contains the password.
    pub fn parse(url: &str, has_tls: bool) -> Result<Self, InvalidInput> {
        check_scheme(url, has_tls)?;
        let url = Url::parse(url).map_err(|error| unusable(error.to_string()))?;
        if url.fragment().is_some() {
            return Err(unusable("a fragment has no meaning; write # as %23"));
        }
        let is_unix = url.scheme().ends_with("unix");
        let mut parsed = Self {
            address: if is_unix { socket(&url)? } else { tcp(&url)? },
            user: non_empty(url.username())?,
            password: non_empty(url.password().unwrap_or_default())?,
            database: 0,
        };
        if !is_unix {
            parsed.set_database(url.path().trim_matches('/'))?;
        }
        if url.query().is_some_and(|query| query.contains('@')) {
            // The rest of a password with a question mark.
            return Err(unusable("write ? as %3F and @ as %40"));
        }
        for (name, value) in url.query_pairs() {
            match &*name {
                "db" if is_unix => parsed.set_database(&value)?,
                "user" if is_unix => parsed.user = Some(value.into_owned()),
                "pass" if is_unix => parsed.password = Some(value.into_owned()),
                // The options choose the protocol. The `redis` crate reads this parameter.
                "protocol" => {}
                _ => return Err(unusable(format!("the parameter {name:?} is unknown"))),
            }
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
    match &*scheme.to_ascii_lowercase() {
        "redis" | "valkey" | "redis+unix" | "valkey+unix" | "unix" => Ok(()),
        "rediss" | "valkeys" if has_tls => Ok(()),
        "rediss" | "valkeys" => Err(unusable(format!(
            "{scheme}:// needs TLS; enable the feature tls-rustls"
        ))),
        other if other.contains("sentinel") => Err(unusable("Sentinel is not supported")),
        other if other.contains("cluster") => Err(unusable("clusters are not supported")),
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
        port: url.port().unwrap_or(DEFAULT_PORT),
        tls: matches!(url.scheme(), "rediss" | "valkeys"),
    })
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

fn unusable(problem: impl Into<String>) -> InvalidInput {
    InvalidInput::Setting {
        what: "URL",
        problem: problem.into(),
    }
}

#[cfg(test)]
mod tests {
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
            (
                "redis+sentinel://me:hunter2@a/m",
                "Sentinel is not supported",
            ),
            (
                "rediss-sentinel://me:hunter2@a",
                "Sentinel is not supported",
            ),
            ("redis-cluster://me:hunter2@a", "clusters are not supported"),
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
            ("unix:///a?db=x&pass=hunter2", "0 to 255"),
            ("unix://a?pass=hunter2", "no path to a socket"),
        ] {
            let problem = problem(url);
            assert!(problem.contains(reason), "{url}: {problem}");
        }
    }

    #[test]
    fn tls_is_refused_without_support() {
        for scheme in ["rediss", "valkeys", "REDISS"] {
            let url = format!("{scheme}://me:hunter2@a");
            let error = ServerUrl::parse(&url, false).expect_err("no TLS");
            let text = format!("{error} {error:?}");
            assert!(text.contains("needs TLS"), "{text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}
