//! Exports the spans and events of locks through `tracing-opentelemetry`.

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanExporter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, registry};

/// Installs the exporter. Shut the provider down at the end of the program, or the last spans are not exported.
pub fn export_traces(exporter: impl SpanExporter + 'static) -> SdkTracerProvider {
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("shop"));
    let filter = EnvFilter::new("info,leasehold=debug"); // the span of an acquisition is DEBUG
    registry().with(filter).with(layer).init();
    provider
}
