//! Rule 10: an offer costs no more than the place that it was.

use leasehold_api::bounds::SETTLE_BUDGET;
use leasehold_api::{EndReason, PollReply, ReleaseReply, RenewReply};

use crate::support::{Ask, Key, id, secs};

#[test]
fn a_offer_ends_where_its_waiter_would_have() {
    let mut key = Key::mutex();
    let (a, b, c) = (key.next('a'), key.next('b'), key.next('c'));
    key.enter(Ask::write(a));
    key.queue(Ask::write(b));
    key.pass(secs(2));
    key.release(a);
    key.pass(secs(3));
    key.enter(Ask::write(c));
    assert_eq!(key.renew(b, secs(30)), RenewReply::Lost(EndReason::Unknown));
}

#[test]
fn a_poll_reports_a_offer_and_extends_it_by_nothing() {
    let mut key = Key::mutex();
    let (a, b) = (key.next('a'), key.next('b'));
    key.enter(Ask::write(a));
    key.queue(Ask::write(b));
    key.release(a);
    key.pass(secs(2));
    let PollReply::Acquired(acquired) = key.poll(b) else {
        panic!("it was granted");
    };
    assert_eq!(acquired.remaining, secs(3));
    assert_eq!(key.look().holders[0].remaining, secs(3));
}

#[test]
fn only_a_renewal_confirms_it() {
    let mut key = Key::mutex();
    let (a, b) = (key.next('a'), key.next('b'));
    key.enter(Ask::write(a));
    key.queue(Ask::write(b));
    key.release(a);
    key.pass(secs(4));
    let RenewReply::Renewed { remaining, .. } = key.renew(b, secs(30)) else {
        panic!("it was granted");
    };
    assert_eq!(remaining, secs(30));
}

#[test]
fn a_offer_ends_at_the_waiters_own_deadline_if_that_is_sooner() {
    let mut key = Key::mutex();
    let (a, b) = (key.next('a'), key.next('b'));
    key.enter(Ask::write(a));
    let until = key.at().saturating_add(secs(1));
    key.queue(Ask::write(b).until(until));
    key.release(a);
    assert_eq!(key.look().holders[0].remaining, secs(1));
}

#[test]
fn a_hundred_dead_waiters_cost_one_waiter_lease_together() {
    let mut key = Key::mutex();
    let a = key.next('a');
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
fn ending_a_offer_passes_it_on() {
    let mut key = Key::mutex();
    let (a, b, c) = (key.next('a'), key.next('b'), key.next('c'));
    key.enter(Ask::write(a));
    key.queue(Ask::write(b));
    key.queue(Ask::write(c));
    key.release(a);
    assert!(matches!(
        key.release(b),
        ReleaseReply::Released { holds_left: 0, .. }
    ));
    assert_eq!(key.granted(), [id(c)]);
}

#[test]
fn a_large_group_is_granted_in_portions_that_any_command_continues() {
    let mut key = Key::rw();
    let writer = key.next('w');
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
