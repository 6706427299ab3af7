//! Rule 10: an offer expires when its waiter would have.

use leasehold_api::bounds::SETTLE_BUDGET;
use leasehold_api::{EndReason, PollReply, ReleaseReply, RenewReply};

use crate::support::{Ask, Key, id, secs};

#[test]
fn offer_expires_with_its_waiter() {
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
fn poll_reports_an_offer_and_does_not_extend_it() {
    let mut key = Key::mutex();
    let (a, b) = (key.next('a'), key.next('b'));
    key.enter(Ask::write(a));
    key.queue(Ask::write(b));
    key.release(a);
    key.pass(secs(2));
    let PollReply::Acquired(acquired) = key.poll(b) else {
        panic!("not granted");
    };
    assert_eq!(acquired.remaining, secs(3));
    assert_eq!(key.inspect().holders[0].remaining, secs(3));
}

#[test]
fn renewal_confirms_an_offer() {
    let mut key = Key::mutex();
    let (a, b) = (key.next('a'), key.next('b'));
    key.enter(Ask::write(a));
    key.queue(Ask::write(b));
    key.release(a);
    key.pass(secs(4));
    let RenewReply::Renewed { remaining, .. } = key.renew(b, secs(30)) else {
        panic!("not granted");
    };
    assert_eq!(remaining, secs(30));
}

#[test]
fn offer_expires_at_the_wait_deadline() {
    let mut key = Key::mutex();
    let (a, b) = (key.next('a'), key.next('b'));
    key.enter(Ask::write(a));
    let until = key.at().saturating_add(secs(1));
    key.queue(Ask::write(b).until(until));
    key.release(a);
    assert_eq!(key.inspect().holders[0].remaining, secs(1));
}

#[test]
fn dead_waiters_cost_one_waiter_lease_together() {
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
fn released_offer_goes_to_the_next_waiter() {
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
fn any_command_continues_a_large_grant() {
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
