//! Runs the service, in this package's folder:
//!
//! ```sh
//! export LOCKS=redis://localhost DATABASE=postgres://postgres@localhost/postgres LISTEN=127.0.0.1:8080
//! psql $DATABASE -c "$(grep '^ *CREATE TABLE' src/accounts.rs | tr -d '"')" -c 'INSERT INTO account VALUES (7, 100)' # once
//! cargo run
//! curl --json '{"request": 1, "amount": 10}' $LISTEN/accounts/7/deposits
//! ```

use std::env;
use std::error::Error;
use std::future::pending;
use std::time::Duration;

use axum::routing::get;
use deadpool_postgres::{
    Config, ManagerConfig, PoolConfig, RecyclingMethod, Runtime, Timeouts, tokio_postgres::NoTls,
};
use leasehold_web_example::{App, router};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tokio::signal::unix::{SignalKind, signal};

/// Seconds.
const BUCKETS: &[f64] = &[0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_env_filter(env::var("RUST_LOG").unwrap_or_else(|_| "info".into()))
        .init();
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Prefix("leasehold_".into()), BUCKETS)?
        .install_recorder()?; // before the client is built
    // A server that is away when the service starts doesn't keep it from starting: `/readyz` says so.
    let locks = leasehold::ConnectOptions::new().initial_connect_timeout(Duration::from_secs(60));
    let locks = locks.connect(&env::var("LOCKS")?).await?;
    let accounts = pool(env::var("DATABASE")?)?;

    let app = App {
        locks: locks.clone(),
        accounts,
    };
    let service = router(app).route("/metrics", get(move || async move { metrics.render() }));
    let listener = tokio::net::TcpListener::bind(env::var("LISTEN")?).await?;
    tracing::info!(address = %listener.local_addr()?, "listening");
    // In this order: no new requests, the running ones end (each has a limit), and what they left is released.
    axum::serve(listener, service)
        .with_graceful_shutdown(asked_to_stop())
        .await?;
    if let Err(error) = locks.shutdown().await {
        tracing::warn!(%error, "some locks stay taken until their leases end");
    }
    Ok(())
}

fn pool(url: String) -> Result<deadpool_postgres::Pool, Box<dyn Error>> {
    let mut config = Config::new();
    config.url = Some(url);
    // A request that was dropped may have left a statement behind: `Clean` and `Verified` wait for it, `Fast` doesn't.
    config.manager = Some(ManagerConfig {
        recycling_method: RecyclingMethod::Verified,
    });
    let limit = Some(Duration::from_secs(2));
    let timeouts = Timeouts {
        wait: limit,
        create: limit,
        recycle: limit,
    };
    config.pool = Some(PoolConfig {
        max_size: 16,
        timeouts,
        ..PoolConfig::default()
    });
    Ok(config.create_pool(Some(Runtime::Tokio1), NoTls)?)
}

async fn asked_to_stop() {
    match signal(SignalKind::terminate()) {
        Ok(mut terminated) => {
            tokio::select! {
                _ = terminated.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        }
        Err(_) => pending().await,
    }
}
