//! Rule 9: unreachable waiters.

use leasehold_api::machine::Reach;
use leasehold_api::{AcquireReply, Operation, PollReply};

use crate::support::{Ask, Key, assert_is, id, secs};

/// A free mutex with a waiter that was passed over.
fn passed_over() -> (Key, Operation) {
    let (mut key, [a, unreachable]) = Key::mutex().attempts(['a', 'd']);
    key.set_reach('d', Reach::Nobody);
    key.enter(Ask::write(a));
    key.queue(Ask::write(unreachable));
    key.release(a);
    (key, unreachable)
}

#[test]
fn unreachable_waiter_is_passed_over_and_keeps_its_ticket() {
    let (mut key, [a, unreachable, b]) = Key::mutex().attempts(['a', 'd', 'b']);
    key.enter(Ask::write(a));
    key.queue(Ask::write(unreachable));
    key.queue(Ask::write(b));
    key.set_reach('d', Reach::Nobody);
    key.release(a);
    assert_eq!(key.granted(), [id(b)]);
    assert!(key.inspect().waiters[0].unreachable);
    key.set_reach('d', Reach::Listening);
    let late = key.next('l');
    key.queue(Ask::write(late));
    assert_is!(key.poll(unreachable) => PollReply::Queued(q) if q.ahead == 0);
    let marked = key.inspect().waiters[0].unreachable;
    assert!(!marked, "its poll clears the mark");
    key.release(b);
    assert_eq!(key.granted(), [id(unreachable)], "it keeps its ticket");
}

#[test]
fn waiter_that_does_not_listen_is_never_unreachable() {
    let (mut key, [a, polling]) = Key::mutex().attempts(['a', 'q']);
    key.set_reach('q', Reach::Nobody);
    key.enter(Ask::write(a));
    key.queue(Ask::write(polling).not_listening());
    key.release(a);
    assert_eq!(key.holding(), ["q1"]);
    // A waiter that doesn't listen is not notified.
    assert_eq!(key.messages, []);
}

#[test]
fn latest_poll_decides_whether_it_listens() {
    let (mut key, [a, q]) = Key::mutex().attempts(['a', 'q']);
    key.set_reach('q', Reach::Nobody);
    key.enter(Ask::write(a));
    key.queue(Ask::write(q));
    key.poll_as(q, false);
    key.release(a);
    assert_eq!(key.holding(), ["q1"]);
}

#[test]
fn waiter_is_marked_unreachable_at_most_twice() {
    let (mut key, [mut holder, unreachable]) = Key::mutex().attempts(['a', 'd']);
    key.set_reach('d', Reach::Nobody);
    key.enter(Ask::write(holder));
    key.queue(Ask::write(unreachable));
    for mark in 1..=2 {
        key.release(holder);
        assert!(key.inspect().waiters[0].unreachable, "mark {mark}");
        holder = key.next('a');
        key.enter(Ask::write(holder));
        key.poll(unreachable);
        assert!(!key.inspect().waiters[0].unreachable);
    }
    key.release(holder);
    assert_eq!(key.holding(), ["d1"], "the third time, it gets an offer");
}

#[test]
fn key_with_only_unreachable_waiters_counts_as_free() {
    let (mut key, _) = passed_over();
    let b = key.next('b');
    key.enter(Ask::write(b).no_wait());
    assert_eq!(key.waiting(), ["d1"]);
}

#[test]
fn reachable_waiter_behind_an_unreachable_one_is_granted() {
    let (mut key, [a, unreachable, big, b]) = Key::semaphore(2).attempts(['a', 'd', 'g', 'b']);
    key.set_reach('d', Reach::Nobody);
    key.enter(Ask::permits(a, 2));
    key.queue(Ask::permits(unreachable, 1));
    key.queue(Ask::permits(big, 2));
    key.release(a);
    assert_eq!(key.holding(), ["g1"]);
    key.held(Ask::permits(b, 1));
}

#[test]
fn poll_of_an_unreachable_waiter_takes_a_free_key() {
    let (mut key, unreachable) = passed_over();
    assert_is!(key.poll(unreachable) => PollReply::Acquired(_));
}

#[test]
fn redelivered_acquire_does_not_clear_the_mark() {
    let (mut key, [a, unreachable]) = Key::mutex().attempts(['a', 'd']);
    key.set_reach('d', Reach::Nobody);
    key.enter(Ask::write(a));
    let request = Ask::write(unreachable).request(&key);
    key.deliver(request.clone());
    key.release(a);
    assert_is!(key.deliver(request) => AcquireReply::Queued(_));
    assert!(key.inspect().waiters[0].unreachable);
}

#[test]
fn unreachable_waiter_expires_like_any_other() {
    let (mut key, _) = passed_over();
    key.pass(secs(5));
    assert!(key.state.is_idle(key.at()));
}
