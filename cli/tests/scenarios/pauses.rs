//! The command or its keeper is stopped or killed, for longer than the lease; the lock is taken away.

use std::time::Duration;

use leasehold::ForceMode;
use rustix::process::Signal;

use crate::scenarios::support::{
    LEASE, Place, SLACK, STUBBORN, Started, alive_in, kill, wait_until,
};

/// The keeper ends CMD, and releases the lock before the lease ends.
pub(crate) fn command_killed(place: &Place) {
    let mut started = place.start(&[], STUBBORN);
    let client = place.client();
    started.signal(Signal::KILL);
    started.expect_signal(Signal::KILL);
    client.expect_free(started.group(), LEASE + SLACK);
}

pub(crate) fn command_killed_while_waiting(place: &Place) {
    let client = place.client();
    let _guard = client.lock();
    let waiting = Started::new(place.run(&[], "echo > ran"));
    wait_until("it waits", SLACK, || client.waiters() == 1);
    let keeper = waiting.keeper();
    waiting.signal(Signal::KILL);
    wait_until("the keeper ends", SLACK, || alive_in(keeper).is_empty());
    assert_eq!(client.waiters(), 0, "it has left the queue");
}

/// The keeper renews the lock, and CMD goes on.
pub(crate) fn command_stopped(place: &Place) {
    let mut started = place.start(&[], "sleep 8; echo > done; exit 3");
    let client = place.client();
    started.signal(Signal::STOP);
    std::thread::sleep(LEASE + Duration::from_secs(1));
    assert!(client.is_held(), "renewed while the command is stopped");
    assert!(!alive_in(started.group()).is_empty(), "CMD goes on");
    started.signal(Signal::CONT);
    started.expect_status(3, SLACK);
    client.expect_free(started.group(), SLACK);
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
    client.expect_free(started.group(), LEASE + SLACK);
    started.expect_status(70, SLACK);
}

/// An operator gives the lock to somebody else. CMD doesn't get the time of `--kill-after`.
pub(crate) fn forced_release(place: &Place) {
    let mut started = place.start(&[], STUBBORN);
    let client = place.client();
    client.runtime.block_on(async {
        let inspection = client.locks.inspect(&place.key).await.expect("a reply");
        let tokens = inspection.held_tokens();
        let mode = ForceMode::Revoke;
        let forced = client.locks.force_release(&place.key, tokens, mode).await;
        forced.expect("a reply");
    });
    let text = started.expect_status(70, SLACK);
    assert!(text.contains("by force"), "{text}");
    assert_eq!(alive_in(started.group()), [0; 0]);
    client.expect_free(started.group(), LEASE + SLACK);
}
