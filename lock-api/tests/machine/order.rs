//! Rules 7 and 8: the order of grants.

use leasehold_api::{EndReason, PollReply, ReleaseReply};

use crate::support::{Ask, Key, assert_is, id, secs};

#[test]
fn fair_mutex_grants_in_order_and_notifies_only_the_next() {
    let (mut key, ops) = Key::mutex().attempts(['a', 'b', 'c']);
    key.enter(Ask::write(ops[0]));
    assert_eq!(key.queue(Ask::write(ops[1])).ahead, 0);
    assert_eq!(key.queue(Ask::write(ops[2])).ahead, 1);
    key.release(ops[0]);
    assert_eq!(key.granted(), [id(ops[1])]);
    key.release(ops[1]);
    assert_eq!(key.granted(), [id(ops[2])]);
}

#[test]
fn newcomer_overtakes_no_waiter() {
    let (mut key, [a, big, small]) = Key::semaphore(3).attempts(['a', 'b', 's']);
    key.enter(Ask::permits(a, 1));
    key.queue(Ask::permits(big, 3));
    key.held(Ask::permits(small, 1));
    let late = key.next('l');
    key.queue(Ask::permits(late, 1));
    // A large weight at the head blocks smaller ones.
    assert_eq!(key.waiting(), ["b1", "l1"]);
}

#[test]
fn adjacent_readers_are_granted_together() {
    let (mut key, ops) = Key::rw().attempts(['w', 'a', 'b', 'x', 'c']);
    key.enter(Ask::write(ops[0]));
    key.queue(Ask::read(ops[1]));
    key.queue(Ask::read(ops[2]));
    key.queue(Ask::write(ops[3]));
    key.queue(Ask::read(ops[4]));
    key.release(ops[0]);
    assert_eq!(key.granted(), [id(ops[1]), id(ops[2])]);
    assert_eq!(key.waiting(), ["x1", "c1"]);
}

#[test]
fn release_of_the_head_waiter_grants_to_the_next() {
    let (mut key, [r, w, s]) = Key::rw().attempts(['r', 'w', 's']);
    key.enter(Ask::read(r));
    key.queue(Ask::write(w));
    key.queue(Ask::read(s));
    assert_eq!(key.release(w), ReleaseReply::Left);
    assert_eq!(key.granted(), [id(s)]);
}

#[test]
fn any_command_settles_the_key() {
    let (mut key, [a, b, c]) = Key::mutex().attempts(['a', 'b', 'c']);
    key.enter(Ask::write(a).lease(secs(1)));
    key.queue(Ask::write(b));
    key.pass(secs(1));
    assert_eq!(key.not_held(c), EndReason::Unknown);
    assert_eq!(key.granted(), [id(b)]);
}

#[test]
fn granted_poll_sends_no_notification() {
    let (mut key, [a, b]) = Key::mutex().attempts(['a', 'b']);
    key.enter(Ask::write(a).lease(secs(1)));
    key.queue(Ask::write(b));
    key.pass(secs(1));
    assert_is!(key.poll(b) => PollReply::Acquired(_));
    assert_eq!(key.messages, []);
}
