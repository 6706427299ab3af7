//! Rule 5: several holds of one owner.

use leasehold_api::{EndReason, Mode, Refused, ReleaseReply};

use crate::support::{Ask, Key, assert_is, ms, secs};

#[test]
fn holds_are_counted_and_released_in_any_order() {
    let (mut key, ops) = Key::mutex().nested::<3>();
    for (n, op) in (1..).zip(ops) {
        assert_eq!(key.enter(Ask::write(op)).holds, n);
    }
    for (left, op) in [(2, ops[1]), (1, ops[0])] {
        let ReleaseReply::Released { holds_left, holder } = key.release(op) else {
            panic!("not released");
        };
        assert_eq!(holds_left, left);
        assert_eq!(holder.expect("held").mode, Mode::Exclusive, "{left} left");
        assert_eq!(key.not_held(op), EndReason::Unknown);
    }
    let other = key.next('b');
    key.held(Ask::write(other));
    assert_is!(key.release(ops[2]) => ReleaseReply::Released { holds_left: 0, holder: None });
    assert_eq!(key.holding(), Vec::<String>::new());
}

#[test]
fn owner_is_read_with_its_session() {
    let mut key = Key::mutex();
    let (a, b) = (key.next_of('a', 1), key.next_of('b', 1));
    key.enter(Ask::write(a));
    key.held(Ask::write(b));
}

#[test]
fn shorter_inner_lease_shortens_nothing() {
    let (mut key, [outer, inner]) = Key::mutex().nested();
    key.enter(Ask::write(outer).lease(secs(20)));
    let nested = key.enter(Ask::write(inner).lease(secs(1)));
    assert_eq!(nested.remaining, secs(20));
    key.pass(secs(2));
    key.release(inner);
    assert_eq!(key.inspect().holders[0].remaining, secs(18));
}

#[test]
fn all_holds_of_an_owner_expire_together() {
    let (mut key, [outer, inner]) = Key::mutex().nested();
    key.enter(Ask::write(outer).lease(secs(1)));
    key.enter(Ask::write(inner).lease(secs(2)));
    key.pass(secs(2));
    assert_eq!(key.lost(outer), EndReason::Expired);
    assert_eq!(key.lost(inner), EndReason::Unknown);
    assert_eq!(key.holding(), Vec::<String>::new());
}

#[test]
fn hold_limit_binds_its_own_attempt() {
    let (mut key, ops) = Key::mutex().nested::<3>();
    key.enter(Ask::write(ops[0]));
    key.enter(Ask::write(ops[1]).limits(2, 10, 10));
    let before = key.inspect();
    key.pass(ms(10));
    key.refuses(Ask::write(ops[2]).limits(2, 10, 10), Refused::HoldLimit);
    let after = key.inspect();
    let (before, after) = (&before.holders[0], &after.holders[0]);
    assert_eq!(after.holds, 2);
    assert_eq!(after.remaining + ms(10), before.remaining);
}

#[test]
fn reader_re_enters_past_a_waiting_writer() {
    let mut key = Key::rw();
    let (one, two) = (key.next_of('a', 1), key.next_of('a', 1));
    let (writer, stranger) = (key.next('w'), key.next('s'));
    let token = key.enter(Ask::read(one)).token;
    key.queue(Ask::write(writer));
    let again = key.enter(Ask::read(two));
    assert_eq!((again.holds, again.token), (2, token));
    key.queue(Ask::read(stranger));
}

#[test]
fn writer_that_reads_stays_exclusive() {
    let (mut key, [write, read]) = Key::rw().nested();
    let other = key.next('b');
    key.enter(Ask::write(write));
    key.enter(Ask::read(read));
    key.held(Ask::read(other));
    assert_eq!(key.inspect().holders[0].mode, Mode::Exclusive);
}

#[test]
fn write_by_a_reader_would_deadlock() {
    let (mut key, [read, write, more]) = Key::rw().nested();
    key.enter(Ask::read(read));
    key.refuses(Ask::write(write), Refused::WouldDeadlock);
    assert_eq!(key.waiting(), Vec::<String>::new(), "never queued");
    key.enter(Ask::read(more));
}

#[test]
fn owner_weighs_as_much_as_its_strongest_hold() {
    let (mut key, [one, two]) = Key::rw().nested();
    let other = key.next('b');
    key.enter(Ask::read(one));
    key.enter(Ask::read(two));
    key.enter(Ask::read(other));
    key.release(one);
    key.release(two);
    assert_eq!(key.holding(), ["b1"]);
}

#[test]
fn semaphores_ignore_the_owner() {
    let (mut key, ops) = Key::semaphore(3).nested::<3>();
    assert_eq!(key.enter(Ask::permits(ops[0], 2)).holds, 1);
    assert_eq!(key.enter(Ask::permits(ops[1], 1)).holds, 1);
    key.held(Ask::permits(ops[2], 1));
    key.release(ops[0]);
    assert_eq!(key.holding(), ["a2"]);
}

#[test]
fn two_queued_attempts_of_an_owner_become_two_holds() {
    let (mut key, [writer]) = Key::rw().attempts(['w']);
    key.enter(Ask::write(writer));
    let (one, two) = (key.next_of('a', 1), key.next_of('a', 1));
    key.queue(Ask::read(one));
    key.queue(Ask::read(two));
    key.release(writer);
    let holders = key.inspect().holders;
    assert_eq!((holders.len(), holders[0].holds), (1, 2));
    key.release(one);
    assert_eq!(key.inspect().holders[0].holds, 1);
    key.release(two);
    assert_eq!(key.holding(), Vec::<String>::new());
}
