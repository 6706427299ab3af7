//! `leasehold ls`, `show`, `revoke` and `doctor`.

use crate::scenarios::support::{Place, SLACK, STUBBORN, alive_in};

/// Runs a command to its end. Returns its status and what it printed to standard output.
pub(crate) fn run(place: &Place, arguments: &[&str]) -> (Option<i32>, String) {
    let output = place.leasehold().args(arguments).output();
    let output = output.expect("the command runs");
    let text = String::from_utf8(output.stdout).expect("text");
    (output.status.code(), text)
}

/// Finds the lock, sees who holds it, and takes it away.
pub(crate) fn finds_and_revokes(place: &Place) {
    let mut started = place.start(&[], STUBBORN);
    let key = place.key.as_str();
    assert_eq!(run(place, &["ls", key]), (Some(0), format!("{key}\n")));
    assert_eq!(run(place, &["ls", "no such key"]), (Some(0), String::new()));
    let (status, text) = run(place, &["ls", "--long", "--json", key]);
    assert_eq!((status, text.lines().count()), (Some(0), 1), "{text}");

    let (status, text) = run(place, &["show", "--json", key]);
    assert_eq!(status, Some(0), "{text}");
    let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(shown["holder_count"], 1, "{text}");
    let token = shown["holders"][0]["token"].to_string();
    assert!(run(place, &["show", key]).1.contains(&token));

    // Another token spares the holder.
    assert_eq!(run(place, &["revoke", key, "--token", "7"]).0, Some(1));
    assert!(!started.has_ended());
    assert_eq!(run(place, &["revoke", key, "--token", &token]).0, Some(0));
    started.expect_status(70, SLACK);
    assert_eq!(alive_in(started.group()), [0; 0]);
}

pub(crate) fn a_healthy_service(place: &Place) {
    let (_, text) = run(place, &["doctor"]);
    for what in ["connection", "round trips", "clock", "listing"] {
        let line = format!("ok      {what}: ");
        assert!(text.contains(&line), "{what} in {text}");
    }
    assert!(text.contains("push: a waiter had the lock"), "{text}");
}
