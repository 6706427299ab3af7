//! The limits of an acquire.

use leasehold_api::Refused;

use crate::support::{Ask, Key, secs};

#[test]
fn full_queue_drops_expired_waiters_first() {
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    key.enter(Ask::write(a));
    let head = key.next('h');
    key.queue(Ask::write(head));
    let dead = key.next('d');
    key.queue(Ask::write(dead));
    let late = key.next('l');
    key.refuses(Ask::write(late).limits(32, 2, 10), Refused::QueueFull);
    key.pass(secs(4));
    key.poll(head);
    key.pass(secs(1));
    // The dead waiter is behind a live head, where settling does not find it.
    let late = key.next('l');
    key.queue(Ask::write(late).limits(32, 2, 10));
    assert_eq!(key.waiting(), ["h1", "l2"]);
}

#[test]
fn limits_bind_their_own_attempt() {
    let (mut key, [a, b, c]) = Key::rw().attempts(['a', 'b', 'c']);
    key.enter(Ask::read(a).limits(1, 0, 1));
    key.refuses(Ask::read(b).limits(1, 0, 1), Refused::HoldersFull);
    key.enter(Ask::read(c));
}

#[test]
fn expired_holder_does_not_count() {
    let (mut key, [a, b]) = Key::semaphore(5).attempts(['a', 'b']);
    key.enter(Ask::permits(a, 1).lease(secs(1)));
    key.pass(secs(1));
    key.enter(Ask::permits(b, 1).limits(1, 0, 1));
}
