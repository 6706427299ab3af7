//! Rules 1 to 3: whose clock, what a reply's remaining time means, when to come back.

use leasehold_api::machine::Reach;
use leasehold_api::{AcquireReply, EndReason, PollReply, RenewReply};

use crate::support::{Ask, Key, LEASE, WAITER_LEASE, ms, secs};

#[test]
fn a_holder_is_over_at_the_very_instant_of_its_end() {
    let mut key = Key::mutex();
    let (a, b) = (key.next('a'), key.next('b'));
    key.enter(Ask::write(a).lease(secs(1)));
    key.now += 999_999;
    key.held(Ask::write(b));
    key.now += 1;
    let c = key.next('c');
    key.enter(Ask::write(c));
    assert_eq!(key.renew(a, LEASE), RenewReply::Lost(EndReason::Unknown));
}

#[test]
fn its_own_renewal_is_late_at_the_very_instant_of_the_end() {
    let mut key = Key::mutex();
    let a = key.next('a');
    key.enter(Ask::write(a).lease(secs(1)));
    let mut late = key.clone();
    key.now += 999_999;
    assert!(matches!(key.renew(a, LEASE), RenewReply::Renewed { .. }));
    late.now += 1_000_000;
    assert_eq!(late.renew(a, LEASE), RenewReply::Lost(EndReason::Expired));
}

#[test]
fn a_waiter_is_over_at_the_very_instant_of_its_end() {
    let mut key = Key::mutex();
    let (a, b) = (key.next('a'), key.next('b'));
    key.enter(Ask::write(a));
    key.queue(Ask::write(b));
    let mut late = key.clone();
    key.now += 4_999_999;
    assert!(matches!(key.poll(b), PollReply::Queued(_)));
    late.now += 5_000_000;
    assert_eq!(late.poll(b), PollReply::Gone(EndReason::Expired));
}

#[test]
fn a_redelivered_acquire_is_answered_with_what_is_left_now() {
    let mut key = Key::mutex();
    let a = key.next('a');
    let request = Ask::write(a).request(&key);
    key.deliver(request.clone());
    key.pass(secs(2));
    let AcquireReply::Acquired(again) = key.deliver(request) else {
        panic!("it holds");
    };
    assert_eq!(again.remaining, secs(28));
    assert_eq!(again.holds, 1);
}

#[test]
fn a_redelivered_acquire_reports_a_waiter_and_extends_nothing() {
    let mut key = Key::mutex();
    let (a, b) = (key.next('a'), key.next('b'));
    key.enter(Ask::write(a));
    let request = Ask::write(b).request(&key);
    key.deliver(request.clone());
    key.pass(secs(2));
    let AcquireReply::Queued(again) = key.deliver(request) else {
        panic!("it waits");
    };
    assert_eq!(again.waiter_remaining, secs(3));
    assert_eq!(key.waiting(), ["b1"]);
}

#[test]
fn the_first_few_come_back_at_the_earliest_change_the_others_staggered() {
    let mut key = Key::mutex();
    let holder = key.next('h');
    key.enter(Ask::write(holder).lease(ms(300)));
    let mut checks = Vec::new();
    for _ in 0..70 {
        let waiter = key.next('w');
        checks.push(key.queue(Ask::write(waiter)).poll_after);
    }
    assert!(checks[..4].iter().all(|check| *check == ms(300)));
    let poll = ms(1_000);
    assert!(checks[4..].iter().all(|c| *c >= poll / 2 && *c <= poll));
    let different: std::collections::BTreeSet<_> = checks[4..68].iter().collect();
    assert_eq!(different.len(), 64, "64 steps of the stagger");
}

#[test]
fn nobody_is_told_to_come_back_later_than_the_poll_interval() {
    let mut key = Key::mutex();
    let (a, b) = (key.next('a'), key.next('b'));
    key.enter(Ask::write(a).lease(secs(600)));
    assert_eq!(key.queue(Ask::write(b)).poll_after, secs(1));
    let c = key.next('c');
    assert_eq!(key.held(Ask::write(c)).retry_after, secs(600));
}

#[test]
fn held_names_the_holder_that_ends_first() {
    let mut key = Key::rw();
    let (a, b, c) = (key.next('a'), key.next('b'), key.next('c'));
    key.enter(Ask::read(a).lease(secs(9)));
    key.enter(Ask::read(b).lease(secs(4)));
    let held = key.held(Ask::write(c));
    assert_eq!(held.retry_after, secs(4));
    assert_eq!(held.holder.expect("few holders").as_str(), "b1");
}

#[test]
fn a_waiter_never_outlasts_the_waiters_own_deadline() {
    let mut key = Key::mutex();
    let (a, b, c) = (key.next('a'), key.next('b'), key.next('c'));
    key.enter(Ask::write(a));
    let until = key.at().saturating_add(secs(6));
    assert_eq!(
        key.queue(Ask::write(b).until(until)).waiter_remaining,
        WAITER_LEASE
    );
    key.pass(secs(3));
    let PollReply::Queued(queued) = key.poll(b) else {
        panic!("it waits");
    };
    assert_eq!(queued.waiter_remaining, secs(3));
    key.pass(secs(3));
    assert_eq!(key.poll(b), PollReply::Gone(EndReason::Expired));
    let over = key.at();
    assert!(
        matches!(
            key.ask(Ask::write(c).until(over)),
            AcquireReply::Contended(_)
        ),
        "who has given up already gets no waiter"
    );
}

#[test]
fn a_offer_out_of_the_queue_tells_what_is_left_of_the_waiter() {
    let mut key = Key::mutex();
    let (a, b) = (key.next('a'), key.next('b'));
    key.set_reach('b', Reach::Unknown);
    key.enter(Ask::write(a));
    key.queue(Ask::write(b));
    key.pass(secs(2));
    key.release(a);
    let leasehold_api::machine::Payload::Granted { remaining, .. } = key.told[0].payload else {
        panic!("{:?}", key.told);
    };
    assert_eq!(remaining, secs(3));
}
