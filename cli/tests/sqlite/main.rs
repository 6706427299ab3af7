//! The command `leasehold` on a file.

#[path = "../scenarios/mod.rs"]
#[allow(dead_code, reason = "each test target uses a part")]
mod scenarios;

use scenarios::support::Place;
use scenarios::{ALL, Scenario, operators, run_all};

/// Nobody tells a holder that its lock is revoked. It learns that when it renews.
const NEED_PUSH: [&str; 3] = [
    "revoked",
    "revoked_while_the_command_is_stopped",
    "terms_that_end_at_once_are_paused",
];

#[test]
fn sqlite() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    let others = ALL.iter().filter(|(name, _)| !NEED_PUSH.contains(name));
    let others: Vec<Scenario> = others.copied().collect();
    assert_eq!(others.len() + NEED_PUSH.len(), ALL.len());
    run_all(&format!("sqlite:{}", file.display()), &others);
}

/// Relative to the folder in which the command runs, and the keeper of its lock.
#[test]
fn relative_path() {
    let place = Place::new("sqlite:locks.db", "relative");
    assert_eq!(place.status(&["--no-wait"], "test -e locks.db"), 0);
    let (status, text) = operators::run(&place, &["doctor"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(
        text.contains("ok      settings: a local file system"),
        "{text}"
    );
}
