//! The command is stopped at each of its steps from the grant to the start of CMD, and the lock is lost meanwhile.
//!
//! Linux only, with `strace`: it stops the command as it enters a system call.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;

use leasehold::ForceMode;
use leasehold_test_servers::RedisServer;
use leasehold_test_servers::block_until;
use rustix::process::Signal;

use crate::scenarios::support::{HELLO, Place, Started, alive_in, child_of, kill};

/// The lease never ends by itself, so nothing depends on how fast the test is.
const TIMES: [&str; 4] = ["--lease", "30m", "--kill-after", "1s"];
const AT_ONCE: usize = 4;
/// How many system calls there are at least between the grant and the start of CMD.
const STEPS: usize = 15;

/// What strace shows when the command hears that it has the lock, and when it lets CMD start.
const HELD: &str = "{\\\"Held\\\":";
const PERMITTED: &str = "sendmsg(";

#[test]
fn stopped_at_each_step() {
    let server = RedisServer::start();
    let steps = Mutex::new(steps(&server.url()).into_iter());
    let between = Mutex::new(0);
    let next = || steps.lock().expect("no panic").next();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((call, number)) = next() {
                    let place = Place::new(&server.url(), &format!("{call} {number}"));
                    *between.lock().expect("no panic") += u32::from(lost_at(&place, &call, number));
                }
            });
        }
    });
    let between = between.into_inner().expect("no panic");
    println!("stopped {between} times between the grant and the start");
    assert!(between >= STEPS as u32, "{between}");
}

/// `leasehold run` under strace, which writes to the file `trace`.
fn traced(place: &Place, options: &[&str]) -> Started {
    let program = std::env::var_os("LEASEHOLD_STRACE").unwrap_or_else(|| "strace".into());
    let mut strace = Command::new(program);
    strace.args(["-o", "trace", "-s", "20"]).args(options);
    let script = format!("{HELLO} while :; do sleep 0.1; done");
    place.through(strace, &place.run(&TIMES, &script))
}

fn trace(place: &Place) -> String {
    std::fs::read_to_string(place.file("trace")).unwrap_or_default()
}

/// The system calls from the grant on, and some after the start of CMD: the name, and how many calls of this name
/// there were until then. How often the command waits before the grant differs from run to run.
fn steps(url: &str) -> Vec<(String, usize)> {
    let place = Place::new(url, "steps");
    let traced = traced(&place, &[]);
    block_until("CMD runs", || place.group_in_file().is_some());
    let text = trace(&place);
    drop(traced);
    let mut counts = BTreeMap::new();
    let mut steps = Vec::new();
    let mut held = false;
    let mut after = 0;
    for line in text.lines() {
        let Some((name, _)) = line.split_once('(') else {
            continue;
        };
        let count = counts.entry(name.to_owned()).or_insert(0);
        *count += 1;
        held |= line.contains(HELD);
        after += usize::from(after > 0 || line.starts_with(PERMITTED));
        if held && after < 4 {
            steps.push((name.to_owned(), *count));
        }
    }
    assert!(steps.len() > STEPS && after >= 1, "{text}");
    steps
}

/// Stops the command at this call, takes the lock away, and lets the command go on when somebody else has the lock and
/// the keeper has ended. Returns whether it was stopped between the grant and the start of CMD.
fn lost_at(place: &Place, call: &str, number: usize) -> bool {
    let inject = format!("inject={call}:signal=SIGSTOP:when={number}");
    let mut started = traced(place, &["-e", &inject]);
    let has_stopped = || trace(place).contains("--- stopped by SIGSTOP ---");
    block_until("the command is stopped, or CMD runs", || {
        has_stopped() || place.group_in_file().is_some()
    });
    let client = place.client();
    block_until("the lock is taken", || client.is_held());
    let seen = trace(place);
    let (was_held, permitted) = (seen.contains(HELD), seen.contains(PERMITTED));
    if permitted {
        block_until("CMD runs", || place.group_in_file().is_some());
    }
    let command = started.child_with("leasehold");
    let keeper = child_of(command, "__keep");
    client.force_release(ForceMode::Now);
    let guard = client.lock();
    block_until("the keeper ends", || alive_in(keeper).is_empty());
    let alive = || {
        place
            .group_in_file()
            .is_some_and(|it| !alive_in(it).is_empty())
    };
    assert!(!alive(), "CMD is alive after the loss: {call} {number}");
    kill(command, Signal::CONT);
    let text = started.expect_status(70);
    assert_eq!(
        place.group_in_file().is_some(),
        permitted,
        "CMD started after the loss: {call} {number}: {text}"
    );
    client.runtime.block_on(guard.release()).expect("released");
    was_held && !permitted
}
