//! Exit statuses, and what CMD gets.

use std::os::unix::process::ExitStatusExt;

use leasehold_test_servers::block_until;
use rustix::process::Signal;

use crate::scenarios::operators::run as ask;
use crate::scenarios::support::{Place, Started, status_of};

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
    let client = place.client();
    block_until("it waits", || client.waiters() == 1);
    assert!(!waiting.has_ended());
    holder.signal(Signal::INT);
    holder.expect_signal(Signal::INT);
    waiting.expect_status(4);
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

/// A key that begins with a hyphen looks like an option.
pub(crate) fn odd_keys(place: &Place) {
    let key = format!("-{}", place.key);
    let option = format!("--key={key}");
    let script = "test \"$LEASEHOLD_KEY\" = \"$0\"";
    let arguments = [&option, "--", "sh", "-c", script, &key];
    assert_eq!(status(place, &arguments), 0);
    for (command, expected) in [
        (&["show"][..], 1),
        (&["leader"], 1),
        (&["ls"], 0),
        (&["once", "show"], 0),
    ] {
        let (status, text) = ask(place, &[command, &["--", &key]].concat());
        assert_eq!(status, Some(expected), "{command:?} {text}");
    }
}

/// As other commands, these end by SIGPIPE if nobody reads what they print. Nobody needs to read an error.
pub(crate) fn nobody_reads(place: &Place) {
    let key = place.key.as_str();
    let mut holder = place.start(&[], "sleep 60");
    let token = {
        let (_, text) = ask(place, &["show", "--json", key]);
        let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        shown["holders"][0]["token"].to_string()
    };
    let closed = || {
        let (_, writer) = std::io::pipe().expect("a pipe");
        std::process::Stdio::from(writer)
    };
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["ls"],
        &["ls", "--long"],
        &["ls", "--json"],
        &["show", key],
        &["show", "--json", key],
        &["leader", key],
        &["leader", "--watch", "--json", key],
        &["once", "show", "a job"],
        &["doctor"],
        &["revoke", key, "--token", &token],
    ] {
        let mut command = place.leasehold();
        command.args(arguments).stdout(closed());
        let mut started = Started::new(command);
        let (status, text) = started.end();
        assert_eq!(status.signal(), Some(13), "{arguments:?} {status}: {text}");
        assert_eq!(text, "", "{arguments:?}");
    }
    holder.expect_status(70);

    for (arguments, expected) in [
        (&["run", "--no-wait", key, "--", "no such program"][..], 127),
        (&["run", "--no-wait", "", "--", "true"], 64),
        (
            &[
                "run",
                "--url",
                "redis://127.0.0.1:1",
                "--no-wait",
                key,
                "--",
                "true",
            ],
            69,
        ),
        (&["revoke", key, "--token", "7"], 1),
        (&["show", ""], 64),
        (&["no such command"], 64),
    ] {
        let mut command = place.leasehold();
        let status = command.args(arguments).stderr(closed()).status();
        let status = status.expect("the command runs");
        assert_eq!(status.code(), Some(expected), "{arguments:?} {status}");
    }
}

/// CMD doesn't run, and the status doesn't say that it did.
pub(crate) fn few_files(place: &Place) {
    let mut ran = false;
    // The shell and the loader need some.
    for limit in 4..40 {
        let run = place.run(&["--no-wait"], "touch ran");
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &limit.to_string()]);
        let (status, text) = place.through(shell, &run).end();
        match status.code() {
            Some(0) => ran = true,
            Some(69 | 71) => assert!(text.contains("open files"), "{limit}: {text}"),
            _ => panic!("{limit}: {status}: {text}"),
        }
        assert_eq!(place.file("ran").exists(), ran, "{limit}: {text}");
        if ran {
            return;
        }
    }
    panic!("it never ran");
}

/// As in a `chroot`: the command can't start itself again.
pub(crate) fn without_proc(place: &Place) {
    let run = place.run(&["--no-wait"], "echo > ran");
    let mut unshare = std::process::Command::new("unshare");
    if !rustix::process::getuid().is_root() {
        unshare.args(["--user", "--map-root-user"]);
    }
    unshare.args([
        "--mount",
        "sh",
        "-c",
        "mount -t tmpfs none /proc && exec \"$@\"",
        "sh",
    ]);
    let text = place.through(unshare, &run).expect_status(71);
    assert!(text.contains("/proc"), "{text}");
    assert!(!place.file("ran").exists());
}

/// What `ps` shows.
pub(crate) fn name_of_the_keeper(place: &Place) {
    let started = place.start(&[], "sleep 60");
    let read = |file: &str| {
        let text = std::fs::read_to_string(format!("/proc/{}/{file}", started.keeper()));
        text.expect("it runs")
    };
    assert_eq!(read("comm"), "leasehold-keep\n");
    assert_eq!(read("cmdline"), "leasehold\0__keep\0");
}

pub(crate) fn usage(place: &Place) {
    let key = place.key.as_str();
    let long = "x".repeat(128);
    for arguments in [
        &["--lease", "3s", key, "--", "true"][..],
        &["--max-hold", "0s", key, "--", "true"],
        // Times that can't be added to another one.
        &["--wait", "18446744073709551615s", key, "--", "true"],
        &["--max-hold", "18446744073709551615s", key, "--", "true"],
        &["--kill-after", "18446744073709551615s", key, "--", "true"],
        &["--connect-timeout", "6s", key, "--", "true"],
        &["--key=other", key, "--", "true"],
        &["--", "true"],
        &["--lease", "soon", key, "--", "true"],
        &["--no-wait", "--wait", "1s", key, "--", "true"],
        &["-n", "0", key, "--", "true"],
        &["-n", "2", "--shared", key, "--", "true"],
        &["--not-within", "9s", key, "--", "true"],
        &["--not-within", "48h", key, "--", "true"],
        &["--not-within", "1h", "--shared", key, "--", "true"],
        &["--not-within", "1h", "--attempts", "0", key, "--", "true"],
        &["--attempts", "2", key, "--", "true"],
        &["--again", key, "--", "true"],
        &["--info", "me", "--no-wait", key, "--", "true"],
        &["--info", "me", "--shared", key, "--", "true"],
        &["--info", "me", "--not-within", "1h", key, "--", "true"],
        &["--info", &long, key, "--", "true"],
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
    // The longest that can be said.
    let longest = ["--wait", "36500days", "--max-hold", "36500days"];
    let missing = [
        &longest[..],
        &["--url", "mysql://localhost", key, "--", "true"],
    ]
    .concat();
    assert_eq!(status(place, &missing), 64);
}

/// What needs a clock says so, and CMD doesn't run.
pub(crate) fn refused_without_a_clock(place: &Place) {
    for options in [
        &["--not-within", "1h"][..],
        &["--shared"],
        &["--permits", "2"],
    ] {
        let output = place.run(options, "touch ran").output();
        let output = output.expect("the command runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{options:?}");
        assert!(text.contains("not support"), "{options:?}: {text}");
    }
    assert!(!place.file("ran").exists());
}
