//! What a collector gets of a lock.

use leasehold::LockClient;
use leasehold::sim::SimServer;
use leasehold_opentelemetry_example::export_traces;
use metrics_exporter_prometheus::PrometheusBuilder;
use opentelemetry_sdk::trace::InMemorySpanExporter;
use tracing::Instrument as _;

#[tokio::test(start_paused = true)]
async fn acquisition_is_a_span_below_that_of_its_caller() {
    let exporter = InMemorySpanExporter::default();
    let traces = export_traces(exporter.clone());
    let metrics = PrometheusBuilder::new()
        .install_recorder()
        .expect("the first recorder");

    let locks = LockClient::new(SimServer::new(1).client("a"));
    let request = tracing::info_span!("request");
    async {
        let guard = locks
            .mutex("invoice:42")
            .expect("valid")
            .lock()
            .await
            .expect("free");
        guard.release().await.expect("held");
    }
    .instrument(request)
    .await;
    traces.force_flush().expect("in memory");

    let spans = exporter.get_finished_spans().expect("in memory");
    let span = |name| {
        spans
            .iter()
            .find(|span| span.name == name)
            .expect("exported")
    };
    let (request, acquire) = (span("request"), span("acquire"));
    assert_eq!(acquire.parent_span_id, request.span_context.span_id());
    let has = |key: &str, value: &str| {
        let mut attributes = acquire.attributes.iter();
        attributes.any(|it| it.key.as_str() == key && it.value.as_str() == value)
    };
    assert!(
        has("key", "invoice:42") && has("outcome", "acquired"),
        "{acquire:?}"
    );
    let events: Vec<_> = request.events.iter().map(|event| &*event.name).collect();
    assert!(events.contains(&"releasing"), "{events:?}");

    let text = metrics.render();
    let counted = r#"leasehold_acquisitions_total{mode="exclusive",outcome="acquired",class=""} 1"#;
    assert!(text.contains(counted), "{text}");
}

/// The page shows the code of this example, broken into lines elsewhere.
#[test]
fn page_has_the_lines_of_the_program() {
    let dense = |text: &str| text.split_whitespace().collect::<String>();
    let page = dense(include_str!("../../../docs/observability.md"));
    let (library, program) = (
        include_str!("../src/lib.rs"),
        include_str!("../src/main.rs"),
    );
    for (text, first, last) in [
        (library, "let provider =", ".init();"),
        (program, "let traces =", "// after the recorder"),
        (program, "locks.shutdown()", "traces.shutdown()?;"),
    ] {
        let from = text.find(first).expect("it begins");
        let to = from + text[from..].find(last).expect("it ends") + last.len();
        let shown = &text[from..to];
        assert!(page.contains(&dense(shown)), "the page lacks: {shown}");
    }
}
