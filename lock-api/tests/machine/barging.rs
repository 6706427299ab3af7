//! Rule 7 under the barging policy: a free key wakes the head of the queue, and belongs to whoever
//! comes first.

use leasehold_api::bounds::SETTLE_BUDGET;
use leasehold_api::machine::{Message, Payload, Reach};
use leasehold_api::{AcquireReply, Operation, Policy, PollReply, SessionId};

use crate::support::{Ask, Key, WAITER_LEASE, assert_is, id, ms, session};

/// A mutex with the barging policy, its holder, and two waiters.
fn two_waiters(first: fn(Operation) -> Ask) -> (Key, [Operation; 3]) {
    let key = Key::mutex().policy(Policy::Barging);
    let (mut key, ops) = key.attempts(['a', 'b', 'c']);
    key.enter(Ask::write(ops[0]));
    key.queue(first(ops[1]));
    key.queue(Ask::write(ops[2]));
    (key, ops)
}

/// The attempts that the last step woke, in order.
fn woken(key: &Key) -> Vec<(SessionId, u64)> {
    let woken = |message: &Message| match message.payload {
        Payload::WakeUp { sequence } => Some((message.to, sequence)),
        _ => None,
    };
    key.messages.iter().filter_map(woken).collect()
}

#[test]
fn barging_wakes_the_head_and_lets_a_newcomer_overtake() {
    let (mut key, ops) = two_waiters(Ask::write);
    let newcomer = key.next('d');
    key.release(ops[0]);
    let holding = key.holding();
    assert!(holding.is_empty(), "a wake-up is not a grant: {holding:?}");
    assert_eq!(woken(&key), [id(ops[1])]);
    key.enter(Ask::write(newcomer));
    assert_is!(key.poll(ops[1]) => PollReply::Queued(_));
    key.release(newcomer);
    // Any waiter can acquire a free key by polling.
    assert_is!(key.poll(ops[2]) => PollReply::Acquired(_));
}

#[test]
fn barging_wakes_nobody_while_the_key_is_held() {
    let (mut key, ops) = two_waiters(Ask::write);
    key.release(ops[1]);
    assert_eq!(key.messages, []);
}

#[test]
fn barging_wakes_the_head_when_a_holder_has_expired() {
    let key = Key::semaphore(2).policy(Policy::Barging);
    let (mut key, ops) = key.attempts(['a', 'b', 'c', 'd']);
    key.enter(Ask::permits(ops[0], 1));
    key.enter(Ask::permits(ops[1], 1).lease(ms(10)));
    key.queue(Ask::permits(ops[2], 1));
    assert_is!(key.ask(Ask::permits(ops[3], 2)) => AcquireReply::Queued(_));
    assert_eq!(key.messages, [], "nothing is free yet");
    key.pass(ms(10));
    assert_is!(key.poll(ops[3]) => PollReply::Queued(_));
    assert_eq!(woken(&key), [id(ops[2])]);
}

#[test]
fn barging_wakes_only_a_waiter_that_listens() {
    let (mut key, ops) = two_waiters(|operation| Ask::write(operation).not_listening());
    key.release(ops[0]);
    assert_eq!(woken(&key), [id(ops[2])]);
}

#[test]
fn barging_drops_an_expired_head() {
    let (mut key, ops) = two_waiters(Ask::write);
    key.pass(WAITER_LEASE - ms(1));
    key.poll(ops[2]);
    key.pass(ms(1));
    key.release(ops[0]);
    assert_eq!(woken(&key), [id(ops[2])]);
    let waiters = key.state.to_parts().waiters;
    assert_eq!(waiters.len(), 1, "the expired waiter takes no space");
}

#[test]
fn barging_asks_a_bounded_number_of_sessions_who_listens() {
    let budget = usize::try_from(SETTLE_BUDGET).expect("small");
    for (unreachable, reached) in [(budget - 1, true), (budget, false)] {
        let (mut key, [holder]) = Key::mutex().policy(Policy::Barging).attempts(['a']);
        key.enter(Ask::write(holder));
        for _ in 0..unreachable {
            let waiter = key.next('u');
            key.queue(Ask::write(waiter));
        }
        let last = key.next('l');
        key.queue(Ask::write(last));
        key.set_reach('u', Reach::Nobody);
        key.release(holder);
        let expected: &[_] = if reached { &[(session('l'), 1)] } else { &[] };
        assert_eq!(woken(&key), expected);
    }
}
