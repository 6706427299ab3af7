//! Exit statuses, and what CMD gets.

use std::time::Duration;

use rustix::process::Signal;

use crate::scenarios::support::{Place, SLACK, Started, status_of};

fn status(place: &Place, arguments: &[&str]) -> i32 {
    let mut command = place.leasehold();
    command.arg("run").args(arguments);
    status_of(command)
}

pub(crate) fn status_of_cmd(place: &Place) {
    let key = place.key.as_str();
    assert_eq!(status(place, &[key, "--", "true"]), 0);
    assert_eq!(status(place, &[key, "--", "sh", "-c", "exit 3"]), 3);
    assert_eq!(status(place, &[key, "--", "/no/such/program"]), 127);
    assert_eq!(status(place, &[key, "--", "/etc"]), 126);
    // Each of these had released the lock.
    assert_eq!(status(place, &["--no-wait", key, "--", "true"]), 0);
}

pub(crate) fn signal_of_cmd(place: &Place) {
    for signal in [Signal::TERM, Signal::KILL, Signal::SEGV] {
        let script = format!("kill -{} $$", signal.as_raw());
        let mut started = Started::new(place.run(&[], &script));
        started.expect_signal(signal);
    }
}

pub(crate) fn environment_of_cmd(place: &Place) {
    let script = "read line; echo \"$line $LEASEHOLD_KEY $LEASEHOLD_TOKEN $LEASEHOLD_URL$LEASEHOLD_ATTEMPT.\"";
    let tokens = [0, 1].map(|_| {
        let mut command = place.run(&[], script);
        // A job that runs this command has set it.
        command.env("LEASEHOLD_ATTEMPT", "7");
        let (input, mut output) = std::io::pipe().expect("a pipe");
        std::io::Write::write_all(&mut output, b"input\n").expect("room in the pipe");
        let output = command.stdin(input).output().expect("the command runs");
        let text = String::from_utf8(output.stdout).expect("text");
        let mut words = text.split_whitespace();
        assert_eq!(words.next(), Some("input"), "{text}");
        assert_eq!(words.next(), Some(place.key.as_str()), "{text}");
        let token = words.next().and_then(|it| it.parse::<u64>().ok());
        assert_eq!(words.next(), Some("."), "CMD doesn't get the URL: {text}");
        token.expect("a token")
    });
    assert!(tokens[0] < tokens[1], "{tokens:?}");
}

pub(crate) fn contended(place: &Place) {
    let mut holder = place.start(&[], "sleep 60");
    assert_eq!(place.status(&["--no-wait"], "true"), 75);
    for (conflict, expected) in [("0", 0), ("9", 9)] {
        let options = ["-E", conflict, "--wait", "200ms"];
        assert_eq!(place.status(&options, "true"), expected);
    }
    let mut waiting = Started::new(place.run(&["--wait", "60s"], "exit 4"));
    std::thread::sleep(Duration::from_millis(300));
    assert!(!waiting.has_ended());
    holder.signal(Signal::INT);
    holder.expect_signal(Signal::INT);
    waiting.expect_status(4, SLACK);
}

pub(crate) fn kinds_of_locks(place: &Place) {
    let run = |place: &Place, options: &[&str], expected: i32| {
        let status = place.status(&[options, &["--no-wait"]].concat(), "true");
        assert_eq!(status, expected, "{options:?} {}", place.key);
    };
    let mut reader = place.start(&["--shared"], "sleep 60");
    run(place, &["--shared"], 0);
    run(place, &["--exclusive"], 75);
    // It is in use as another kind of lock.
    run(place, &[], 77);
    reader.signal(Signal::TERM);
    reader.expect_signal(Signal::TERM);
    run(place, &["--exclusive"], 0);

    let permits = Place::new(&place.url, &format!("{} permits", place.key));
    let mut one = permits.start(&["-n", "2"], "sleep 60");
    run(&permits, &["-n", "2"], 0);
    std::fs::remove_file(permits.file("group")).expect("written by the first");
    let mut two = permits.start(&["-n", "2"], "sleep 60");
    run(&permits, &["-n", "2"], 75);
    for started in [&mut one, &mut two] {
        started.signal(Signal::HUP);
        started.expect_signal(Signal::HUP);
    }
}

pub(crate) fn usage(place: &Place) {
    let key = place.key.as_str();
    for arguments in [
        &["--lease", "3s", key, "--", "true"][..],
        &["--max-hold", "5s", key, "--", "true"],
        &["--lease", "soon", key, "--", "true"],
        &["--no-wait", "--wait", "1s", key, "--", "true"],
        &["-n", "0", key, "--", "true"],
        &["-n", "2", "--shared", key, "--", "true"],
        &["--not-within", "9s", key, "--", "true"],
        &["--not-within", "48h", key, "--", "true"],
        &["--not-within", "1h", "--shared", key, "--", "true"],
        &["--not-within", "1h", "--attempts", "0", key, "--", "true"],
        &["--attempts", "2", key, "--", "true"],
        &["--url", "redis://user:secret@localhost", key, "--", "true"],
        &["--url", "mysql://localhost", key, "--", "true"],
        &["--url-file", "/no/such/file", key, "--", "true"],
        &["", "--", "true"],
        &[key],
        &[],
    ] {
        assert_eq!(status(place, arguments), 64, "{arguments:?}");
    }
    assert_eq!(status(place, &["--help"]), 0);
}
