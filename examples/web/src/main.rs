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
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::routing::get;
use deadpool_postgres::{
    Config, ManagerConfig, PoolConfig, RecyclingMethod, Runtime, Timeouts, tokio_postgres::NoTls,
};
use leasehold::{ConnectError, LockClient};
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
    let (url, locks) = (env::var("LOCKS")?, Arc::default());
    let app = App {
        locks: Arc::clone(&locks),
        accounts: pool(env::var("DATABASE")?)?,
    };
    let service = router(app).route("/metrics", get(move || async move { metrics.render() }));
    let listener = tokio::net::TcpListener::bind(env::var("LISTEN")?).await?;
    tracing::info!(address = %listener.local_addr()?, "listening");
    let served = axum::serve(listener, service).with_graceful_shutdown(asked_to_stop());
    // A server that is away doesn't keep the service from starting: `/readyz` says so, and `/livez` answers.
    tokio::select! {
        result = served.into_future() => result?,
        Err(mistake) = connect(&url, &locks) => return Err(mistake.into()),
    }
    // No new requests come, and the running ones have ended (each has a limit): what they left is released.
    if let Some(locks) = locks.get()
        && let Err(error) = locks.shutdown().await
    {
        tracing::warn!(%error, "some locks stay taken until their leases end");
    }
    Ok(())
}

/// Tries until the server of the locks answers. Fails at once for a mistake, such as a wrong password.
async fn connect(url: &str, locks: &OnceLock<LockClient>) -> Result<(), ConnectError> {
    let client = loop {
        match leasehold::connect(url).await {
            Ok(client) => break client,
            Err(ConnectError::Backend(error)) if error.is_transient() => {
                tracing::warn!(%error, "the server of the locks is away");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Err(mistake) => return Err(mistake),
        }
    };
    locks.get_or_init(|| client);
    Ok(())
}

fn pool(url: String) -> Result<deadpool_postgres::Pool, Box<dyn Error>> {
    let mut config = Config::new();
    config.url = Some(url);
    config.options = Some("-c statement_timeout=5s".into());
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
