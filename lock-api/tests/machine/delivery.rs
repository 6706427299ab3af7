//! Rules 12 and 13: duplicate, late and reordered commands.

use leasehold_api::bounds::DELIVERY_WINDOW;
use leasehold_api::{AcquireReply, EndReason, ForceMode, PollReply, Refused, ReleaseReply};

use crate::support::{Ask, Key, assert_is, ms, secs};

#[test]
fn acquire_after_its_release_is_stale() {
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    let request = Ask::write(a).request(&key);
    assert_eq!(key.not_held(a), EndReason::Unknown);
    assert_eq!(key.deliver(request), AcquireReply::Stale);
    assert_eq!(key.holding(), Vec::<String>::new());
}

#[test]
fn contended_acquire_is_not_executed_again() {
    let (mut key, [a, b]) = Key::mutex().attempts(['a', 'b']);
    key.enter(Ask::write(a));
    let request = Ask::write(b).no_wait().request(&key);
    assert_is!(key.deliver(request.clone()) => AcquireReply::Contended(_));
    key.release(a);
    assert_eq!(key.deliver(request), AcquireReply::Stale);
}

#[test]
fn older_attempt_is_stale_and_changes_nothing() {
    let (mut key, [older, newer]) = Key::rw().attempts(['a', 'a']);
    key.enter(Ask::read(newer));
    key.is_stale(Ask::read(older));
    assert_eq!(key.holding(), ["a2"]);
}

/// So a client must not release an operation that it has not drawn: see decision 0003.
#[test]
fn release_of_a_later_sequence_makes_the_ones_before_it_stale() {
    let mut key = Key::mutex();
    let earlier = [(); 3].map(|()| key.next('a'));
    let later = key.next('a');
    assert_eq!(key.not_held(later), EndReason::Unknown);
    for attempt in earlier {
        key.is_stale(Ask::write(attempt));
    }
    let next = key.next('a');
    key.enter(Ask::write(next));
}

#[test]
fn retry_of_a_live_attempt_has_one_effect() {
    let (mut key, [a, b]) = Key::mutex().attempts(['a', 'b']);
    let (hold, wait) = (Ask::write(a).request(&key), Ask::write(b).request(&key));
    for _ in 0..3 {
        let acquired = key.deliver(hold.clone());
        assert_is!(acquired => AcquireReply::Acquired(it) if it.holds == 1);
        assert_is!(key.deliver(wait.clone()) => AcquireReply::Queued(_));
    }
    assert_eq!((key.holding().len(), key.waiting().len()), (1, 1));
    assert_is!(key.release(a) => ReleaseReply::Released { holds_left: 0, .. });
    assert_eq!(key.not_held(a), EndReason::Released);
}

#[test]
fn delivery_window_includes_its_bounds() {
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    let request = Ask::write(a).deliver_in(secs(1)).request(&key);
    let beyond = Ask::write(a).deliver_in(DELIVERY_WINDOW + ms(1));
    let beyond = beyond.request(&key);
    let farthest = Ask::write(a).deliver_in(DELIVERY_WINDOW).request(&key);
    let too_late = AcquireReply::TooLate;
    assert_eq!(key.clone().deliver(beyond), too_late);
    assert_is!(key.clone().deliver(farthest) => AcquireReply::Acquired(_));
    key.pass(secs(1));
    assert_is!(key.clone().deliver(request.clone()) => AcquireReply::Acquired(_));
    key.now += 1;
    assert_eq!(key.deliver(request), too_late);
    assert_eq!(key.inspect(), leasehold_api::InspectReply::default());
}

#[test]
fn watermark_outlives_every_copy() {
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    let request = Ask::write(a).deliver_in(DELIVERY_WINDOW).request(&key);
    key.deliver(request.clone());
    key.release(a);
    for _ in 0..=100 {
        let again = key.deliver(request.clone());
        assert_eq!(again, AcquireReply::Stale);
        key.pass(ms(100));
    }
    let again = key.deliver(request);
    assert_eq!(again, AcquireReply::TooLate);
}

#[test]
fn watermark_lasts_twice_the_delivery_window() {
    let (mut key, [old, new, other]) = Key::mutex().attempts(['a', 'a', 'b']);
    key.enter(Ask::write(new));
    key.release(new);
    key.enter(Ask::write(other).lease(secs(3_000)));
    key.pass(DELIVERY_WINDOW * 2 - ms(1));
    key.clone().is_stale(Ask::write(old));
    key.pass(ms(1));
    key.held(Ask::write(old));
}

#[test]
fn retry_that_only_reports_renews_the_watermark() {
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    key.enter(Ask::write(a).lease(secs(20)));
    key.pass(secs(15));
    let retry = Ask::write(a).deliver_in(DELIVERY_WINDOW).request(&key);
    assert_is!(key.deliver(retry.clone()) => AcquireReply::Acquired(_));
    key.pass(secs(9));
    assert_eq!(key.deliver(retry), AcquireReply::Stale);
}

#[test]
fn copy_of_a_stale_acquire_stays_stale() {
    let (mut key, [old, new]) = Key::mutex().attempts(['a', 'a']);
    key.release(new);
    key.pass(secs(15));
    let request = Ask::write(old).deliver_in(DELIVERY_WINDOW).request(&key);
    for _ in 0..2 {
        let again = key.deliver(request.clone());
        assert_eq!(again, AcquireReply::Stale);
        key.pass(secs(9));
    }
}

#[test]
fn poll_and_renewal_of_an_unknown_operation_create_nothing() {
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    assert_eq!(key.poll(a), PollReply::Gone(EndReason::Unknown));
    assert_eq!(key.lost(a), EndReason::Unknown);
    assert_eq!(key.inspect(), leasehold_api::InspectReply::default());
    key.enter(Ask::write(a));
}

#[test]
fn end_reason_is_reported_while_known() {
    let (mut key, a, b) = Key::awaited();
    assert_eq!(key.release(b), ReleaseReply::Left);
    assert_eq!(key.poll(b), PollReply::Gone(EndReason::Released));
    key.release(a);
    assert_eq!(key.lost(a), EndReason::Released);
    key.pass(DELIVERY_WINDOW * 2);
    assert_eq!(key.not_held(a), EndReason::Unknown);
}

#[test]
fn refusal_changes_no_holder() {
    let (mut key, [a, again, up]) = Key::rw().nested();
    key.enter(Ask::read(a).lease(secs(1)));
    let before = key.inspect();
    key.refuses(Ask::read(again).limits(1, 10, 10), Refused::HoldLimit);
    key.refuses(Ask::write(up), Refused::WouldDeadlock);
    assert_eq!(key.inspect(), before);
}

#[test]
fn watermark_keeps_the_reason_of_its_own_sequence() {
    let (mut key, [first, second]) = Key::semaphore(2).attempts(['a', 'a']);
    key.enter(Ask::permits(first, 1));
    let token = key.enter(Ask::permits(second, 1)).token;
    assert_eq!(key.forced(token, ForceMode::Now), 1);
    key.release(first);
    assert_eq!(key.lost(second), EndReason::Forced);
}

#[test]
fn expired_watermark_takes_no_space() {
    let (mut key, [a, b]) = Key::semaphore(2).attempts(['a', 'b']);
    key.enter(Ask::permits(a, 1));
    key.pass(DELIVERY_WINDOW * 2);
    key.enter(Ask::permits(b, 1));
    assert_eq!(key.state.to_parts().watermarks.len(), 1);
}
