//! Rule 9: waiters that nobody can reach.

use leasehold_api::machine::Reach;
use leasehold_api::{AcquireReply, PollReply};

use crate::support::{Ask, Key, id, secs};

#[test]
fn who_does_not_hear_is_passed_over_but_keeps_its_ticket() {
    let mut key = Key::mutex();
    let (a, deaf, b) = (key.next('a'), key.next('d'), key.next('b'));
    key.enter(Ask::write(a));
    key.queue(Ask::write(deaf));
    key.queue(Ask::write(b));
    key.set_reach('d', Reach::Nobody);
    key.release(a);
    assert_eq!(key.granted(), [id(b)]);
    assert!(key.look().waiters[0].unreachable);
    key.set_reach('d', Reach::Listening);
    let late = key.next('l');
    key.queue(Ask::write(late));
    assert!(matches!(key.poll(deaf), PollReply::Queued(q) if q.ahead == 0));
    assert!(
        !key.look().waiters[0].unreachable,
        "its poll clears the watermark"
    );
    key.release(b);
    assert_eq!(key.granted(), [id(deaf)], "before those who came after it");
}

#[test]
fn who_does_not_say_that_it_listens_is_never_unreachable() {
    let mut key = Key::mutex();
    let (a, quiet) = (key.next('a'), key.next('q'));
    key.set_reach('q', Reach::Nobody);
    key.enter(Ask::write(a));
    key.queue(Ask::write(quiet).deaf());
    key.release(a);
    assert_eq!(key.holding(), ["q1"]);
    assert_eq!(key.told, [], "and there is nobody to tell");
}

#[test]
fn what_the_latest_poll_says_counts() {
    let mut key = Key::mutex();
    let (a, q) = (key.next('a'), key.next('q'));
    key.set_reach('q', Reach::Nobody);
    key.enter(Ask::write(a));
    key.queue(Ask::write(q));
    key.poll_as(q, false);
    key.release(a);
    assert_eq!(key.holding(), ["q1"]);
}

#[test]
fn unknown_reachability_counts_as_reachable() {
    let mut key = Key::mutex();
    let (a, b) = (key.next('a'), key.next('b'));
    key.set_reach('b', Reach::Unknown);
    key.enter(Ask::write(a));
    key.queue(Ask::write(b));
    key.release(a);
    assert_eq!(key.granted(), [id(b)]);
}

#[test]
fn a_waiter_is_marked_twice_and_then_granted_like_any_other() {
    let mut key = Key::mutex();
    let (mut holder, deaf) = (key.next('a'), key.next('d'));
    key.set_reach('d', Reach::Nobody);
    key.enter(Ask::write(holder));
    key.queue(Ask::write(deaf));
    for watermark in 1..=2 {
        key.release(holder);
        assert!(key.look().waiters[0].unreachable, "watermark {watermark}");
        holder = key.next('a');
        key.enter(Ask::write(holder));
        key.poll(deaf);
        assert!(!key.look().waiters[0].unreachable);
    }
    key.release(holder);
    assert_eq!(key.holding(), ["d1"], "a offer, to be told or polled for");
}

#[test]
fn if_all_are_unreachable_the_key_is_free_for_whoever_asks() {
    let mut key = Key::mutex();
    let (a, deaf, b) = (key.next('a'), key.next('d'), key.next('b'));
    key.set_reach('d', Reach::Nobody);
    key.enter(Ask::write(a));
    key.queue(Ask::write(deaf));
    key.release(a);
    key.enter(Ask::write(b).no_wait());
    assert_eq!(key.waiting(), ["d1"]);
}

#[test]
fn if_one_is_not_unreachable_the_key_is_not_free() {
    let mut key = Key::semaphore(2);
    let (a, deaf, big, b) = (key.next('a'), key.next('d'), key.next('g'), key.next('b'));
    key.set_reach('d', Reach::Nobody);
    key.enter(Ask::permits(a, 2));
    key.queue(Ask::permits(deaf, 1));
    key.queue(Ask::permits(big, 2));
    key.release(a);
    assert_eq!(key.holding(), ["g1"]);
    key.held(Ask::permits(b, 1));
}

#[test]
fn the_poll_of_who_is_unreachable_takes_a_free_key() {
    let mut key = Key::mutex();
    let (a, deaf) = (key.next('a'), key.next('d'));
    key.set_reach('d', Reach::Nobody);
    key.enter(Ask::write(a));
    key.queue(Ask::write(deaf));
    key.release(a);
    assert!(matches!(key.poll(deaf), PollReply::Acquired(_)));
}

#[test]
fn a_redelivered_acquire_clears_no_watermark() {
    let mut key = Key::mutex();
    let (a, deaf) = (key.next('a'), key.next('d'));
    key.set_reach('d', Reach::Nobody);
    key.enter(Ask::write(a));
    let request = Ask::write(deaf).request(&key);
    key.deliver(request.clone());
    key.release(a);
    assert!(matches!(key.deliver(request), AcquireReply::Queued(_)));
    assert!(key.look().waiters[0].unreachable);
}

#[test]
fn an_unreachable_waiter_ends_like_any_other() {
    let mut key = Key::mutex();
    let (a, deaf) = (key.next('a'), key.next('d'));
    key.set_reach('d', Reach::Nobody);
    key.enter(Ask::write(a));
    key.queue(Ask::write(deaf));
    key.release(a);
    key.pass(secs(5));
    assert!(key.state.is_idle(key.at()));
}
