//! Limits that an acquire brings.

use leasehold_api::Refused;

use crate::support::{Ask, Key, secs};

#[test]
fn a_full_queue_refuses_but_sweeps_first() {
    let mut key = Key::mutex();
    let a = key.next('a');
    key.enter(Ask::write(a));
    let head = key.next('h');
    key.queue(Ask::write(head));
    let dead = key.next('d');
    key.queue(Ask::write(dead));
    let late = key.next('l');
    assert_eq!(
        key.refused(Ask::write(late).limits(32, 2, 10)),
        Refused::QueueFull
    );
    key.pass(secs(4));
    key.poll(head);
    key.pass(secs(1));
    // The dead place is behind a live head, where settling does not come by.
    let late = key.next('l');
    key.queue(Ask::write(late).limits(32, 2, 10));
    assert_eq!(key.waiting(), ["h1", "l2"]);
}

#[test]
fn the_limits_bind_the_asker_alone() {
    let mut key = Key::rw();
    let (a, b, c) = (key.next('a'), key.next('b'), key.next('c'));
    key.enter(Ask::read(a).limits(1, 0, 1));
    assert_eq!(
        key.refused(Ask::read(b).limits(1, 0, 1)),
        Refused::HoldersFull
    );
    key.enter(Ask::read(c));
}

#[test]
fn a_dead_holder_does_not_fill_the_key() {
    let mut key = Key::semaphore(5);
    let (a, b) = (key.next('a'), key.next('b'));
    key.enter(Ask::permits(a, 1).lease(secs(1)));
    key.pass(secs(1));
    key.enter(Ask::permits(b, 1).limits(1, 0, 1));
}

#[test]
fn no_waiters_allowed_means_no_waiter() {
    let mut key = Key::mutex();
    let (a, b) = (key.next('a'), key.next('b'));
    key.enter(Ask::write(a));
    assert_eq!(
        key.refused(Ask::write(b).limits(1, 0, 1)),
        Refused::QueueFull
    );
    assert_eq!(key.waiting(), Vec::<String>::new());
}
