//! Rule 10: an offer expires when its waiter would have, or with the lease if that is sooner.

use std::time::Duration;

use leasehold_api::bounds::SETTLE_BUDGET;
use leasehold_api::{EndReason, LockSpec, PollReply, RenewReply};

use crate::support::{Ask, Key, assert_is, ms, secs, want};

/// A mutex with the longest waiter lease. Its poll interval is 1 s.
fn patient() -> Key {
    let spec = LockSpec::mutex().with_waiter_lease(secs(60));
    Key::of(spec.expect("valid"))
}

fn first_remaining(key: &Key) -> Duration {
    key.inspect().holders[0].remaining
}

#[test]
fn offer_expires_with_its_waiter() {
    let (mut key, [a, b, c]) = Key::mutex().attempts(['a', 'b', 'c']);
    key.enter(Ask::write(a));
    key.queue(Ask::write(b));
    key.pass(secs(2));
    key.release(a);
    key.pass(secs(3));
    key.enter(Ask::write(c));
    assert_eq!(key.lost(b), EndReason::Unknown);
}

#[test]
fn renewal_confirms_an_offer() {
    let (mut key, a, b) = Key::awaited();
    key.release(a);
    key.pass(secs(4));
    let (_, remaining) = key.renewed(b, secs(30));
    assert_eq!(remaining, secs(30));
}

#[test]
fn offer_lasts_for_the_lease_and_at_least_two_poll_intervals() {
    let cases = [
        (secs(10), secs(10)),
        (ms(2_001), ms(2_001)),
        (secs(1), secs(2)),
        (ms(1), secs(2)),
        (secs(3_600), secs(59)), // the waiter arrived a second before
    ];
    for (lease, expected) in cases {
        let (mut key, [a, b]) = patient().attempts(['a', 'b']);
        key.enter(Ask::write(a));
        key.queue(Ask::write(b).lease(lease));
        key.pass(secs(1));
        key.release(a);
        assert_eq!(first_remaining(&key), expected, "a lease of {lease:?}");
    }
}

#[test]
fn offer_lasts_for_two_poll_intervals_of_a_short_waiter_lease() {
    let spec = LockSpec::mutex().with_waiter_lease(Duration::from_micros(10_001));
    let (mut key, [a, b]) = Key::of(spec.expect("valid")).attempts(['a', 'b']);
    key.enter(Ask::write(a));
    key.queue(Ask::write(b).lease(ms(1)));
    key.release(a);
    assert_eq!(first_remaining(&key), Duration::from_micros(2 * 3_333));
}

#[test]
fn own_poll_and_duplicates_keep_the_end_of_the_offer() {
    let (mut key, [a, b]) = patient().attempts(['a', 'b']);
    key.enter(Ask::write(a).lease(secs(5)));
    let ask = Ask::write(b).lease(secs(3)).deliver_in(secs(10));
    key.queue(ask);
    let again = ask.request(&key);
    key.pass(secs(5));
    let acquired = want!(key.poll(b), PollReply::Acquired(acquired) => acquired);
    assert_eq!(acquired.remaining, secs(3));
    key.pass(secs(1));
    key.deliver(again);
    key.poll(b);
    assert_eq!(first_remaining(&key), secs(2));
}

/// The counterexample to one poll interval: the waiter would learn of its offer when it is over, each
/// time, and would never get its turn (L2).
#[test]
fn waiter_that_misses_its_notification_confirms_after_its_next_poll() {
    let (mut key, [a, b]) = patient().attempts(['a', 'b']);
    key.enter(Ask::write(a));
    let queued = key.queue(Ask::write(b).lease(ms(100)));
    key.release(a);
    // The client polls up to 20 ms later, and each message takes 400 ms.
    key.pass(queued.poll_after + ms(20 + 400));
    assert_is!(key.poll(b) => PollReply::Acquired(_));
    key.pass(ms(50 + 400));
    assert_is!(key.renew(b, ms(100)) => RenewReply::Renewed { .. });
}

/// The counterexample to a confirmation that shortens: if its reply is lost, the guard counts on the
/// offer, and the next holder gets in meanwhile (S2).
#[test]
fn confirmation_never_shortens_an_offer() {
    let (mut key, [a, b]) = patient().attempts(['a', 'b']);
    key.enter(Ask::write(a));
    key.queue(Ask::write(b).lease(secs(1)));
    key.release(a);
    key.pass(ms(50));
    let (_, remaining) = key.renewed(b, secs(1));
    assert_eq!(remaining, ms(1_950));
}

#[test]
fn waiters_that_die_after_their_grants_cost_two_poll_intervals_each() {
    let (mut key, [a]) = patient().attempts(['a']);
    key.enter(Ask::write(a));
    let mut queue: Vec<_> = (0..9).map(|_| key.next('w')).collect();
    for waiter in &queue {
        key.queue(Ask::write(*waiter).lease(secs(1)));
    }
    key.release(a);
    let live = queue.pop().expect("the last one");
    let mut waited = Duration::ZERO;
    for dead in queue {
        key.renewed(dead, secs(1));
        key.pass(ms(1_999));
        assert_is!(key.poll(live) => PollReply::Queued(_));
        key.pass(ms(1));
        key.poll(live);
        waited += secs(2);
    }
    assert_is!(key.poll(live) => PollReply::Acquired(_));
    assert_eq!(waited, secs(16));
}

#[test]
fn dead_waiters_cost_one_waiter_lease_together() {
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    key.enter(Ask::write(a));
    for _ in 0..100 {
        let dead = key.next('d');
        key.queue(Ask::write(dead));
    }
    let live = key.next('l');
    key.queue(Ask::write(live));
    key.release(a);
    let mut waited = secs(0);
    while !matches!(key.poll(live), PollReply::Acquired(_)) {
        key.pass(secs(1));
        waited += secs(1);
        assert!(waited <= secs(6), "one waiter lease and one poll");
    }
}

#[test]
fn any_command_continues_a_large_grant() {
    let (mut key, [writer]) = Key::rw().attempts(['w']);
    key.enter(Ask::write(writer));
    let budget = SETTLE_BUDGET as usize;
    let readers: Vec<_> = (0..budget + 10).map(|_| key.next('r')).collect();
    for reader in &readers {
        key.queue(Ask::read(*reader));
    }
    key.release(writer);
    assert_eq!(key.granted().len(), budget);
    assert_eq!(key.waiting().len(), 10);
    let newcomer = key.next('n');
    key.renew(readers[0], secs(30));
    assert_eq!(key.granted().len(), 10);
    key.enter(Ask::read(newcomer));
}
