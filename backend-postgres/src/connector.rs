//! How a connection is opened: a configuration of the client library, and a maker of TLS streams.

use std::error::Error as StdError;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use leasehold_api::InvalidInput;
use tokio::sync::mpsc::UnboundedSender;
use tokio_postgres::config::Host;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error, Socket};

/// The port of a configuration that names none.
pub(crate) const DEFAULT_PORT: u16 = 5432;

/// A new connection, and the future that drives it.
pub(crate) type Opened = (Client, BoxFuture<'static, ()>);

/// Opens a connection. It hides the type of the TLS streams. The sender gets the payloads of notifications, and is
/// dropped when the connection ends.
pub(crate) type Connector = Arc<
    dyn Fn(Config, Option<UnboundedSender<String>>) -> BoxFuture<'static, Result<Opened, Error>>
        + Send
        + Sync,
>;

/// Opens connections with a maker of TLS streams.
pub(crate) fn connector_of<T>(tls: T) -> Connector
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    Arc::new(move |config, payloads| {
        let tls = tls.clone();
        Box::pin(async move {
            let (client, connection) = config.connect(tls).await?;
            let driver: BoxFuture<'static, ()> = Box::pin(drive(connection, payloads));
            Ok((client, driver))
        })
    })
}

/// Drives a connection until it ends.
async fn drive<S, T>(mut connection: Connection<S, T>, payloads: Option<UnboundedSender<String>>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
        if let (AsyncMessage::Notification(notification), Some(payloads)) = (message, &payloads) {
            // Fails if nobody reads any more. The connection then ends soon.
            let _ = payloads.send(notification.payload().to_owned());
        }
    }
}

/// The hosts and ports of a configuration, for errors.
pub(crate) fn address(config: &Config) -> String {
    let ports = config.get_ports();
    let port = |index: usize| ports.get(index).or(ports.first()).unwrap_or(&DEFAULT_PORT);
    let hosts = config.get_hosts().iter().enumerate();
    let hosts = hosts.map(|(index, host)| match host {
        Host::Tcp(host) => format!("{host}:{}", port(index)),
        #[cfg(unix)]
        Host::Unix(folder) => format!("{}/.s.PGSQL.{}", folder.display(), port(index)),
    });
    let mut all: Vec<String> = hosts.collect();
    if all.is_empty() {
        let addresses = config.get_hostaddrs().iter().enumerate();
        all.extend(addresses.map(|(index, ip)| format!("{ip}:{}", port(index))));
    }
    all.join(", ")
}

/// Reads the URL of a setting, and whether it says that it leads to a pooler. Refuses a host that contains an `@`: the
/// client library ends the password at the first `@`, so the rest of it would be a part of the host, which errors show.
pub(crate) fn config_of(setting: &'static str, url: &str) -> Result<(Config, bool), InvalidInput> {
    let invalid = |problem: &str| InvalidInput::setting(setting, problem);
    let (url, pooled) = without_pooler(url).map_err(invalid)?;
    let config: Config = url.parse().map_err(|error| invalid(&unreadable(&error)))?;
    let mut hosts = config.get_hosts().iter();
    if hosts.any(|host| matches!(host, Host::Tcp(host) if host.contains('@'))) {
        let problem = "a host contains an @; percent-encode the password, with %40 for @";
        return Err(invalid(problem));
    }
    Ok((config, pooled))
}

/// Takes `pgbouncer=true` out of a URL: the client library doesn't know it.
fn without_pooler(url: &str) -> Result<(String, bool), &'static str> {
    let is_url = url.starts_with("postgres://") || url.starts_with("postgresql://");
    // A password may contain a question mark.
    let credentials = url.find('@').unwrap_or(0);
    let mark = url[credentials..].find('?').filter(|_| is_url);
    let Some(mark) = mark else {
        return Ok((url.to_owned(), false));
    };
    let (before, options) = url.split_at(credentials + mark);
    let (mut kept, mut pooled) = (Vec::new(), false);
    for option in options[1..].split('&') {
        match option.strip_prefix("pgbouncer=") {
            None => kept.push(option),
            Some("true") => pooled = true,
            Some("false") => pooled = false,
            Some(_) => return Err("pgbouncer is neither `true` nor `false`"),
        }
    }
    let mark = if kept.is_empty() { "" } else { "?" };
    Ok((format!("{before}{mark}{}", kept.join("&")), pooled))
}

/// Shows no part of a URL, which has a password: the library repeats an option that it doesn't know, and that may
/// be the end of a password.
fn unreadable(error: &Error) -> String {
    let problem = error.source().map(ToString::to_string);
    let shown = problem.filter(|problem| problem.starts_with("invalid value for option"));
    shown.unwrap_or_else(|| "it can't be read; check its form and the names of its options".into())
}

/// Says what to check after a failed attempt to connect. `None` if a later attempt may succeed.
pub(crate) fn explain(error: &Error) -> Option<String> {
    let source = error.source()?;
    let inner = source.downcast_ref::<io::Error>();
    #[cfg(feature = "tls-rustls")]
    if let Some(problem) = leasehold_api::tls_problem(source) {
        return Some(problem.to_owned());
    }
    if inner.is_some() {
        // The network, or another TLS library.
        return None;
    }
    let text = source.to_string();
    match text.as_str() {
        "server does not support TLS" => {
            Some("the server doesn't use TLS; set sslmode=disable, or enable it there".into())
        }
        "password missing" => Some("the server asks for a password; set one".into()),
        // The client library has no kinds of errors.
        _ => ["TLS handshake", "configuration", "authentication"]
            .iter()
            .any(|kind| error.to_string().contains(kind))
            .then_some(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_in_a_bad_url_is_not_shown() {
        for url in [
            "postgres://u:hunt@er2@a/shop",
            "postgres://u:hunt@er2@a:1,b:2/shop",
            "postgresql://u:p@hunter2@/shop",
        ] {
            let error = config_of("URL", url).expect_err("it would be a host");
            let shown = format!("{error:?} {error}");
            assert!(!shown.contains("er2"), "{shown}");
            assert!(shown.contains("%40"), "{shown}");
        }
        for (url, shown) in [
            (
                "postgres://u@a/shop?password=hunt&er2=1",
                "names of its options",
            ),
            (
                "postgres://u:hunter2@a/shop?sslmode=verify-full",
                "`sslmode`",
            ),
        ] {
            let error = config_of("URL", url).expect_err("not valid").to_string();
            assert!(error.contains(shown) && !error.contains("er2"), "{error}");
        }
        let (config, _) = config_of("URL", "postgres://u:hunt%40er2@a/shop").expect("valid");
        assert_eq!(address(&config), "a:5432");
    }

    #[test]
    fn url_says_whether_it_leads_to_a_pooler() {
        for (url, pooled) in [
            ("postgres://u@a/shop", false),
            ("postgres://u@a/shop?pgbouncer=true", true),
            ("postgres://u:p?pgbouncer=true@a/shop", false),
            ("postgres://a?pgbouncer=true&user=u&dbname=shop", true),
            ("postgres://u@a/shop?sslmode=require&pgbouncer=true", true),
            (
                "postgres://u@a/shop?pgbouncer=false&connect_timeout=2",
                false,
            ),
        ] {
            let (config, found) = config_of("URL", url).expect(url);
            assert_eq!(
                (found, config.get_dbname()),
                (pooled, Some("shop")),
                "{url}"
            );
        }
        for url in ["postgres://u@a?pgbouncer=yes", "host=a pgbouncer=true"] {
            assert!(config_of("URL", url).is_err(), "{url}");
        }
    }

    #[test]
    fn addresses_have_hosts_and_ports() {
        for (url, shown) in [
            ("host=a", "a:5432"),
            ("postgres://u:hunter2@a:1,b:2/shop", "a:1, b:2"),
            ("host=a,b port=3", "a:3, b:3"),
            ("host=/run/postgresql", "/run/postgresql/.s.PGSQL.5432"),
            ("hostaddr=10.0.0.1", "10.0.0.1:5432"),
        ] {
            assert_eq!(address(&url.parse().expect("valid")), shown);
        }
    }
}
