//! `leasehold run --not-within`, and `leasehold once`.

use std::time::{Duration, Instant};

use leasehold_test_servers::block_until;
use rustix::process::Signal;

use crate::scenarios::operators::run as ask;
use crate::scenarios::support::{Place, STUBBORN, Started, alive_in};

const DAILY: [&str; 2] = ["--not-within", "20h"];

fn status(place: &Place, options: &[&str], script: &str) -> i32 {
    place.status(&[&DAILY, options].concat(), script)
}

/// How often CMD has run, by the lines that it has written.
fn runs(place: &Place) -> usize {
    let text = std::fs::read_to_string(place.file("runs")).unwrap_or_default();
    text.lines().count()
}

fn shown(place: &Place) -> serde_json::Value {
    let (status, text) = ask(place, &["once", "show", "--json", &place.key]);
    assert_eq!(status, Some(0), "{text}");
    serde_json::from_str(&text).expect("JSON")
}

pub(crate) fn runs_once(place: &Place) {
    let script = "echo $LEASEHOLD_FIRE_TIME $LEASEHOLD_ATTEMPT >> runs";
    assert!(shown(place)["done_ms"].is_null());
    assert_eq!(status(place, &[], script), 0);
    for options in [&[][..], &["--no-wait"], &["-E", "9", "--wait", "1s"]] {
        assert_eq!(status(place, options, script), 0, "{options:?}");
    }
    assert_eq!(runs(place), 1);
    let state = shown(place);
    assert_eq!(state["state"], "done", "{state}");
    assert_eq!(state["last_status"], "succeeded", "{state}");
    assert_eq!(state["exit_status"], 0, "{state}");
    let ended = state["done_at_ms"].as_u64().expect("a time");
    let next = ended + 20 * 60 * 60 * 1_000;
    assert_eq!(state["next_ms"], next, "{state}");
    let done = state["done_ms"].to_string();
    let text = std::fs::read_to_string(place.file("runs")).expect("written by CMD");
    assert_eq!(text, format!("{done} 1\n"));

    // Within a shorter time, it is not done.
    #[expect(clippy::disallowed_methods, reason = "that time passes")]
    std::thread::sleep(Duration::from_secs(11));
    let shorter = ["--not-within", "10s"];
    assert_eq!(status(place, &shorter, script), 64, "named twice");
    Started::new(place.run(&shorter, script)).expect_status(0);
    assert_eq!(runs(place), 2);

    assert_eq!(ask(place, &["once", "reset", &place.key]).0, Some(0));
    assert!(shown(place)["done_ms"].is_null());
    assert_eq!(status(place, &[], script), 0);
    assert_eq!(runs(place), 3);
    assert_eq!(ask(place, &["once", "show", &place.key]).0, Some(0));
}

pub(crate) fn many_machines_run_it_once(place: &Place) {
    let script = "echo >> runs; sleep 1";
    let start = |_| Started::new(place.run(&DAILY, script));
    let mut machines: Vec<_> = (0..5).map(start).collect();
    for machine in &mut machines {
        machine.expect_status(0);
    }
    assert_eq!(runs(place), 1);
}

pub(crate) fn failures_are_counted(place: &Place) {
    assert_eq!(status(place, &[], "echo >> runs; exit 3"), 3);
    // The next attempt must wait.
    assert_eq!(status(place, &["--no-wait"], "echo >> runs"), 75);
    let waiting = ["--wait", "1s", "-E", "9"];
    assert_eq!(status(place, &waiting, "echo >> runs"), 9);
    let state = shown(place);
    assert!(state["done_ms"].is_null(), "{state}");
    assert_eq!(state["attempts"], 1, "{state}");
    assert_eq!(state["state"], "failed", "{state}");
    assert_eq!(state["last_status"], "failed", "{state}");
    assert_eq!(state["exit_status"], 3, "{state}");
    let time = |name: &str| state[name].as_u64().expect("a time");
    assert_eq!(time("next_ms"), time("tried_at_ms") + 30_000, "{state}");
    let machine = state["tried_by"].as_str().expect("a label");
    let (_, text) = ask(place, &["once", "show", &place.key]);
    assert!(text.contains("waits for the next attempt"), "{text}");
    assert!(
        text.contains(&format!("number 1, by {machine}, failed at ")),
        "{text}"
    );
    assert!(text.contains(" with exit status 3\n"), "{text}");
    let attempts = ["--attempts", "1", "-E", "0"];
    assert_eq!(status(place, &attempts, "echo >> runs"), 73);
    assert_eq!(runs(place), 1);
    assert_eq!(ask(place, &["once", "reset", &place.key]).0, Some(0));
    // One that a signal ended has failed too.
    let mut killed = Started::new(place.run(&DAILY, "kill -9 $$"));
    killed.expect_signal(Signal::KILL);
    assert_eq!(shown(place)["exit_status"], 128 + 9);
    assert_eq!(status(place, &["--no-wait"], "echo >> runs"), 75);
}

pub(crate) fn a_job_that_is_given_up_says_so(place: &Place) {
    assert_eq!(shown(place)["state"], "no_record");
    assert_eq!(status(place, &["--attempts", "1"], "exit 3"), 3);
    let state = shown(place);
    assert_eq!(state["state"], "gave_up", "{state}");
    assert_eq!(state["last_status"], "failed", "{state}");
    assert!(state["done_at_ms"].is_null(), "{state}");
    // Another run may begin when the time of --not-within is over.
    let began = state["tried_ms"].as_u64().expect("a time");
    assert_eq!(state["next_ms"], began + 20 * 60 * 60 * 1_000, "{state}");
    let (_, text) = ask(place, &["once", "show", &place.key]);
    assert!(text.starts_with("given up"), "{text}");
}

/// The command is killed, its keeper ends CMD and records the failure, and another machine tries after the pause.
pub(crate) fn next_machine_tries_after_a_failure(place: &Place) {
    let mut first = place.start(&DAILY, STUBBORN);
    let mut second = Started::new(place.run(&DAILY, "echo $LEASEHOLD_ATTEMPT > second; exit 4"));
    let (status, _) = ask(place, &["once", "reset", &place.key]);
    assert_eq!(status, Some(75), "it is running");
    let state = shown(place);
    assert_eq!(state["last_status"], "running", "{state}");
    assert!(state["exit_status"].is_null(), "{state}");
    let (_, text) = ask(place, &["once", "show", &place.key]);
    assert!(text.contains(", began at "), "{text}");
    first.signal(Signal::KILL);
    first.expect_signal(Signal::KILL);
    let failed = Instant::now();
    block_until("the second runs", || place.file("second").exists());
    let paused = failed.elapsed();
    assert_eq!(alive_in(first.group()), [0; 0]);
    assert!(paused > Duration::from_secs(20), "{paused:?}");
    second.expect_status(4);
    let attempt = std::fs::read_to_string(place.file("second")).expect("written by CMD");
    assert_eq!(attempt, "2\n");
}

pub(crate) fn a_job_that_is_stopped_is_not_done(place: &Place) {
    let options = [DAILY[0], DAILY[1], "--max-hold", "4s"];
    let script = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let mut started = place.start(&options, script);
    let mut waiting = Started::new(place.run(&DAILY, "echo >> runs"));
    waiting.keeper();
    waiting.signal(Signal::TERM);
    waiting.expect_signal(Signal::TERM);
    started.expect_status(124);
    assert_eq!(alive_in(started.group()), [0; 0]);
    let state = shown(place);
    assert!(state["done_ms"].is_null(), "{state}");
    assert_eq!((&state["attempts"], runs(place)), (&1.into(), 0), "{state}");
    assert_eq!(state["exit_status"], 124, "that of the command: {state}");
}
