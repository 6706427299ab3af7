//! Snapshots of error messages and of a formatted inspection.

use std::time::Duration;

use leasehold::sim::SimServer;
use leasehold::{BackendError, InvalidInput, Label, LockClient, Policy};
use leasehold_api::{Kind, Mode, bounds};

fn lines<T: ToString>(errors: &[T]) -> String {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

#[test]
fn invalid_input() {
    let errors = [
        InvalidInput::KeyLength { bytes: 0 },
        InvalidInput::LabelLength { bytes: 40 },
        InvalidInput::Lease {
            asked: Duration::ZERO,
            limits: bounds::MIN_LEASE..=bounds::MAX_LEASE,
        },
        InvalidInput::WaiterLease {
            asked: Duration::from_secs(1),
            limits: bounds::MIN_WAITER_LEASE..=bounds::MAX_WAITER_LEASE,
        },
        InvalidInput::Permits {
            asked: 9,
            capacity: 8,
        },
        InvalidInput::Capacity { asked: 0 },
        InvalidInput::PolicyForKind {
            policy: Policy::ReaderPreference,
            kind: Kind::Mutex,
        },
        InvalidInput::ModeForKind {
            mode: Mode::Shared,
            kind: Kind::Mutex,
        },
        InvalidInput::Floor { asked: u64::MAX },
        InvalidInput::HandoffGuard {
            guard: "an adopted guard",
        },
        InvalidInput::Setting {
            what: "key prefix",
            problem: "it has braces".into(),
        },
    ];
    insta::assert_snapshot!(lines(&errors));
}

#[test]
fn backend_errors() {
    let errors = [
        BackendError::unavailable("connection refused"),
        BackendError::outcome_unknown("no answer within 1s"),
        BackendError::rejected("WRONGPASS invalid username-password pair"),
        BackendError::foreign_value("list"),
        BackendError::unsupported("convert"),
        BackendError::Closed,
    ];
    insta::assert_snapshot!(lines(&errors));
}

fn client(server: &SimServer, name: &str) -> LockClient {
    let label = Label::new(name).expect("short");
    let builder = LockClient::builder(server.client(name)).label(label);
    builder.build().expect("valid settings")
}

#[tokio::test(start_paused = true)]
async fn an_inspection() {
    let server = SimServer::new(1);
    let (ann, bob) = (client(&server, "ann"), client(&server, "bob"));
    let mut seen = Vec::new();

    let mutex = bob.mutex("invoice:42").expect("a key");
    seen.push(ann.inspect("invoice:42").await.expect("idle"));
    let held = ann
        .mutex("invoice:42")
        .expect("a key")
        .lock()
        .await
        .expect("free");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    server.advance(Duration::from_millis(500)).await;
    seen.push(ann.inspect("invoice:42").await.expect("held"));
    held.release().await.expect("held");
    drop(waiting.await.expect("no panic").expect("granted"));

    let tree = ann
        .rw_lock("tree")
        .expect("a key")
        .reentrant()
        .expect("supported");
    let nested = [
        tree.read().await.expect("free"),
        tree.read().await.expect("nested"),
    ];
    let reading = bob
        .rw_lock("tree")
        .expect("a key")
        .read()
        .await
        .expect("shared");
    seen.push(ann.inspect("tree").await.expect("held"));
    drop((nested, reading));

    let slots = ann.semaphore("slots", 8).expect("a key");
    let slots = slots.lease(Duration::from_secs(10)).policy(Policy::Barging);
    let permits = [
        slots.acquire().await.expect("free"),
        slots.clone().permits(3).acquire().await.expect("free"),
    ];
    seen.push(ann.inspect("slots").await.expect("held"));
    drop(permits);

    insta::assert_snapshot!(lines(&seen));
}
