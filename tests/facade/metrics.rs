//! Tests of a client's metrics, with a recorder of the `metrics` facade.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::sim::SimServer;
use leasehold::{LockClient, Outcome, Upgrade};
use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

/// A recorder that keeps all metrics by name and labels.
#[derive(Default)]
struct TestRecorder {
    counters: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    gauges: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    histograms: Mutex<BTreeMap<String, Arc<Samples>>>,
    described: Mutex<Vec<String>>,
}

#[derive(Default)]
struct Samples(Mutex<Vec<f64>>);

impl HistogramFn for Samples {
    fn record(&self, value: f64) {
        self.0.lock().expect("no panic").push(value);
    }
}

/// Formats a metric as `name{label=value,…}`, with sorted labels. An empty label is as good as none, as in Prometheus.
fn series(key: &Key) -> String {
    let mut labels: Vec<_> = key
        .labels()
        .filter(|label| !label.value().is_empty())
        .map(|label| format!("{}={}", label.key(), label.value()))
        .collect();
    labels.sort();
    format!("{}{{{}}}", key.name(), labels.join(","))
}

fn entry<T: Default>(map: &Mutex<BTreeMap<String, Arc<T>>>, key: &Key) -> Arc<T> {
    let mut map = map.lock().expect("no panic");
    Arc::clone(map.entry(series(key)).or_default())
}

impl Recorder for &'static TestRecorder {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&name);
    }
    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&name);
    }
    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&name);
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(entry(&self.counters, key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(entry(&self.gauges, key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(entry(&self.histograms, key))
    }
}

impl TestRecorder {
    fn describe(&self, name: &KeyName) {
        let mut described = self.described.lock().expect("no panic");
        described.push(name.as_str().to_owned());
    }

    fn count(&self, series: &str) -> u64 {
        let counters = self.counters.lock().expect("no panic");
        let count = counters.get(series);
        count.map_or(0, |count| count.load(Ordering::SeqCst))
    }

    fn gauge(&self, series: &str) -> f64 {
        let gauges = self.gauges.lock().expect("no panic");
        f64::from_bits(gauges[series].load(Ordering::SeqCst))
    }

    /// The number of live guards.
    fn guards(&self, mode: &str) -> f64 {
        self.gauge(&format!("leasehold_guards{{mode={mode}}}"))
    }

    fn samples(&self, series: &str) -> Vec<f64> {
        let histograms = self.histograms.lock().expect("no panic");
        let samples = histograms.get(series).expect(series);
        samples.0.lock().expect("no panic").clone()
    }

    /// The names of all metrics.
    fn names(&self) -> Vec<String> {
        let counters = self.counters.lock().expect("no panic");
        let gauges = self.gauges.lock().expect("no panic");
        let histograms = self.histograms.lock().expect("no panic");
        let values = counters.keys().chain(gauges.keys());
        values.chain(histograms.keys()).cloned().collect()
    }
}

/// Runs `body` in paused time with a new recorder.
fn record(body: impl Future<Output = ()>) -> &'static TestRecorder {
    let recorder: &'static TestRecorder = Box::leak(Box::default());
    record_with(recorder, body);
    recorder
}

fn record_with(recorder: &'static TestRecorder, body: impl Future<Output = ()>) {
    metrics::with_local_recorder(&recorder, || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime")
            .block_on(body);
    });
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Two clients contend for a lock. One of them is disconnected while it holds the lock.
async fn scenario() {
    let server = SimServer::new(7);
    let network = server.client("a");
    let (a, b) = (
        LockClient::new(network.clone()),
        LockClient::new(server.client("b")),
    );
    let lock = a.mutex("secret-key").expect("valid").lease(secs(9));
    let theirs = b.mutex("secret-key").expect("valid");
    let guard = lock.lock().await.expect("free");
    assert!(matches!(theirs.try_lock().await, Ok(Outcome::Contended(_))));
    let late = theirs.try_lock_for(secs(2)).await;
    assert!(matches!(late, Ok(Outcome::Contended(late)) if late.waited == secs(2)));
    let refused = b.semaphore("secret-key", 2).expect("valid").acquire().await;
    assert!(refused.is_err());
    let dropped = tokio::time::timeout(secs(1), theirs.lock()).await;
    assert!(dropped.is_err());
    tokio::time::sleep(secs(1)).await;
    guard.release().await.expect("released");
    let permit = b.semaphore("s", 2).expect("valid").acquire().await;
    drop(permit.expect("free"));
    let guard = lock.lock().await.expect("free");
    network.isolate();
    tokio::time::sleep(secs(20)).await;
    assert!(!guard.is_valid());
    drop(guard);
    tokio::time::sleep(secs(2)).await;
    network.rejoin();
    tokio::time::sleep(secs(2)).await;
    let _kept = b.rw_lock("rw").expect("valid").read().await.expect("free");
    server.step_clock_back(secs(60));
    tokio::time::sleep(secs(20)).await;
}

#[test]
fn each_event_is_counted_once() {
    let recorder = record(scenario());
    for (series, expected) in [
        ("acquisitions_total{mode=exclusive,outcome=acquired}", 2),
        ("acquisitions_total{mode=exclusive,outcome=contended}", 1),
        ("acquisitions_total{mode=exclusive,outcome=timed_out}", 1),
        ("acquisitions_total{mode=exclusive,outcome=dropped}", 1),
        ("acquisitions_total{mode=permits,outcome=refused}", 1),
        ("acquisitions_total{mode=permits,outcome=acquired}", 1),
        ("acquisitions_total{mode=shared,outcome=acquired}", 1),
        ("queued_total{mode=exclusive}", 2),
        ("losses_total{mode=exclusive,reason=deadline}", 1),
        ("losses_total{mode=shared,reason=clock_stepped}", 1),
        ("releases_total{by=release,outcome=released}", 1),
        ("releases_total{by=background,outcome=released}", 1),
        ("releases_total{by=background,outcome=left}", 1),
        // One is the wait that timed out, the other the lost guard.
        ("releases_total{by=background,outcome=not_held}", 2),
    ] {
        let count = recorder.count(&format!("leasehold_{series}"));
        assert_eq!(count, expected, "{series}");
    }
    assert!(recorder.count("leasehold_polls_total{outcome=queued}") >= 2);
    assert!(recorder.count("leasehold_renewals_total{outcome=renewed}") >= 1);
    assert!(recorder.count("leasehold_renewals_total{outcome=failed}") >= 1);
    assert!(recorder.count("leasehold_release_retries_total{}") >= 1);
    // Each client notices the step separately.
    let steps = recorder.count("leasehold_clock_steps_total{}");
    assert!((1..=2).contains(&steps), "{steps}");
    // Every guard was dropped or lost, and counted once.
    for mode in ["exclusive", "shared", "permits"] {
        assert_eq!(recorder.guards(mode), 0.0, "{mode}");
    }
}

#[test]
fn times_are_in_seconds_on_the_backends_clock() {
    let recorder = record(scenario());
    for (name, outcome, expected) in [
        ("wait", "timed_out", 2.0..2.1),
        ("hold", "released", 4.0..4.1),
        // The deadline is the end of the lease, less the drift allowance.
        ("hold", "lost", 8.8..9.0),
    ] {
        let series = format!("leasehold_{name}_seconds{{mode=exclusive,outcome={outcome}}}");
        let samples = recorder.samples(&series);
        let is_expected = matches!(samples[..], [one] if expected.contains(&one));
        assert!(is_expected, "{series}: {samples:?}");
    }
}

#[test]
fn gauge_counts_live_guards() {
    let recorder = record(async {
        let locks = LockClient::new(SimServer::new(7).client("a"));
        let lock = locks.rw_lock("k").expect("valid");
        let guards = (lock.read().await, lock.read().await);
        std::mem::forget(guards);
    });
    assert_eq!(recorder.guards("shared"), 2.0);
}

#[test]
fn gauge_follows_conversions() {
    let recorder = record(async {
        let locks = LockClient::new(SimServer::new(7).client("a"));
        let lock = locks.rw_lock("k").expect("valid");
        let guard = lock.write().await.expect("free");
        let guard = guard.downgrade().await.expect("converted");
        let upgraded = guard.try_upgrade().await.expect("converted");
        let Upgrade::Upgraded(guard) = upgraded else {
            panic!("not upgraded")
        };
        let guard = guard.downgrade().await.expect("converted");
        guard.release().await.expect("released");
        std::mem::forget(lock.write().await.expect("free").downgrade().await);
    });
    let guards = ["exclusive", "shared"].map(|mode| recorder.guards(mode));
    assert_eq!(guards, [0.0, 1.0]);
}

#[test]
fn gauge_counts_waiting_calls() {
    let recorder: &'static TestRecorder = Box::leak(Box::default());
    let waiting = || {
        let series = |class| format!("leasehold_waiting{{{class}mode=exclusive}}");
        ["", "class=invoice,"].map(|class| recorder.gauge(&series(class)))
    };
    record_with(recorder, async {
        let locks = LockClient::new(SimServer::new(7).client("a"));
        let plain = locks.mutex("k").expect("valid");
        let classed = plain.clone().class("invoice");
        let guard = classed.lock().await.expect("free");
        let queue = async {
            let in_time = tokio::join!(plain.try_lock_for(secs(9)), classed.try_lock_for(secs(2)));
            assert!(matches!(in_time.1, Ok(Outcome::Contended(_))));
            in_time.0.expect("an answer").into_guard().expect("in time")
        };
        let watch = async {
            tokio::time::sleep(secs(1)).await;
            assert_eq!(waiting(), [1.0, 1.0]);
            // Calls that don't wait are not counted.
            assert!(matches!(plain.try_lock().await, Ok(Outcome::Contended(_))));
            assert!(tokio::time::timeout(secs(3), plain.lock()).await.is_err());
            assert_eq!(waiting(), [1.0, 0.0]);
            guard.release().await.expect("released");
        };
        let (granted, ()) = tokio::join!(queue, watch);
        assert_eq!(waiting(), [0.0, 0.0]);
        drop(granted);
    });
}

#[test]
fn class_of_a_handle_is_a_label() {
    let recorder = record(async {
        let server = SimServer::new(7);
        let network = server.client("a");
        let locks = LockClient::new(network.clone());
        let lock = locks.rw_lock("k").expect("valid").class("invoice");
        let guard = lock.write().await.expect("free");
        let guard = guard.downgrade().await.expect("converted");
        guard.release().await.expect("released");
        let several = locks.mutexes(["m"]).expect("valid").class("report");
        let _lost = several.lock().await.expect("free");
        network.isolate();
        tokio::time::sleep(secs(60)).await;
    });
    for series in [
        "leasehold_acquisitions_total{class=invoice,mode=exclusive,outcome=acquired}",
        "leasehold_acquisitions_total{class=report,mode=exclusive,outcome=acquired}",
        "leasehold_losses_total{class=report,mode=exclusive,reason=deadline}",
    ] {
        assert_eq!(recorder.count(series), 1, "{series}");
    }
    let without = "leasehold_acquisitions_total{mode=exclusive,outcome=acquired}";
    assert_eq!(recorder.count(without), 0);
    for series in [
        "leasehold_hold_seconds{class=invoice,mode=shared,outcome=released}",
        "leasehold_wait_seconds{class=invoice,mode=exclusive,outcome=acquired}",
    ] {
        assert_eq!(recorder.samples(series).len(), 1, "{series}");
    }
    for series in [
        "leasehold_guards{class=invoice,mode=exclusive}",
        "leasehold_guards{class=invoice,mode=shared}",
        "leasehold_guards{class=report,mode=exclusive}",
        "leasehold_waiting{class=invoice,mode=exclusive}",
    ] {
        assert_eq!(recorder.gauge(series), 0.0, "{series}");
    }
}

#[test]
fn jobs_and_elections_are_counted_with_their_class() {
    let recorder = record(async {
        let server = SimServer::new(7);
        let locks = LockClient::new(server.client("a"));
        let job = locks.once("job").expect("valid").class("report");
        let job = job.attempts(1).not_within(secs(60));
        for fails in [true, true, false, false] {
            let ran = job.run(async |_job| {
                tokio::time::sleep(secs(2)).await;
                if fails { Err("broken") } else { Ok(()) }
            });
            ran.await.map(drop).expect("answered");
            if fails {
                // The failed occurrence is over.
                tokio::time::sleep(secs(61)).await;
            }
        }
        let election = locks.election("leader").expect("valid").class("scheduler");
        let term = election.campaign().await.expect("nobody leads");
        std::mem::forget(term);
    });
    for (series, expected) in [
        ("leasehold_jobs_total{class=report,outcome=gave_up}", 2),
        ("leasehold_jobs_total{class=report,outcome=done}", 1),
        ("leasehold_jobs_total{class=report,outcome=already_done}", 1),
        ("leasehold_terms_total{class=scheduler}", 1),
        (
            "leasehold_acquisitions_total{class=report,mode=exclusive,outcome=acquired}",
            3,
        ),
        (
            "leasehold_acquisitions_total{class=scheduler,mode=exclusive,outcome=acquired}",
            1,
        ),
    ] {
        assert_eq!(recorder.count(series), expected, "{series}");
    }
    for (outcome, expected) in [("failed", 2), ("done", 1)] {
        let series = format!("leasehold_job_seconds{{class=report,outcome={outcome}}}");
        let samples = recorder.samples(&series);
        assert_eq!(samples, vec![2.0; expected], "{series}");
    }
    let leads = "leasehold_guards{class=scheduler,mode=exclusive}";
    assert_eq!(recorder.gauge(leads), 1.0);
}

#[test]
fn retried_acquires_are_counted() {
    let recorder = record(async {
        let server = SimServer::new(7);
        let locks = LockClient::new(server.client("a"));
        let lock = locks.mutex("k").expect("valid");
        drop(lock.lock().await.expect("free"));
        server.stop();
        let timed_out = tokio::time::timeout(secs(2), lock.lock()).await;
        assert!(timed_out.is_err());
    });
    let retries = recorder.count("leasehold_acquire_retries_total{}");
    assert!((5..200).contains(&retries), "{retries} in 2 s");
}

#[test]
fn metrics_are_described_and_contain_no_key() {
    let recorder = record(scenario());
    let described = recorder.described.lock().expect("no panic");
    let names = recorder.names();
    assert!(names.len() > 10, "{names:?}");
    for series in names {
        let name = series.split('{').next().expect("a name");
        assert!(described.iter().any(|it| it == name), "{name}");
        assert!(!series.contains("secret-key"), "{series}");
    }
}

#[test]
fn docs_list_every_metric() {
    let page = include_str!("../../docs/observability.md");
    let recorder = record(scenario());
    for name in &*recorder.described.lock().expect("no panic") {
        assert!(page.contains(&format!("| `{name}` |")), "{name}");
    }
}

/// The names of metrics in a file for Grafana or Prometheus.
fn metrics_in(file: &str) -> BTreeSet<&str> {
    let words = file.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|word| word.starts_with("leasehold_"))
        .map(|word| word.strip_suffix("_bucket").unwrap_or(word))
        .collect()
}

#[test]
fn dashboard_shows_every_metric_and_alerts_name_no_other() {
    let recorder = record(scenario());
    let described = recorder.described.lock().expect("no panic");
    let described: BTreeSet<&str> = described.iter().map(String::as_str).collect();
    let dashboard = metrics_in(include_str!("../../docs/dashboards/grafana.json"));
    assert_eq!(dashboard, described);
    let alerts = metrics_in(include_str!("../../docs/dashboards/alerts.yml"));
    assert!(alerts.len() > 5, "{alerts:?}");
    assert!(alerts.is_subset(&described), "{alerts:?}");
}
