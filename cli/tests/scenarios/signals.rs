//! Signals to the command.

use leasehold_test_servers::block_until;
use rustix::process::Signal;

use crate::scenarios::support::{Place, Started, TIMES, alive_in, kill};

const SIGNALS: [(Signal, &str); 4] = [
    (Signal::HUP, "HUP"),
    (Signal::INT, "INT"),
    (Signal::QUIT, "QUIT"),
    (Signal::TERM, "TERM"),
];

/// The command leaves the queue and ends by the signal.
pub(crate) fn while_waiting(place: &Place) {
    let client = place.client();
    let guard = client.lock();
    let all = SIGNALS.map(|(signal, _)| (signal, Started::new(place.run(&[], "echo > ran"))));
    let waiters = |count: u32| {
        block_until("waiters", || client.waiters() == count);
    };
    waiters(4);
    for (signal, mut started) in all {
        let keeper = started.keeper();
        started.signal(signal);
        started.expect_signal(signal);
        assert_eq!(alive_in(keeper), [0; 0], "the keeper has ended");
    }
    waiters(0);
    client.runtime.block_on(guard.release()).expect("released");
    assert!(!place.file("ran").exists());
}

/// CMD gets the signal, and decides. If it ends by the signal, the command does too.
pub(crate) fn while_running(place: &Place) {
    for (signal, name) in SIGNALS {
        let script =
            format!("trap 'sleep 0.3; exit 7' {name}; echo > runs; while :; do sleep 0.1; done");
        for (script, handled) in [(script.as_str(), true), ("exec sleep 60", false)] {
            let mut started = place.start(&[], script);
            if handled {
                block_until("the trap is set", || place.file("runs").exists());
            } else {
                let path = format!("/proc/{}/comm", started.group());
                block_until("the shell becomes `sleep`", || {
                    std::fs::read(&path).is_ok_and(|name| name == b"sleep\n")
                });
            }
            started.signal(signal);
            if handled {
                started.expect_status(7);
            } else {
                started.expect_signal(signal);
            }
            place.client().expect_free(started.group());
            for file in ["group", "runs"] {
                let _ = std::fs::remove_file(place.file(file));
            }
        }
    }
}

/// As under `nohup`: CMD ignores what the command was told to ignore.
pub(crate) fn ignored(place: &Place) {
    let run = place.run(&TIMES, "echo $$ > group; sleep 2; exit 8");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]);
    let mut started = place.through(shell, &run);
    block_until("CMD runs", || place.group_in_file().is_some());
    started.signal(Signal::HUP);
    for id in alive_in(place.group_in_file().expect("waited for it")) {
        kill(id, Signal::HUP);
    }
    started.expect_status(8);
}
