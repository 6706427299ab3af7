//! Snapshots of error messages.

use std::time::Duration;

use leasehold::backend::{BackendError, LockSpec};
use leasehold::inspect::Mode;
use leasehold::{InvalidInput, Key, Label};

fn lines<T: ToString>(errors: &[T]) -> String {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

#[test]
fn invalid_input() {
    let mutex = LockSpec::mutex();
    let semaphore = LockSpec::semaphore(8).expect("valid");
    let errors = [
        Key::new("").map(drop),
        Label::new("x".repeat(40)).map(drop),
        mutex.with_waiter_lease(Duration::from_secs(61)).map(drop),
        semaphore.check_mode(Mode::Permits(9)),
        LockSpec::semaphore(0).map(drop),
        mutex.check_mode(Mode::Shared),
        Err(InvalidInput::setting("key prefix", "it has braces")),
    ];
    let errors = errors.map(|it| it.expect_err("invalid"));
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
