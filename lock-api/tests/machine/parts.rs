//! A state as plain parts, and the refusal of inconsistent parts. `random` checks the round trip of
//! every state.

use leasehold_api::machine::{HoldParts, State, StateParts};
use leasehold_api::{FencingToken, LockSpec, Mode, ServerTime};

use crate::support::{Ask, Key, ms, session};

/// A key with one holder and one waiter.
fn one_waiter(spec: LockSpec, mode: fn(leasehold_api::Operation) -> Ask) -> StateParts {
    let (mut key, [a, b]) = Key::of(spec).attempts(['a', 'b']);
    key.enter(mode(a));
    key.queue(mode(b));
    key.state.to_parts()
}

fn mutex() -> StateParts {
    one_waiter(LockSpec::mutex(), Ask::write)
}

fn semaphore() -> StateParts {
    let spec = LockSpec::semaphore(3).expect("valid");
    one_waiter(spec, |operation| Ask::permits(operation, 2))
}

/// Returns the reason for which the parts are refused after `change`.
fn refused(mut parts: StateParts, change: impl FnOnce(&mut StateParts)) -> String {
    assert!(State::from_parts(parts.clone()).is_ok(), "{parts:?}");
    change(&mut parts);
    let refused = State::from_parts(parts).expect_err("inconsistent parts");
    let text = refused.to_string();
    let invariant = text.strip_prefix("the state of a lock breaks its invariant: ");
    invariant.expect("the usual prefix").to_owned()
}

#[test]
fn empty_state_has_empty_parts() {
    assert_eq!(State::default().to_parts(), StateParts::default());
    let empty = State::from_parts(StateParts::default());
    assert_eq!(empty, Ok(State::default()));
}

#[test]
fn write_parts_overwrites_everything() {
    let (mut parts, mut key) = (semaphore(), Key::mutex());
    let a = key.next('a');
    key.enter(Ask::write(a));
    key.state.write_parts(&mut parts);
    assert_eq!(parts, key.state.to_parts());
    parts.clear();
    assert_eq!(parts, StateParts::default());
}

#[test]
fn order_of_parts_does_not_matter() {
    let mut key = Key::rw();
    for letter in ['a', 'b', 'c'] {
        let reader = key.next(letter);
        key.enter(Ask::read(reader));
    }
    for letter in ['d', 'e'] {
        let writer = key.next(letter);
        key.queue(Ask::write(writer));
    }
    let mut parts = key.state.to_parts();
    parts.holders.reverse();
    parts.waiters.reverse();
    parts.watermarks.reverse();
    assert_eq!(State::from_parts(parts), Ok(key.state));
}

#[test]
fn holds_and_waiters_must_fit_the_key() {
    let none = |parts: &mut StateParts| parts.holders[0].holds = HoldParts::default();
    assert_eq!(refused(mutex(), none), "every holder has a hold");
    let shared = |parts: &mut StateParts| {
        parts.holders[0].holds = [(1, Mode::Shared)].into_iter().collect();
    };
    assert_eq!(refused(mutex(), shared), "every hold fits the key");
    let nothing = |parts: &mut StateParts| parts.spec = None;
    assert_eq!(refused(mutex(), nothing), "every hold fits the key");
    let permits = |parts: &mut StateParts| parts.waiters[0].mode = Mode::Permits(1);
    assert_eq!(refused(mutex(), permits), "every waiter fits the key");
    let too_many = |parts: &mut StateParts| {
        let mut other = parts.holders[0].clone();
        other.session = session('z');
        parts.holders.push(other);
    };
    for parts in [mutex(), semaphore()] {
        assert_eq!(refused(parts, too_many), "used is within capacity");
    }
}

#[test]
fn tokens_must_have_been_granted() {
    let later = |parts: &mut StateParts| {
        parts.holders[0].token = FencingToken::new(parts.token + 1);
    };
    let earlier = |parts: &mut StateParts| {
        parts.holders[0].token = FencingToken::new(parts.token - 1);
    };
    let invariant = "every token is one that was granted";
    assert_eq!(refused(mutex(), later), invariant);
    assert_eq!(refused(mutex(), earlier), invariant);
    assert_eq!(refused(semaphore(), later), invariant);
    let mut parts = semaphore();
    earlier(&mut parts);
    let each_has_its_own = State::from_parts(parts);
    assert!(each_has_its_own.is_ok(), "{each_has_its_own:?}");
}

#[test]
fn duplicate_entries_are_refused() {
    let holder = |parts: &mut StateParts| parts.holders.push(parts.holders[0].clone());
    assert_eq!(refused(mutex(), holder), "no holder is listed twice");
    let waiter = |parts: &mut StateParts| parts.waiters.push(parts.waiters[0].clone());
    assert_eq!(refused(mutex(), waiter), "no ticket is listed twice");
    let session = |parts: &mut StateParts| parts.watermarks.push(parts.watermarks[0]);
    assert_eq!(refused(mutex(), session), "no session has two watermarks");
    let again = |parts: &mut StateParts| {
        let mut waiter = parts.waiters[0].clone();
        waiter.ticket = parts.next_ticket;
        parts.next_ticket += 1;
        parts.waiters.push(waiter);
    };
    assert_eq!(refused(mutex(), again), "every waiter has its ticket");
    let ahead = |parts: &mut StateParts| parts.next_ticket = parts.waiters[0].ticket;
    let invariant = "every ticket is one that was given";
    assert_eq!(refused(mutex(), ahead), invariant);
}

#[test]
fn numbers_must_have_room_to_grow() {
    const LARGE: u64 = 1 << 53;
    let token = |parts: &mut StateParts| {
        parts.token = LARGE;
        parts.holders[0].token = FencingToken::new(LARGE);
    };
    assert_eq!(refused(mutex(), token), "the last token is below 2^53");
    let ticket = |parts: &mut StateParts| parts.next_ticket = LARGE;
    assert_eq!(refused(mutex(), ticket), "the next ticket is below 2^53");
    let floor = |parts: &mut StateParts| {
        parts.waiters[0].floor = Some(FencingToken::new(LARGE));
    };
    assert_eq!(refused(mutex(), floor), "every floor is below 2^53");
}

#[test]
fn operation_has_one_entry() {
    let hold = |parts: &mut StateParts| {
        let hold = parts.holders[0].holds[0];
        parts.holders[0].holds = [hold, hold].into_iter().collect();
    };
    assert_eq!(refused(mutex(), hold), "no hold is listed twice");
    let two = |parts: &mut StateParts| {
        let (sequence, mode) = parts.holders[0].holds[0];
        let holds = [(sequence, mode), (sequence + 1, mode)];
        parts.holders[0].holds = holds.into_iter().collect();
    };
    let other = |parts: &mut StateParts| parts.holders[0].id += 1;
    let invariant = "a holder of a semaphore is one acquisition";
    assert_eq!(refused(semaphore(), two), invariant);
    assert_eq!(refused(semaphore(), other), invariant);
    let waits = |parts: &mut StateParts| {
        let holder = parts.holders[0].clone();
        parts.waiters[0].operation.session = holder.session;
        parts.waiters[0].operation.sequence = holder.holds[0].0;
    };
    assert_eq!(refused(semaphore(), waits), "no operation holds and waits");
}

#[test]
fn bounds_must_cover_every_end() {
    let late = |parts: &mut StateParts| {
        parts.earliest = parts.holders[0].end.saturating_add(ms(1));
    };
    assert_eq!(refused(mutex(), late), "earliest is a lower bound");
    let beyond = |parts: &StateParts| parts.stored_end.saturating_add(ms(1));
    let changes: [&dyn Fn(&mut StateParts); 3] = [
        &|parts| parts.holders[0].end = beyond(parts),
        &|parts| parts.waiters[0].end = beyond(parts),
        &|parts| parts.watermarks[0].end = beyond(parts),
    ];
    for change in changes {
        assert_eq!(refused(mutex(), change), "the stored end covers all");
    }
    let exactly = |parts: &mut StateParts| {
        parts.holders[0].end = parts.stored_end;
        parts.earliest = parts.stored_end;
        parts.last_scan = ServerTime::from_micros(7);
    };
    let mut parts = mutex();
    exactly(&mut parts);
    let state = State::from_parts(parts.clone()).expect("consistent parts");
    assert_eq!(state.to_parts(), parts);
}
