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
    key.end(a);
    assert_eq!(key.granted(), [id(b)]);
    assert!(key.look().waiters[0].away);
    key.set_reach('d', Reach::Listening);
    let late = key.next('l');
    key.queue(Ask::write(late));
    assert!(matches!(key.poll(deaf), PollReply::Queued(q) if q.ahead == 0));
    assert!(!key.look().waiters[0].away, "its poll clears the mark");
    key.end(b);
    assert_eq!(key.granted(), [id(deaf)], "before those who came after it");
}

#[test]
fn who_does_not_say_that_it_listens_is_never_away() {
    let mut key = Key::mutex();
    let (a, quiet) = (key.next('a'), key.next('q'));
    key.set_reach('q', Reach::Nobody);
    key.enter(Ask::write(a));
    key.queue(Ask::write(quiet).deaf());
    key.end(a);
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
    key.end(a);
    assert_eq!(key.holding(), ["q1"]);
}

#[test]
fn unknown_reachability_counts_as_reachable() {
    let mut key = Key::mutex();
    let (a, b) = (key.next('a'), key.next('b'));
    key.set_reach('b', Reach::Unknown);
    key.enter(Ask::write(a));
    key.queue(Ask::write(b));
    key.end(a);
    assert_eq!(key.granted(), [id(b)]);
}

#[test]
fn a_place_is_marked_twice_and_then_granted_like_any_other() {
    let mut key = Key::mutex();
    let (mut holder, deaf) = (key.next('a'), key.next('d'));
    key.set_reach('d', Reach::Nobody);
    key.enter(Ask::write(holder));
    key.queue(Ask::write(deaf));
    for mark in 1..=2 {
        key.end(holder);
        assert!(key.look().waiters[0].away, "mark {mark}");
        holder = key.next('a');
        key.enter(Ask::write(holder));
        key.poll(deaf);
        assert!(!key.look().waiters[0].away);
    }
    key.end(holder);
    assert_eq!(key.holding(), ["d1"], "a claim, to be told or polled for");
}

#[test]
fn if_all_are_away_the_key_is_free_for_whoever_asks() {
    let mut key = Key::mutex();
    let (a, deaf, b) = (key.next('a'), key.next('d'), key.next('b'));
    key.set_reach('d', Reach::Nobody);
    key.enter(Ask::write(a));
    key.queue(Ask::write(deaf));
    key.end(a);
    key.enter(Ask::write(b).no_wait());
    assert_eq!(key.waiting(), ["d1"]);
}

#[test]
fn if_one_is_not_away_the_key_is_not_free() {
    let mut key = Key::semaphore(2);
    let (a, deaf, big, b) = (key.next('a'), key.next('d'), key.next('g'), key.next('b'));
    key.set_reach('d', Reach::Nobody);
    key.enter(Ask::permits(a, 2));
    key.queue(Ask::permits(deaf, 1));
    key.queue(Ask::permits(big, 2));
    key.end(a);
    assert_eq!(key.holding(), ["g1"]);
    key.held(Ask::permits(b, 1));
}

#[test]
fn the_poll_of_who_is_away_takes_a_free_key() {
    let mut key = Key::mutex();
    let (a, deaf) = (key.next('a'), key.next('d'));
    key.set_reach('d', Reach::Nobody);
    key.enter(Ask::write(a));
    key.queue(Ask::write(deaf));
    key.end(a);
    assert!(matches!(key.poll(deaf), PollReply::Acquired(_)));
}

#[test]
fn a_redelivered_acquire_clears_no_mark() {
    let mut key = Key::mutex();
    let (a, deaf) = (key.next('a'), key.next('d'));
    key.set_reach('d', Reach::Nobody);
    key.enter(Ask::write(a));
    let request = Ask::write(deaf).request(&key);
    key.deliver(request.clone());
    key.end(a);
    assert!(matches!(key.deliver(request), AcquireReply::Queued(_)));
    assert!(key.look().waiters[0].away);
}

#[test]
fn an_away_place_ends_like_any_other() {
    let mut key = Key::mutex();
    let (a, deaf) = (key.next('a'), key.next('d'));
    key.set_reach('d', Reach::Nobody);
    key.enter(Ask::write(a));
    key.queue(Ask::write(deaf));
    key.end(a);
    key.pass(secs(5));
    assert!(key.state.is_idle(key.at()));
}
