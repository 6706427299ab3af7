//! A Postgres server behind a proxy that drops replies, and a backend for each constructor.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{BoxFuture, Key};
use leasehold_postgres::tokio_postgres::{Config, NoTls};
use leasehold_postgres::{Options, PostgresBackend};
use leasehold_test_servers::{FaultProxy, PostgresOptions, Request};
use tokio::task::block_in_place;

use crate::faults::Setup;
use crate::requests::Backend;
use crate::support::Server;

type Open = fn(String, Options) -> BoxFuture<'static, Backend>;

const CONSTRUCTORS: [(&str, Open); 3] = [
    ("URL", |url, options| {
        Box::pin(async move {
            let backend = PostgresBackend::connect_with(&url, options).await;
            Arc::new(backend.expect("connected")) as Backend
        })
    }),
    ("URL, later", |url, options| {
        Box::pin(async move {
            let backend = PostgresBackend::connect_lazy(&url, options);
            Arc::new(backend.expect("a good URL")) as Backend
        })
    }),
    ("configuration", |url, options| {
        Box::pin(async move {
            let config: Config = url.parse().expect("a good URL");
            let backend = PostgresBackend::from_config(config, NoTls, options).await;
            Arc::new(backend.expect("connected")) as Backend
        })
    }),
];

/// A setup for each constructor, all on the same server, each with a separate key prefix.
pub(crate) async fn setups(_: &Key) -> Vec<Setup> {
    let options = PostgresOptions::default().with_access("trust");
    let server = Arc::new(block_in_place(|| Server::start_with(options)));
    let upstream = (Ipv4Addr::LOCALHOST, server.postgres.port()).into();
    let proxy = Arc::new(FaultProxy::start_for_postgres(upstream).await);
    let behind = proxy.address();
    let url = format!("postgres://locks@{behind}/shop?sslmode=disable");
    let mut setups = Vec::new();
    for (name, connect) in CONSTRUCTORS {
        let options = Options::new()
            .key_prefix(format!("{name}:"))
            // A busy machine may need longer than the default.
            .connect_timeout(Duration::from_secs(5));
        let direct = CONSTRUCTORS[0].1(server.url(), options.clone()).await;
        let url = url.clone();
        let open = move || connect(url.clone(), options.clone());
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
    ["INSERT INTO leasehold", "UPDATE leasehold"]
        .iter()
        .any(|start| statement.mentions(start))
}
