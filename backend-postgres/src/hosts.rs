//! Several hosts, or several addresses of a host: each has its share of the time.
//!
//! The client library tries them one after the other. It limits only how long each may take to accept the
//! connection, and only if the configuration says so.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use leasehold_api::{BackendError, Runtime, TokioRuntime, first_of};
use tokio::net::lookup_host;
use tokio::sync::mpsc::UnboundedSender;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts, TargetSessionAttrs};

use crate::connector::{Connector, DEFAULT_PORT, Opened, address};
use crate::error::{During, classify};

/// One of the hosts of a configuration.
struct Target {
    host: Option<Host>,
    ip: Option<IpAddr>,
    port: u16,
}

/// Opens a connection to the first host that accepts it, within about `limit`.
pub(crate) async fn connect(
    connector: &Connector,
    config: &Config,
    payloads: Option<UnboundedSender<String>>,
    runtime: &TokioRuntime,
    limit: Duration,
) -> Result<Opened, BackendError> {
    let open = async |config: Config| {
        let address = address(&config);
        let opened = connector(config, payloads.clone()).await;
        opened.map_err(|error| classify(error, During::Connect(&address)))
    };
    let Some(hosts) = targets(config) else {
        return open(config.clone()).await; // The library says what is wrong.
    };
    let several = hosts.len() > 1;
    let hosts = hosts.into_iter();
    let connecting = hosts.map(async |host| {
        let addresses = host.addresses(config).await?;
        let several = several || addresses.len() > 1;
        let opening = in_order(addresses, config, runtime).into_iter();
        let opening = opening.map(|target| open(target.config(config, several)));
        first_of(runtime, limit, opening).await
    });
    let connecting = in_order(connecting.collect(), config, runtime);
    first_of(runtime, limit, connecting).await
}

/// The hosts of a configuration. `None` if it has none, or if their numbers don't fit.
fn targets(config: &Config) -> Option<Vec<Target>> {
    let (hosts, ips, ports) = (
        config.get_hosts(),
        config.get_hostaddrs(),
        config.get_ports(),
    );
    let count = hosts.len().max(ips.len());
    let fits = |length: usize| length == 0 || length == count;
    if count == 0
        || !fits(hosts.len())
        || !fits(ips.len())
        || !(fits(ports.len()) || ports.len() == 1)
    {
        return None;
    }
    let target = |index: usize| Target {
        host: hosts.get(index).cloned(),
        ip: ips.get(index).copied(),
        port: *ports.get(index).or(ports.first()).unwrap_or(&DEFAULT_PORT),
    };
    Some((0..count).map(target).collect())
}

/// In random order if the configuration says so.
fn in_order<T>(mut all: Vec<T>, config: &Config, runtime: &TokioRuntime) -> Vec<T> {
    if config.get_load_balance_hosts() == LoadBalanceHosts::Random {
        for last in (1..all.len()).rev() {
            let other = runtime.random_u64() % (last as u64 + 1);
            all.swap(last, usize::try_from(other).unwrap_or(last));
        }
    }
    all
}

impl Target {
    /// This host, once for each of its addresses.
    async fn addresses(self, config: &Config) -> Result<Vec<Self>, BackendError> {
        let (None, Some(Host::Tcp(name))) = (self.ip, &self.host) else {
            return Ok(vec![self]);
        };
        let found = lookup_host((name.as_str(), self.port)).await;
        let found = found.map_err(|error: io::Error| {
            let own = address(&self.config(config, false));
            BackendError::unavailable(format!("cannot connect to {own}")).with_source(error)
        })?;
        let found = found.map(|found| Self {
            host: self.host.clone(),
            ip: Some(found.ip()),
            port: self.port,
        });
        Ok(found.collect())
    }

    /// The configuration for this host alone. If it is one of several, the library must leave a standby for another one.
    fn config(&self, all: &Config, one_of_several: bool) -> Config {
        let mut config = all_but_hosts(all);
        match &self.host {
            Some(Host::Tcp(name)) => {
                config.host(name);
            }
            #[cfg(unix)]
            Some(Host::Unix(folder)) => {
                config.host_path(folder);
            }
            None => {}
        }
        if let Some(ip) = self.ip {
            config.hostaddr(ip);
        }
        config.port(self.port);
        if one_of_several && config.get_target_session_attrs() == TargetSessionAttrs::Any {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        config
    }
}

fn all_but_hosts(all: &Config) -> Config {
    let mut config = Config::new();
    // The setters for what may be missing.
    macro_rules! copy {
        ($($set:ident: $value:expr),*) => { $(if let Some(value) = $value { config.$set(value); })* };
    }
    copy!(
        user: all.get_user(),
        password: all.get_password(),
        dbname: all.get_dbname(),
        options: all.get_options(),
        application_name: all.get_application_name(),
        connect_timeout: all.get_connect_timeout().copied(),
        tcp_user_timeout: all.get_tcp_user_timeout().copied(),
        keepalives_interval: all.get_keepalives_interval(),
        keepalives_retries: all.get_keepalives_retries()
    );
    config
        .ssl_mode(all.get_ssl_mode())
        .ssl_negotiation(all.get_ssl_negotiation())
        .keepalives(all.get_keepalives())
        .keepalives_idle(all.get_keepalives_idle())
        .target_session_attrs(all.get_target_session_attrs())
        .channel_binding(all.get_channel_binding())
        .load_balance_hosts(all.get_load_balance_hosts());
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_of_a_host_has_all_settings() {
        for text in [
            "host=a user=u password=p dbname=d options=o application_name=n sslmode=require sslnegotiation=direct \
             port=1 connect_timeout=2 tcp_user_timeout=3 keepalives=0 keepalives_idle=4 keepalives_interval=5 \
             keepalives_retries=6 target_session_attrs=read-only channel_binding=require load_balance_hosts=random",
            "host=/run/postgresql port=1",
            "host=a hostaddr=10.0.0.1 port=1",
        ] {
            let config: Config = text.parse().expect("valid");
            let targets = targets(&config).expect("one host");
            assert!(targets[0].config(&config, false) == config, "{text}");
            assert_eq!(targets.len(), 1);
        }
    }

    #[test]
    fn hosts_have_their_ports_and_are_asked_for_writes() {
        for (text, ports) in [
            ("host=a,b port=1,2", [1, 2]),
            ("host=a,b port=3", [3, 3]),
            ("hostaddr=10.0.0.1,10.0.0.2", [5432, 5432]),
        ] {
            let config: Config = text.parse().expect("valid");
            let targets = targets(&config).expect("two hosts");
            let configs = targets.iter().map(|target| target.config(&config, true));
            for (config, port) in configs.zip(ports) {
                assert_eq!(config.get_ports(), [port], "{text}");
                assert_eq!(config.get_hosts().len() + config.get_hostaddrs().len(), 1);
                let wanted = config.get_target_session_attrs();
                assert_eq!(wanted, TargetSessionAttrs::ReadWrite);
            }
        }
        for text in [
            "port=1",
            "host=a,b port=1,2,3",
            "host=a,b hostaddr=10.0.0.1",
        ] {
            assert!(
                targets(&text.parse().expect("readable")).is_none(),
                "{text}"
            );
        }
    }
}
