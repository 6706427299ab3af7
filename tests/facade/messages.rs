//! Snapshots of error messages.

use std::time::Duration;

use leasehold::InvalidInput;
use leasehold::backend::BackendError;
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
            asked: Duration::from_secs(61),
        },
        InvalidInput::Permits {
            asked: 9,
            capacity: 8,
        },
        InvalidInput::Capacity { asked: 0 },
        InvalidInput::ModeForKind {
            mode: Mode::Shared,
            kind: Kind::Mutex,
        },
        InvalidInput::Floor { asked: u64::MAX },
        InvalidInput::Setting {
            what: "key prefix",
            reason: "it has braces".into(),
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
