//! A Postgres server behind a proxy that drops replies, and a backend for each constructor.

use std::net::Ipv4Addr;
use std::sync::Arc;

use futures_util::FutureExt;
use leasehold_api::Key;
use leasehold_postgres::tokio_postgres::{Config, NoTls};
use leasehold_postgres::{Options, PostgresBackend};
use leasehold_test_servers::{FaultProxy, PostgresOptions, Request};
use tokio::task::block_in_place;

use crate::faults::Setup;
use crate::requests::Backend;
use crate::support::{Server, patient};

/// Opens a backend with the constructor of this name.
async fn open(constructor: &str, url: String, options: Options) -> Backend {
    let opened = match constructor {
        "URL" => PostgresBackend::connect_with(&url, options).await,
        "URL, later" => PostgresBackend::connect_lazy(&url, options),
        "configuration" => {
            let config: Config = url.parse().expect("a good URL");
            PostgresBackend::from_config(config, NoTls, options).await
        }
        other => panic!("{other}"),
    };
    Arc::new(opened.expect("connected"))
}

/// A setup for each constructor, all on the same server, each with a separate key prefix.
pub(crate) async fn setups(_: &Key) -> Vec<Setup> {
    let options = PostgresOptions::default().with_access("trust");
    let server = Arc::new(block_in_place(|| Server::start_with(options)));
    let upstream = (Ipv4Addr::LOCALHOST, server.postgres.port()).into();
    let proxy = Arc::new(FaultProxy::start_for_postgres(upstream).await);
    let behind = proxy.address();
    let url = format!("postgres://locks@{behind}/shop?sslmode=disable");
    let mut setups = Vec::new();
    for name in ["URL", "URL, later", "configuration"] {
        let options = patient().key_prefix(format!("{name}:"));
        let direct = open("URL", server.url(), options.clone()).await;
        let url = url.clone();
        let open = move || open(name, url.clone(), options.clone()).boxed();
        let tested = open().await;
        tested.hello().await.expect("the server answers");
        setups.push(Setup {
            name,
            open: Box::new(open),
            reconnects: true,
            proxy: Arc::clone(&proxy),
            has_effect: writes,
            tested,
            direct,
            _servers: server.clone(),
        });
    }
    setups
}

fn writes(statement: &Request) -> bool {
    statement.mentions("INSERT INTO leasehold") || statement.mentions("UPDATE leasehold")
}
