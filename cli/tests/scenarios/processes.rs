//! Children that are hard to end.

use std::process::Command;

use leasehold_test_servers::block_until;
use rustix::process::{Signal, getuid};

use crate::scenarios::support::{Place, TIMES, alive_in, kill};

/// SIGTERM comes at 3 s, and SIGKILL at 4 s.
const MAX_HOLD: [&str; 2] = ["--max-hold", "3s"];

pub(crate) fn ignores_sigterm(place: &Place) {
    let script = "trap '' TERM; (while :; do sleep 0.1; done) & while :; do sleep 0.1; done";
    let mut started = place.start(&MAX_HOLD, script);
    let client = place.client();
    client.expect_free(started.group());
    let text = started.expect_status(124);
    assert!(text.contains("--max-hold"), "{text}");
}

/// The time is that of CMD, from its start to SIGTERM.
pub(crate) fn ends_on_sigterm(place: &Place) {
    let script = "trap 'cat /proc/uptime >> times; exit 5' TERM; cat /proc/uptime > times; \
                  while :; do sleep 0.1; done";
    let mut started = place.start(&MAX_HOLD, script);
    started.expect_status(124);
    let times = std::fs::read_to_string(place.file("times")).expect("written by CMD");
    let times = times
        .lines()
        .map(|line| line.split(' ').next()?.parse::<f64>().ok());
    let times: Vec<f64> = times.flatten().collect();
    assert_eq!(times.len(), 2, "SIGTERM comes before SIGKILL");
    // The script begins a little after the process.
    assert!(times[1] - times[0] > 2.5, "SIGTERM came early: {times:?}");
    place.client().expect_free(started.group());
}

/// The lock is released when the last process of the group has ended, not when CMD has.
pub(crate) fn leaves_a_process_behind(place: &Place) {
    let mut started = place.start(&[], "(sleep 2; echo > late) & exit 5");
    let client = place.client();
    client.expect_free(started.group());
    let has_ended = place.file("late").exists();
    assert!(has_ended, "released before the last process had ended");
    started.expect_status(5);
}

/// Nobody continues it, and it still ends in time.
pub(crate) fn stops_itself(place: &Place) {
    let max_hold = ["--max-hold", "10s"];
    let mut started = place.start(&max_hold, "trap '' TERM; kill -STOP $$; sleep 60");
    let client = place.client();
    started.until_stopped(true);
    assert!(client.is_held(), "a stopped child keeps its lock");
    assert!(!alive_in(started.group()).is_empty());
    client.expect_free(started.group());
    started.expect_status(124);
}

/// A stopped CMD is continued, so that it can act on a signal.
pub(crate) fn wakes_up_for_a_signal(place: &Place) {
    let script = "trap 'exit 5' TERM; kill -STOP $$; while :; do sleep 0.1; done";
    let mut started = place.start(&[], script);
    started.until_stopped(true);
    started.signal(Signal::TERM);
    started.expect_status(5);
}

/// As in a container: it reaps the processes that others leave behind, and ends on SIGTERM.
pub(crate) fn first_process_of_a_namespace(place: &Place) {
    let in_namespace = |script: &str| {
        let mut unshare = Command::new("unshare");
        if !getuid().is_root() {
            unshare.args(["--user", "--map-root-user"]);
        }
        unshare.args(["--pid", "--fork", "--mount-proc", "--"]);
        place.through(unshare, &place.run(&TIMES, script))
    };
    // The grandchild's parent ends first, so the first process inherits it.
    let count = "grep -l '^State:.Z' /proc/[0-9]*/status | wc -l > zombies";
    let script = format!("for i in 1 2 3; do sh -c 'sleep 0.2 &'; done; sleep 1; {count}; exit 6");
    in_namespace(&script).expect_status(6);
    let zombies = std::fs::read_to_string(place.file("zombies")).expect("written by the script");
    assert_eq!(zombies.trim(), "0", "unreaped processes");

    let mut started = in_namespace("echo > runs; sleep 60");
    block_until("CMD runs", || place.file("runs").exists());
    kill(started.child_with("leasehold"), Signal::TERM);
    started.expect_status(128 + Signal::TERM.as_raw());
}
