//! Tests of the `tracing` output: each event has its level and fields, and contains no secret.
//!
//! `tracing` caches for each callsite whether a subscriber is interested. If a thread registers a
//! callsite while another thread installs a subscriber, the cached value may be wrong. So all tests
//! here share one global subscriber, which is installed first and keeps the output of each thread
//! apart. Each test runs on one thread.

#![expect(
    clippy::disallowed_methods,
    reason = "a user's code spawns; on the simulator this is deterministic too"
)]

mod coordination;

#[expect(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "other tests use the rest"
)]
#[path = "../client/support.rs"]
mod support;
#[path = "../client/wrapped.rs"]
mod wrapped;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex, Once};

use leasehold_api::{
    Acquire, BackendError, Error, ForceMode, Label, LockBackend, LockClient, Operation, Outcome,
};
use leasehold_sim::{Call, Data, Fault, SimBackend, SimServer};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::support::{assert_is, client, clients, connected, held, ms, secs, server};
use crate::wrapped::Wrapped;

/// The output of a thread. Each event is one line with its level, name and fields, indented inside
/// a span.
#[derive(Debug, Default)]
struct Output {
    lines: Vec<String>,
    /// The line of each span, by its id.
    spans: BTreeMap<u64, usize>,
    inside: Vec<u64>,
}

thread_local! {
    static OUTPUT: RefCell<Output> = RefCell::default();
}

fn lines() -> Vec<String> {
    OUTPUT.with_borrow_mut(|output| std::mem::take(&mut output.lines))
}

/// Returns all lines except those whose order varies.
fn stable_lines() -> String {
    let (others, rest): (Vec<_>, Vec<_>) = lines()
        .into_iter()
        .partition(|line| line.contains("TRACE polled") || line.ends_with(" subscribed"));
    assert!(others.len() > 2, "{others:?}");
    rest.join("\n")
}

fn warnings() -> Vec<String> {
    let lines = lines().into_iter();
    lines.filter(|line| line.starts_with("WARN")).collect()
}

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() != "message" {
            write!(self.0, " {field}={value:?}").expect("writing to a string never fails");
        }
    }
}

/// A subscriber that records the output of each thread.
struct Recorder;

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("leasehold")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut line = format!("SPAN {}", span.metadata().name());
        span.record(&mut Fields(&mut line));
        OUTPUT.with_borrow_mut(|output| {
            output.lines.push(line);
            let id = output.spans.len() as u64 + 1;
            output.spans.insert(id, output.lines.len() - 1);
            Id::from_u64(id)
        })
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        OUTPUT.with_borrow_mut(|output| {
            let index = output.spans[&span.into_u64()];
            if let Some(line) = output.lines.get_mut(index) {
                values.record(&mut Fields(line));
            }
        });
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        assert_eq!(metadata.target(), "leasehold");
        let mut line = format!("{} {}", metadata.level(), metadata.name());
        event.record(&mut Fields(&mut line));
        OUTPUT.with_borrow_mut(|output| {
            if !output.inside.is_empty() {
                line.insert_str(0, "  ");
            }
            output.lines.push(line);
        });
    }

    fn enter(&self, span: &Id) {
        OUTPUT.with_borrow_mut(|output| output.inside.push(span.into_u64()));
    }

    fn exit(&self, span: &Id) {
        let left = OUTPUT.with_borrow_mut(|output| output.inside.pop());
        assert_eq!(left, Some(span.into_u64()));
    }
}

/// Installs the subscriber and clears the output of this thread. Each test calls this first.
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(Recorder).expect("the only subscriber");
    });
    OUTPUT.take();
}

#[tokio::test(start_paused = true)]
async fn life_of_a_lock() {
    listen();
    let (server, [(a, network), (b, _)]) = connected();
    let lock = a.rw_lock("k").expect("valid").lease(secs(9));
    let other = b.rw_lock("k").expect("valid");
    let writing = lock.write().await.expect("free");
    assert_is!(other.try_write().await => Ok(Outcome::Contended(_)));
    let waiting = tokio::spawn(async move { other.write().await });
    server.advance(secs(4)).await;
    let reading = writing.downgrade().await.expect("converted");
    reading.release().await.expect("released");
    let theirs = waiting.await.expect("no panic").expect("granted");
    drop(theirs);
    server.advance(ms(100)).await;
    let lost = lock.read().await.expect("free");
    network.isolate();
    server.advance(secs(10)).await;
    drop(lost);
    network.rejoin();
    server.advance(secs(1)).await;
    insta::assert_snapshot!(stable_lines());
}

#[tokio::test(start_paused = true)]
async fn failed_operations() {
    listen();
    let (server, [(a, network), (b, _)]) = connected();
    let guard = a.mutex("k").expect("valid").lock().await.expect("free");
    let lock = b.mutex("k").expect("valid");
    let late = lock.try_lock_for(secs(1)).await.expect("answered");
    assert_is!(late => Outcome::Contended(late) if late.waited == secs(1));
    let dropped = tokio::time::timeout(ms(50), lock.lock()).await;
    assert!(dropped.is_err());
    let semaphore = b.semaphore("k", 3).expect("valid");
    assert_is!(semaphore.permits(2).try_acquire().await => Err(Error::Refused { .. }));
    network.inject_into(Call::Renew, Fault::LoseReply);
    server.advance(secs(15)).await;
    network.inject_into(Call::Release, Fault::LoseReply);
    drop(guard);
    server.advance(secs(5)).await;
    insta::assert_snapshot!(stable_lines());
}

#[tokio::test(start_paused = true)]
async fn retried_acquire_is_reported_until_it_recovers() {
    listen();
    let (server, [(a, network)]) = connected();
    let mutex = a.mutex("k").expect("valid");
    let reports = || -> Vec<String> {
        let lines = lines().into_iter().map(|line| line.trim_start().to_owned());
        lines
            .filter(|line| {
                line.contains(" acquire failed ") || line.contains(" acquire recovered ")
            })
            .collect()
    };
    // Once the server refuses connections, and once it is silent.
    for silent in [false, true] {
        if silent {
            network.isolate();
        } else {
            server.stop();
        }
        let begun = server.elapsed();
        let waiting = tokio::spawn({
            let mutex = mutex.clone();
            async move { mutex.lock().await }
        });
        server.advance(secs(3)).await;
        let failures = reports();
        assert!(failures.len() >= 2, "{silent}: {failures:?}");
        for (number, line) in (1..).zip(&failures) {
            let level = if number == 1 { "INFO" } else { "DEBUG" };
            let start = format!(r#"{level} acquire failed key="k" attempt={number} retry_in_ms="#);
            assert!(line.starts_with(&start), "{line}");
            assert!(line.contains(" error="), "{line}");
        }
        if silent {
            network.rejoin();
        } else {
            server.start(Data::Kept);
        }
        let guard = waiting.await.expect("no panic").expect("free");
        let took = server.elapsed() - begun;
        let mut rest = reports();
        let last = rest.pop().expect("it works again");
        let start = r#"INFO acquire recovered key="k" failed="#;
        assert!(last.starts_with(start), "{last}");
        let failed = format!(" failed={} ", failures.len() + rest.len());
        assert!(last.contains(&failed), "{last}, not {failed}");
        let (_, after_ms) = last.split_once("after_ms=").expect("a field");
        let after_ms: f64 = after_ms.parse().expect("a number");
        assert!(after_ms > 0.0, "{last}");
        assert!(after_ms <= took.as_secs_f64() * 1e3, "{last}");
        guard.release().await.expect("released");
        assert_eq!(reports(), [""; 0], "nothing failed since");
        server.advance(secs(1)).await;
    }
}

/// One line when renewals begin to fail, and one when they no longer do: for all guards, and however often they were
/// repeated.
#[tokio::test(start_paused = true)]
async fn failed_renewals_are_reported_once_until_they_recover() {
    listen();
    let (server, [(a, network)]) = connected();
    let lock = |key| {
        let mutex = a.mutex(key).expect("valid").lease(secs(20));
        async move { mutex.lock().await.expect("free") }
    };
    let (one, two) = (lock("one").await, lock("two").await);
    let reports = || -> Vec<String> {
        let all = lines().into_iter();
        all.filter(|line| line.starts_with("INFO")).collect()
    };
    for lost in [false, true] {
        network.isolate();
        server.advance(secs(14)).await;
        let begun = reports();
        assert_is!(begun[..] => [line] if line.starts_with("INFO renewals failed failed="));
        if lost {
            // The first one is lost, and the other one is released.
            server.advance(secs(8)).await;
            assert!(!one.is_valid());
            drop(one.release().await);
        }
        network.rejoin();
        let three = lost.then(|| lock("three"));
        let three = match three {
            Some(three) => Some(three.await),
            None => None,
        };
        server.advance(secs(8)).await;
        let over = reports();
        let recovered = |line: &String| line.starts_with("INFO renewals recovered failed=");
        assert_eq!(
            over.iter().filter(|line| recovered(line)).count(),
            1,
            "{over:?}"
        );
        drop(three);
        server.advance(secs(1)).await;
        drop(reports());
    }
    drop(two);
}

#[tokio::test(start_paused = true)]
async fn retried_acquire_shows_the_error_of_the_library() {
    listen();
    let backend = Wrapped::new(server().client("a"));
    let library_error = std::io::Error::other("connection refused");
    let error = BackendError::unavailable("no connection").with_source(library_error);
    *backend.acquire_fails.lock().expect("no panic") = Some(error);
    let locks = LockClient::new(backend);
    let guard = locks.mutex("k").expect("valid").lock().await.expect("free");
    guard.release().await.expect("released");
    let lines = lines();
    let failed = lines.iter().find(|line| line.contains("acquire failed"));
    let failed = failed.expect("the first acquire failed");
    assert!(failed.contains("connection refused"), "{failed}");
}

#[tokio::test(start_paused = true)]
async fn another_server_with_another_time_is_a_warning() {
    listen();
    let (server, [a]) = clients();
    let guard = a.mutex("k").expect("valid").lock().await.expect("free");
    let lost = "WARN subscription lost";
    // The next server shows the same time, the one after it does not.
    server.restart(Data::Kept);
    server.advance(secs(12)).await;
    assert_eq!(warnings(), [lost]);
    server.restart(Data::Kept);
    server.step_clock_forward(secs(5));
    server.advance(secs(25)).await;
    let differ =
        r#"WARN server clocks differ ahead="clock 3" behind="clock 2" difference_ms=5000.0"#;
    assert_eq!(warnings(), [lost, differ], "once");
    assert!(guard.is_valid(), "its lease is long enough");
}

#[tokio::test(start_paused = true)]
async fn problems_are_warnings() {
    listen();
    let (server, [(a, network)]) = connected();
    let lock = a.mutex("k").expect("valid").lease(ms(900));
    let guard = held(lock.try_lock().await);
    guard.release().await.expect("released");
    // Once per client.
    drop(held(lock.try_lock().await));
    assert_eq!(warnings(), [r#"WARN short lease key="k" lease_ms=900.0"#]);

    let guard = a.mutex("k").expect("valid").lock().await.expect("free");
    server.step_clock_forward(secs(100));
    server.advance(secs(10)).await;
    let stepped = warnings();
    assert_eq!(stepped[0], "WARN server clock stepped");
    let start = r#"WARN lost key="k" mode=exclusive token="#;
    let reason = r#"reason="clock_stepped" held_ms="#;
    assert!(stepped[1].starts_with(start), "{stepped:?}");
    assert!(stepped[1].contains(reason), "{stepped:?}");
    assert_eq!(stepped.len(), 2);
    drop(guard);

    // A waiter subscribes, then the connection is lost.
    let (b, _) = client(&server, "b");
    let _theirs = b.mutex("k").expect("valid").lock().await.expect("free");
    let lock = a.mutex("k").expect("valid");
    let waiting = tokio::spawn(async move { lock.lock().await });
    server.advance(secs(3)).await;
    assert_eq!(warnings(), [""; 0]);
    network.drop_connection();
    server.advance(secs(3)).await;
    let told = lines();
    let about = told.iter().filter(|line| line.contains("subscri"));
    assert!(
        about.eq(["WARN subscription lost", "INFO subscribed"]),
        "{told:?}"
    );
    waiting.abort();

    let (c, network) = client(&server, "c");
    for _ in 0..2 {
        network.inject_into(Call::Listen, Fault::LoseRequest);
    }
    let lock = c.mutex("k").expect("valid");
    assert!(lock.try_lock_for(secs(5)).await.is_ok());
    let failed = "WARN subscription failed error=";
    assert_is!(warnings()[..] => [one] if one.starts_with(failed));
}

/// A lock that was free is renewed only after about a third of its lease.
#[tokio::test(start_paused = true)]
async fn loss_that_only_the_release_finds_is_a_warning() {
    listen();
    let (server, [(a, _)]) = connected();
    for background in [false, true] {
        let guard = a.mutex("k").expect("valid").lock().await.expect("free");
        server.remove_key("k");
        if background {
            drop(guard);
            server.advance(secs(1)).await;
        } else {
            assert_is!(guard.release().await => Err(Error::Lost { .. }));
        }
        let released = r#"WARN released key="k" outcome="lost" reason="unknown" background="#;
        assert_eq!(warnings(), [format!("{released}{background}")]);
    }
    // It is valid when it is dropped, and its lease ends before the server can answer.
    let guard = a.mutex("k").expect("valid").lock().await.expect("free");
    server.stop();
    drop(guard);
    server.advance(secs(35)).await;
    server.start(Data::Kept);
    server.advance(secs(5)).await;
    let not_held = r#"DEBUG released key="k" outcome="not_held" reason="expired" background=true"#;
    let released = lines()
        .into_iter()
        .filter(|line| line.contains(" released "));
    assert_eq!(released.collect::<Vec<_>>(), [not_held]);
}

/// Once for each release, because it is tried twice a second.
#[tokio::test(start_paused = true)]
async fn first_refusal_of_a_release_is_told() {
    listen();
    let (server, [(a, network)]) = connected();
    let guard = a.mutex("k").expect("valid").lock().await.expect("free");
    network.deny();
    drop(guard);
    server.advance(secs(5)).await;
    network.admit();
    server.advance(secs(1)).await;
    let lines = lines();
    let mut failed = lines
        .iter()
        .filter(|line| line.contains(r#" release failed key="k" error="#));
    let first = failed.next().expect("told");
    assert!(
        first.starts_with("INFO ") && first.contains("NOPERM"),
        "{first}"
    );
    assert!(failed.clone().count() >= 5);
    assert!(failed.all(|line| line.starts_with("DEBUG ")));
    let released = r#"DEBUG released key="k" outcome="released" background=true"#;
    assert!(lines.iter().any(|line| line == released), "{lines:?}");
}

/// The secrets of the operations in every form that could be printed.
fn secrets(operations: &[Operation]) -> Vec<String> {
    let mut secrets = Vec::new();
    for operation in operations {
        let bytes = operation.session.as_bytes();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        // Half of a session id is a secret too.
        secrets.push(hex[..16].to_owned());
        secrets.push(hex[16..].to_owned());
        let start = format!("{:?}", &bytes[..4]);
        secrets.push(start.trim_matches(['[', ']']).to_owned());
        secrets.push(u128::from_be_bytes(*bytes).to_string());
        secrets.push(u128::from_le_bytes(*bytes).to_string());
        let owner = operation.owner.as_u64();
        secrets.push(owner.to_string());
        secrets.push(format!("{owner:x}"));
        secrets.push(format!("{:x}", owner.swap_bytes()));
    }
    secrets.sort_unstable();
    secrets.dedup();
    secrets
}

#[tokio::test(start_paused = true)]
async fn no_secret_is_printed() {
    listen();
    let server = server();
    let mut shown = String::new();
    let requests: Arc<Mutex<Vec<Acquire>>> = Arc::default();
    let clients: Vec<(LockClient, _)> = ["a", "b"]
        .iter()
        .map(|name| {
            let backend = server.client(name);
            let mut wrapped = Wrapped::new(backend.clone());
            wrapped.acquires = Arc::clone(&requests);
            let label = Label::new(name).expect("short");
            let client = LockClient::builder(wrapped).label(label).on_loss(|_| {});
            show(&mut shown, &client);
            (client.build().expect("valid"), backend)
        })
        .collect();
    run_everything(&server, &clients, &mut shown).await;
    let requests = requests.lock().expect("no panic");
    show(&mut shown, &*requests);
    let operations: Vec<_> = requests.iter().map(|request| request.operation).collect();
    assert!(operations.len() > 5, "{}", operations.len());
    shown += &lines().join("\n");
    for part in [
        "granted", "queued", "renewed", "lost", "released", "polled", "Guard", "Rw",
    ] {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }
    for secret in secrets(&operations) {
        assert!(!shown.contains(&secret), "{secret} is in\n{shown}");
    }
}

/// The levels and the fields of each event in `docs/observability.md`.
fn documented() -> BTreeMap<&'static str, (&'static str, Vec<&'static str>)> {
    let page = include_str!("../../../docs/observability.md");
    let table = page
        .lines()
        .skip_while(|line| !line.starts_with("| event |"));
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let fields = cells[3].split(' ').map(|field| field.trim_matches('`'));
        (cells[1].trim_matches('`'), (cells[2], fields.collect()))
    })
    .collect()
}

#[tokio::test(start_paused = true)]
async fn docs_list_every_event_with_its_level_and_fields() {
    let documented = documented();
    assert!(documented.len() > 15, "{documented:?}");
    listen();
    let server = server();
    let clients = [client(&server, "a"), client(&server, "b")];
    run_everything(&server, &clients, &mut String::new()).await;
    let mut seen = BTreeSet::new();
    for line in lines() {
        let line = line.trim_start();
        let Some((level, rest)) = line.split_once(' ').filter(|(it, _)| *it != "SPAN") else {
            continue;
        };
        let event = documented.iter().find(|(name, _)| {
            rest.strip_prefix(**name)
                .is_some_and(|it| it.is_empty() || it.starts_with(' '))
        });
        let Some((name, (levels, fields))) = event else {
            panic!("not documented: {line}")
        };
        assert!(levels.contains(level), "{levels}, not {line}");
        // Values may contain spaces and equal signs. The text before the first `=` is a field.
        let fields_text = rest[name.len()..].split('=').next().unwrap_or_default();
        let first = fields_text.trim();
        let listed = first.is_empty() || fields.contains(&first);
        assert!(listed, "{fields:?}, not {line}");
        seen.insert(*name);
    }
    assert!(seen.len() > 10, "{seen:?}");
}

fn show(shown: &mut String, value: &impl Debug) {
    write!(shown, "{value:?}\n{value:#?}\n").expect("writing to a string never fails");
}

/// Acquires, awaits, renews, converts, loses and releases every kind of lock. Formats every public
/// value on the way.
async fn run_everything(
    server: &SimServer,
    clients: &[(LockClient, SimBackend)],
    shown: &mut String,
) {
    let [(a, network), (b, _)] = clients else {
        panic!("two clients")
    };
    show(shown, a);
    let mutex = a.mutex("m").expect("valid").lease(secs(9));
    let mutex = mutex.reentrant().expect("supported");
    let outer = mutex.lock().await.expect("free");
    let inner = mutex.try_lock().await;
    show(shown, &(&mutex, &outer, &inner));
    let theirs = b.mutex("m").expect("valid");
    show(shown, &theirs.try_lock().await);
    show(shown, &theirs.try_lock_for(secs(1)).await);
    drop(inner);
    let waiting = tokio::spawn(async move { theirs.lock().await });
    server.advance(secs(7)).await;
    show(shown, &a.inspect("m").await);
    show(shown, &outer.release().await);
    let theirs = waiting.await.expect("no panic").expect("granted");
    let tokens = vec![theirs.fencing_token()];
    show(shown, &a.force_release("m", tokens, ForceMode::Now).await);
    server.advance(ms(100)).await;
    let ended = (theirs.renew().await, theirs.release().await);
    show(shown, &(&theirs, ended));
    let rw_lock = a.rw_lock("rw").expect("valid");
    let writing = rw_lock.write().await.expect("free");
    show(shown, &(&rw_lock, &writing));
    let reading = writing.downgrade().await.expect("converted");
    show(shown, &reading.try_upgrade().await);
    let semaphore = a.semaphore("s", 3).expect("valid");
    let permit = semaphore.permits(2).acquire().await.expect("free");
    show(shown, &(&semaphore, &permit));
    let refused = b.semaphore("s", 4).expect("valid").acquire().await;
    show(shown, &refused);
    network.isolate();
    server.advance(secs(40)).await;
    show(shown, &(permit.renew().await, permit.release().await));
    network.rejoin();
    let shared: Arc<dyn LockBackend> = Arc::new(network.clone());
    show(shown, &(shared, server));
    server.advance(secs(1)).await;
    show(shown, &a.shutdown().await);
}
