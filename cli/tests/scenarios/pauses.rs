//! The command or its keeper is stopped or killed, for longer than the lease; the lock is taken away.

use std::time::Duration;

use leasehold::ForceMode;
use leasehold_test_servers::SteppedClock;
use leasehold_test_servers::block_until;
use rustix::process::Signal;

use crate::scenarios::support::{LEASE, Place, STUBBORN, Started, alive_in, kill};

/// A lease that doesn't end during a test.
const LONG: [&str; 4] = ["--lease", "30m", "--kill-after", "1s"];

/// The keeper ends CMD, and releases the lock before the lease ends.
pub(crate) fn command_killed(place: &Place) {
    let mut started = place.start(&[], STUBBORN);
    let client = place.client();
    started.signal(Signal::KILL);
    started.expect_signal(Signal::KILL);
    client.expect_free(started.group());
}

pub(crate) fn command_killed_while_waiting(place: &Place) {
    let client = place.client();
    let _guard = client.lock();
    let waiting = Started::new(place.run(&[], "echo > ran"));
    block_until("it waits", || client.waiters() == 1);
    let keeper = waiting.keeper();
    waiting.signal(Signal::KILL);
    block_until("the keeper ends", || alive_in(keeper).is_empty());
    assert_eq!(client.waiters(), 0, "it has left the queue");
}

/// The keeper renews the lock, and CMD goes on.
pub(crate) fn command_stopped(place: &Place) {
    let mut started = place.start(&[], "while [ ! -e end ]; do sleep 0.1; done; exit 3");
    let client = place.client();
    started.signal(Signal::STOP);
    #[expect(clippy::disallowed_methods, reason = "the lease passes")]
    std::thread::sleep(LEASE + Duration::from_secs(1));
    assert!(client.is_held(), "renewed while the command is stopped");
    assert!(!alive_in(started.group()).is_empty(), "CMD goes on");
    started.signal(Signal::CONT);
    std::fs::write(place.file("end"), "").expect("written");
    started.expect_status(3);
    client.expect_free(started.group());
}

/// Nobody renews the lock, so the command ends CMD.
pub(crate) fn keeper_killed(place: &Place) {
    keeper_gets(place, Signal::KILL);
}

pub(crate) fn keeper_stopped(place: &Place) {
    keeper_gets(place, Signal::STOP);
}

fn keeper_gets(place: &Place, signal: Signal) {
    let mut started = place.start(&[], STUBBORN);
    let client = place.client();
    kill(started.keeper(), signal);
    client.expect_free(started.group());
    started.expect_status(70);
}

/// An operator revokes the lock. CMD doesn't get the time of `--kill-after`, and others needn't wait for the end of the
/// lease.
pub(crate) fn revoked(place: &Place) {
    let mut started = place.start_with(&LONG, STUBBORN);
    let client = place.client();
    client.force_release(ForceMode::Revoke);
    let text = started.expect_status(70);
    assert!(text.contains("by force"), "{text}");
    assert_eq!(alive_in(started.group()), [0; 0]);
    client.expect_free(started.group());
}

/// The same while the command is stopped. Nobody reaps CMD, so its group is not empty.
pub(crate) fn revoked_while_the_command_is_stopped(place: &Place) {
    let mut started = place.start_with(&LONG, STUBBORN);
    let client = place.client();
    started.signal(Signal::STOP);
    client.force_release(ForceMode::Revoke);
    client.expect_free(started.group());
    started.signal(Signal::CONT);
    let text = started.expect_status(70);
    assert!(text.contains("by force"), "{text}");
}

/// The server would keep the lock for an hour longer than its lease.
pub(crate) fn clock_set_back(place: &Place, clock: &SteppedClock) {
    let mut started = place.start(&[], STUBBORN);
    let client = place.client();
    clock.set(-3_600_000_000);
    let text = started.expect_status(70);
    assert!(text.contains("clock was stepped"), "{text}");
    client.expect_free(started.group());
}

/// The command stands for election again, behind nobody: the keeper has released what the server would have kept.
pub(crate) fn clock_set_back_under_a_leader(place: &Place, clock: &SteppedClock) {
    let mut started = place.start(&["--info", "me", "--again"], STUBBORN);
    let first = started.group();
    clock.set(-3_600_000_000);
    place.until_cmd_runs(&mut started);
    assert_eq!(alive_in(first), [0; 0], "the CMD of the earlier term");
}

/// `--max-hold` ends CMD also if the command is stopped.
pub(crate) fn command_stopped_beyond_max_hold(place: &Place) {
    let mut started = place.start(&["--max-hold", "2s"], STUBBORN);
    started.signal(Signal::STOP);
    place.client().expect_free(started.group());
    started.signal(Signal::CONT);
    let text = started.expect_status(124);
    assert!(text.contains("--max-hold"), "{text}");
}
