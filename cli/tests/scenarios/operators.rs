//! `leasehold ls`, `show`, `revoke` and `doctor`.

use crate::scenarios::support::{Place, STUBBORN, alive_in};

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
    started.expect_status(70);
    assert_eq!(alive_in(started.group()), [0; 0]);
}

/// Jobs and elections are told apart from plain locks, and a leader's info is shown.
pub(crate) fn roles(place: &Place) {
    let key = |name: &str| format!("{} {name}", place.key);
    let client = place.client();
    let (job, election, plain) = (key("job"), key("election"), key("plain"));
    let ran = place
        .leasehold()
        .args(["run", "--not-within", "1h", &job, "--", "true"])
        .status();
    assert!(ran.expect("the command runs").success());
    let handle = client.locks.election(&election).expect("a key");
    let handle = handle.info("10.0.0.7:80").expect("short");
    let term = client.runtime.block_on(handle.campaign()).expect("elected");
    let mutex = client.locks.mutex(&plain).expect("a key");
    let guard = client.runtime.block_on(mutex.lock()).expect("free");

    let (status, text) = run(place, &["ls", "--json", &key("")]);
    assert_eq!(status, Some(0), "{text}");
    let shown: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let of = |key: &str| shown.iter().find(|it| it["key"] == key).expect("listed");
    assert_eq!(of(&job)["role"], "job", "{text}");
    assert_eq!(of(&election)["role"], "election", "{text}");
    assert!(of(&plain)["role"].is_null(), "{text}");
    assert_eq!(of(&election)["info"], "10.0.0.7:80", "{text}");
    let (status, text) = run(place, &["show", &election]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("info of the leader: 10.0.0.7:80"), "{text}");
    let (_, text) = run(place, &["ls", "--long", &key("")]);
    assert!(text.contains("info of the leader: 10.0.0.7:80"), "{text}");

    client.runtime.block_on(term.resign()).expect("resigned");
    client.runtime.block_on(guard.release()).expect("released");
    for free in [&job, &election, &plain] {
        let (status, text) = run(place, &["show", free]);
        assert_eq!(status, Some(1), "nobody holds it: {text}");
    }
}

pub(crate) fn a_healthy_service(place: &Place) {
    let (_, text) = run(place, &["doctor"]);
    for what in ["connection", "round trips", "clock", "listing"] {
        let line = format!("ok      {what}: ");
        assert!(text.contains(&line), "{what} in {text}");
    }
    assert!(text.contains("push: a waiter had the lock"), "{text}");
}
