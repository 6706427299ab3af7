//! Takes a lock on Redis, with traces for a collector and metrics for Prometheus.
//!
//! ```sh
//! OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 cargo run -- redis://localhost
//! ```

use std::error::Error;

use leasehold::LockClient;
use leasehold_opentelemetry_example::export_traces;
use metrics_exporter_prometheus::PrometheusBuilder;
use opentelemetry_otlp::SpanExporter;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("which Redis server?")?;
    let traces = export_traces(SpanExporter::builder().with_http().build()?);
    PrometheusBuilder::new()
        .with_http_listener(([127, 0, 0, 1], 9000))
        .install()?;
    let locks = leasehold::connect(&url).await?; // after the recorder
    let sent = send_invoice(&locks).await;
    locks.shutdown().await?;
    traces.shutdown()?; // also what has failed is exported
    Ok(sent?)
}

#[tracing::instrument(skip(locks))]
async fn send_invoice(locks: &LockClient) -> Result<(), leasehold::Error> {
    let invoice = locks.mutex("invoice:42")?.class("invoice");
    invoice
        .with(async |guard| println!("token {}", guard.fencing_token()))
        .await
}
