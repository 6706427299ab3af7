//! Rules 1 to 3: the clock, remaining times, and `poll_after`.

use std::time::Duration;

use leasehold_api::machine::{Payload, Reach};
use leasehold_api::{AcquireReply, EndReason, PollReply};

use crate::support::{Ask, Key, LEASE, WAITER_LEASE, assert_is, ms, secs, want};

#[test]
fn holder_expires_exactly_at_its_end() {
    let (mut key, [a, b]) = Key::mutex().attempts(['a', 'b']);
    key.enter(Ask::write(a).lease(secs(1)));
    key.now += 999_999;
    key.held(Ask::write(b));
    key.now += 1;
    let c = key.next('c');
    key.enter(Ask::write(c));
    assert_eq!(key.lost(a), EndReason::Unknown);
}

#[test]
fn renewal_exactly_at_the_end_is_lost() {
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    key.enter(Ask::write(a).lease(secs(1)));
    let mut late = key.clone();
    key.now += 999_999;
    key.renewed(a, LEASE);
    late.now += 1_000_000;
    assert_eq!(late.lost(a), EndReason::Expired);
}

#[test]
fn waiter_expires_exactly_at_its_end() {
    let (mut key, _, b) = Key::awaited();
    let mut late = key.clone();
    key.now += 4_999_999;
    assert_is!(key.poll(b) => PollReply::Queued(_));
    late.now += 5_000_000;
    assert_eq!(late.poll(b), PollReply::Gone(EndReason::Expired));
}

#[test]
fn redelivered_acquire_reports_the_time_left_now() {
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    let request = Ask::write(a).request(&key);
    key.deliver(request.clone());
    key.pass(secs(2));
    let again = want!(key.deliver(request), AcquireReply::Acquired(again) => again);
    assert_eq!(again.remaining, secs(28));
    assert_eq!(again.holds, 1);
}

#[test]
fn redelivered_acquire_does_not_refresh_its_waiter() {
    let (mut key, [a, b]) = Key::mutex().attempts(['a', 'b']);
    key.enter(Ask::write(a));
    let request = Ask::write(b).request(&key);
    key.deliver(request.clone());
    key.pass(secs(2));
    let again = want!(key.deliver(request), AcquireReply::Queued(again) => again);
    assert_eq!(again.waiter_remaining, secs(3));
    assert_eq!(key.waiting(), ["b1"]);
}

#[test]
fn first_waiters_poll_at_the_earliest_change_and_others_with_their_session() {
    let (mut key, [holder]) = Key::mutex().attempts(['h']);
    key.enter(Ask::write(holder).lease(ms(300)));
    for _ in 0..4 {
        let waiter = key.next('h');
        assert_eq!(key.queue(Ask::write(waiter)).poll_after, ms(300));
    }
    for first_byte in 0..128 {
        let step = u64::from(first_byte % 64);
        let wanted = Duration::from_micros(750_000 + step * 250_000 / 64);
        for _ in 0..2 {
            let waiter = key.next(char::from(first_byte));
            assert_eq!(key.queue(Ask::write(waiter)).poll_after, wanted);
        }
    }
}

#[test]
fn waiter_learns_how_many_are_ahead_after_others_have_left() {
    let (mut key, ops) = Key::mutex().attempts(['h', 'a', 'b', 'c', 'd']);
    key.enter(Ask::write(ops[0]));
    for operation in &ops[1..] {
        key.queue(Ask::write(*operation));
    }
    key.release(ops[1]);
    let ahead = ops[2..].iter().map(|operation| match key.poll(*operation) {
        PollReply::Queued(queued) => queued.ahead,
        other => panic!("{other:?}, wanted Queued"),
    });
    assert_eq!(ahead.collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn poll_after_is_at_most_the_poll_interval() {
    let (mut key, [a, b]) = Key::mutex().attempts(['a', 'b']);
    key.enter(Ask::write(a).lease(secs(600)));
    assert_eq!(key.queue(Ask::write(b)).poll_after, secs(1));
    let c = key.next('c');
    assert_eq!(key.held(Ask::write(c)).retry_after, secs(600));
}

#[test]
fn contention_names_the_holder_that_expires_first() {
    let (mut key, [a, b, c]) = Key::rw().attempts(['a', 'b', 'c']);
    key.enter(Ask::read(a).lease(secs(9)));
    key.enter(Ask::read(b).lease(secs(4)));
    let held = key.held(Ask::write(c));
    assert_eq!(held.retry_after, secs(4));
    assert_eq!(held.holder.expect("few holders").as_str(), "b1");
}

#[test]
fn waiter_expires_at_its_wait_deadline() {
    let (mut key, [a, b, c]) = Key::mutex().attempts(['a', 'b', 'c']);
    key.enter(Ask::write(a));
    let until = key.at().saturating_add(secs(6));
    let queued = key.queue(Ask::write(b).until(until));
    assert_eq!(queued.waiter_remaining, WAITER_LEASE);
    key.pass(secs(3));
    let queued = want!(key.poll(b), PollReply::Queued(queued) => queued);
    assert_eq!(queued.waiter_remaining, secs(3));
    key.pass(secs(3));
    assert_eq!(key.poll(b), PollReply::Gone(EndReason::Expired));
    let past = key.at();
    // An attempt past its deadline is not queued.
    assert_is!(key.ask(Ask::write(c).until(past)) => AcquireReply::Contended(_));
}

#[test]
fn granted_notification_has_the_waiters_remaining_time() {
    let (mut key, [a, b]) = Key::mutex().attempts(['a', 'b']);
    key.set_reach('b', Reach::Unknown);
    key.enter(Ask::write(a));
    key.queue(Ask::write(b));
    key.pass(secs(2));
    key.release(a);
    let remaining = want!(key.messages[0].payload, Payload::Granted { remaining, .. } => remaining);
    assert_eq!(remaining, secs(3));
}
