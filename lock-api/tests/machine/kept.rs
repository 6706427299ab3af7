//! Rule 14: how long a state is kept.

use leasehold_api::bounds::TOKEN_RETENTION;
use leasehold_api::{EndReason, InspectReply, PollReply};

use crate::support::{Ask, Key, LEASE, START, WAITER_LEASE, ms, secs};

#[test]
fn token_outlives_the_last_holder() {
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    let token = key.enter(Ask::write(a).lease(secs(1))).token;
    key.release(a);
    key.pass(TOKEN_RETENTION);
    assert_eq!(key.inspect().token, Some(token));
    key.now = START - 1;
    let b = key.next('b');
    // The token is remembered although the clock went back.
    assert!(key.enter(Ask::write(b)).token > token);
}

#[test]
fn renewals_and_polls_extend_the_stored_end() {
    let (mut key, [a, b]) = Key::mutex().attempts(['a', 'b']);
    key.enter(Ask::write(a).lease(secs(1)));
    key.renew(a, secs(3_000));
    assert!(key.state.stored_end() >= key.at().saturating_add(secs(3_000) + TOKEN_RETENTION));
    for _ in 0..1_000 {
        key.renew(a, secs(3_000));
        key.ask(Ask::write(b));
        key.poll(b);
        key.pass(secs(4));
        assert!(key.state.stored_end() >= key.at().saturating_add(WAITER_LEASE));
    }
    assert_eq!(key.waiting(), ["b1"]);
}

#[test]
fn state_past_its_stored_end_is_empty() {
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    key.enter(Ask::write(a).lease(secs(1)));
    key.now = key.state.stored_end().as_micros() - 1;
    assert!(key.inspect().token.is_some());
    key.now += 1;
    assert_eq!(key.inspect(), InspectReply::default());
    assert_eq!(key.lost(a), EndReason::Unknown);
    assert_eq!(key.poll(a), PollReply::Gone(EndReason::Unknown));
}

#[test]
fn inspection_changes_nothing_and_omits_expired_entries() {
    let (mut key, [a, b, w]) = Key::rw().attempts(['a', 'b', 'w']);
    key.enter(Ask::read(a).lease(secs(1)));
    key.enter(Ask::read(b).lease(secs(2)));
    key.queue(Ask::write(w));
    key.pass(secs(2));
    let before = key.state.clone();
    let view = key.inspect();
    key.step(&leasehold_api::machine::Command::Inspect);
    // An inspection doesn't even drop expired entries.
    assert_eq!(key.state, before);
    assert_eq!((view.holder_count, view.waiter_count), (0, 1));
    key.pass(secs(3));
    assert_eq!(key.inspect().spec, None, "idle");
}

#[test]
fn inspection_lists_holders_by_time_left_and_waiters_in_order() {
    let (mut key, ops) = Key::rw().attempts(['a', 'b', 'w', 'x']);
    key.enter(Ask::read(ops[0]).lease(secs(9)));
    key.enter(Ask::read(ops[1]).lease(secs(4)));
    key.queue(Ask::write(ops[2]));
    key.queue(Ask::read(ops[3]));
    let view = key.inspect();
    let labels: Vec<_> = view.holders.iter().map(|h| h.label.as_str()).collect();
    assert_eq!(labels, ["b1", "a1"]);
    assert_eq!(key.waiting(), ["w1", "x1"]);
}

#[test]
fn stored_end_moves_an_eighth_of_the_retention_further_than_needed() {
    let mut key = Key::mutex();
    let retention = key.settings.retention;
    let a = key.next('a');
    key.enter(Ask::write(a));
    let first = key.at().saturating_add(LEASE + retention + retention / 8);
    assert_eq!(key.state.stored_end(), first);
    key.pass(retention / 8);
    let b = key.next('b');
    key.enter(Ask::write(b));
    // The next holder is just covered.
    assert_eq!(key.state.stored_end(), first);
}

#[test]
fn key_is_idle_without_live_holders_and_waiters() {
    let mut key = Key::mutex();
    assert!(key.state.is_idle(key.at()));
    let (a, b) = (key.next('a'), key.next('b'));
    key.enter(Ask::write(a));
    assert!(!key.state.is_idle(key.at()));
    key.queue(Ask::write(b));
    key.release(a);
    key.release(b);
    assert!(key.state.is_idle(key.at()));
    let (c, d) = (key.next('c'), key.next('d'));
    key.enter(Ask::write(c).lease(ms(100)));
    key.queue(Ask::write(d));
    key.pass(ms(100));
    assert!(!key.state.is_idle(key.at()), "a waiter is live");
    key.pass(WAITER_LEASE);
    assert!(key.state.is_idle(key.at()), "all have expired");
}
