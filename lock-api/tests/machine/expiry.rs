//! Rule 4, expiry per owner, and the spec of a key.

use leasehold_api::{EndReason, LockSpec, Refused};

use crate::support::{Ask, Key, LEASE, ms, secs};

#[test]
fn short_lease_does_not_shorten_another() {
    let (mut key, [long, short, writer]) = Key::rw().attempts(['l', 's', 'w']);
    key.enter(Ask::read(long).lease(secs(20)));
    key.enter(Ask::read(short).lease(secs(1)));
    key.pass(secs(1));
    assert_eq!(key.held(Ask::write(writer)).retry_after, secs(19));
    assert_eq!(key.holding(), ["l1"]);
}

#[test]
fn dead_reader_blocks_only_for_its_own_lease() {
    let (mut key, [dead, live, writer]) = Key::rw().attempts(['d', 'l', 'w']);
    key.enter(Ask::read(dead).lease(secs(1)));
    key.enter(Ask::read(live).lease(secs(20)));
    key.queue(Ask::write(writer));
    key.release(live);
    assert_eq!(key.granted(), []);
    key.pass(secs(1));
    key.poll(writer);
    assert_eq!(key.holding(), ["w1"]);
}

#[test]
fn renewal_extends_only_its_owner() {
    let (mut key, [a, b]) = Key::rw().attempts(['a', 'b']);
    key.enter(Ask::read(a).lease(secs(2)));
    key.enter(Ask::read(b).lease(secs(2)));
    key.pass(secs(1));
    key.renew(a, LEASE);
    key.pass(secs(1));
    assert_eq!(key.holding(), ["a1"]);
    assert_eq!(key.lost(b), EndReason::Expired);
}

#[test]
fn renewal_never_shortens() {
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    key.enter(Ask::write(a).lease(secs(20)));
    let (_, remaining) = key.renewed(a, secs(1));
    assert_eq!(remaining, secs(20));
}

#[test]
fn renewal_never_creates_or_revives_a_holder() {
    let (mut key, [a, b]) = Key::mutex().attempts(['a', 'b']);
    assert_eq!(key.lost(a), EndReason::Unknown);
    key.enter(Ask::write(b).lease(ms(10)));
    key.pass(ms(10));
    assert_eq!(key.lost(b), EndReason::Expired);
    assert_eq!(key.lost(b), EndReason::Unknown);
    assert_eq!(key.holding(), Vec::<String>::new());
}

#[test]
fn late_release_spares_the_next_holder() {
    let (mut key, [a, b]) = Key::mutex().attempts(['a', 'b']);
    key.enter(Ask::write(a).lease(secs(1)));
    key.pass(secs(1));
    key.enter(Ask::write(b));
    assert_eq!(key.not_held(a), EndReason::Unknown);
    assert_eq!(key.not_held(a), EndReason::Released);
    assert_eq!(key.holding(), ["b1"]);
}

#[test]
fn release_by_another_owner_releases_nothing() {
    let mut key = Key::mutex();
    let a = key.next_of('a', 7);
    key.enter(Ask::write(a));
    let mut thief = a;
    thief.owner = leasehold_api::OwnerId::from_u64(8);
    assert_eq!(key.not_held(thief), EndReason::Unknown);
    thief = key.next_of('b', 7);
    assert_eq!(key.not_held(thief), EndReason::Unknown);
    assert_eq!(key.holding(), ["a1"]);
}

#[test]
fn idle_key_takes_another_spec_and_a_busy_key_refuses_it() {
    let (mut key, [a, b, c]) = Key::mutex().attempts(['a', 'b', 'c']);
    key.enter(Ask::write(a).lease(secs(1)));
    key.spec = LockSpec::rw_lock();
    let lives_with = LockSpec::mutex();
    key.refuses(Ask::read(b), Refused::Mismatch { lives_with });
    key.pass(secs(1));
    key.enter(Ask::read(c));
    assert_eq!(key.inspect().spec, Some(LockSpec::rw_lock()));
}

#[test]
fn other_capacity_or_waiter_lease_is_a_mismatch() {
    let five = LockSpec::semaphore(5).expect("valid");
    let others = [
        LockSpec::semaphore(6).expect("valid"),
        five.with_waiter_lease(secs(6)).expect("valid"),
    ];
    let (mut key, [a]) = Key::of(five).attempts(['a']);
    key.enter(Ask::permits(a, 1));
    for other in others {
        key.spec = other;
        let b = key.next('b');
        let lives_with = five;
        key.refuses(Ask::permits(b, 1), Refused::Mismatch { lives_with });
    }
}

#[test]
fn waiter_alone_keeps_the_spec() {
    let (mut key, [a, b, c]) = Key::mutex().attempts(['a', 'b', 'c']);
    key.set_reach('b', leasehold_api::machine::Reach::Nobody);
    key.enter(Ask::write(a));
    key.queue(Ask::write(b));
    key.release(a);
    assert_eq!(key.waiting(), ["b1"], "an unreachable waiter and no holder");
    key.spec = LockSpec::rw_lock();
    let lives_with = LockSpec::mutex();
    key.refuses(Ask::read(c), Refused::Mismatch { lives_with });
}
