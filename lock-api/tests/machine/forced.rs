//! Forced release.

use leasehold_api::machine::Payload;
use leasehold_api::{EndReason, ForceHow, ForceReply, PollReply, ReleaseReply, RenewReply};

use crate::support::{Ask, Key, LEASE, id, secs};

#[test]
fn a_revoked_holder_keeps_its_lease_and_gets_no_other() {
    let mut key = Key::mutex();
    let (a, b) = (key.next('a'), key.next('b'));
    let token = key.enter(Ask::write(a).lease(secs(3))).token;
    key.queue(Ask::write(b));
    assert_eq!(
        key.force(&[token], ForceHow::Revoke),
        ForceReply::Forced { holders: 1 }
    );
    assert_eq!(key.told[0].to, a.session);
    assert_eq!(key.told[0].payload, Payload::Revoked { sequence: 1 });
    assert_eq!(key.renew(a, LEASE), RenewReply::Lost(EndReason::Forced));
    assert!(
        matches!(key.poll(b), PollReply::Queued(_)),
        "exclusion holds"
    );
    key.pass(secs(3));
    assert!(matches!(key.poll(b), PollReply::Acquired(_)));
}

#[test]
fn the_holder_may_still_end_what_was_revoked() {
    let mut key = Key::mutex();
    let (a, b) = (key.next('a'), key.next('b'));
    let token = key.enter(Ask::write(a)).token;
    key.queue(Ask::write(b));
    key.force(&[token], ForceHow::Revoke);
    assert!(matches!(key.release(a), ReleaseReply::Released { .. }));
    assert_eq!(key.granted(), [id(b)]);
}

#[test]
fn nothing_extends_a_revoked_holder() {
    let mut key = Key::rw();
    let writer = key.next('w');
    key.enter(Ask::write(writer));
    let (one, between, two) = (key.next_of('a', 1), key.next('v'), key.next_of('a', 1));
    let until = key.at().saturating_add(secs(2));
    key.queue(Ask::read(one).until(until));
    key.queue(Ask::write(between));
    key.queue(Ask::read(two));
    key.release(writer);
    let token = key.look().token.expect("granted");
    key.force(&[token], ForceHow::Revoke);
    let nested = key.next_of('a', 1);
    assert_eq!(
        key.enter(Ask::read(nested)).remaining,
        secs(2),
        "not a nested hold"
    );
    key.release(between);
    let holder = &key.look().holders[0];
    assert_eq!(
        (holder.holds, holder.remaining),
        (3, secs(2)),
        "nor a grant from the queue"
    );
}

#[test]
fn now_ends_it_grants_the_next_and_tells_the_late() {
    let mut key = Key::mutex();
    let (a, b) = (key.next('a'), key.next('b'));
    let token = key.enter(Ask::write(a)).token;
    key.queue(Ask::write(b));
    assert_eq!(
        key.force(&[token], ForceHow::Now),
        ForceReply::Forced { holders: 1 }
    );
    assert_eq!(key.granted(), [id(b)]);
    assert_eq!(key.poll(a), PollReply::Gone(EndReason::Forced));
    assert_eq!(key.renew(a, LEASE), RenewReply::Lost(EndReason::Forced));
    assert_eq!(key.release(a), ReleaseReply::NotHeld(EndReason::Forced));
    assert_eq!(key.holding(), ["b1"]);
}

#[test]
fn a_later_epoch_is_not_touched() {
    let mut key = Key::mutex();
    let (a, b) = (key.next('a'), key.next('b'));
    let seen = key.enter(Ask::write(a)).token;
    key.release(a);
    key.enter(Ask::write(b));
    for how in [ForceHow::Revoke, ForceHow::Now] {
        assert_eq!(key.force(&[seen], how), ForceReply::WrongEpoch);
    }
    assert!(matches!(key.renew(b, LEASE), RenewReply::Renewed { .. }));
}

#[test]
fn all_readers_of_a_epoch_go_and_of_a_semaphore_only_those_named() {
    let mut key = Key::rw();
    let (a, b) = (key.next('a'), key.next('b'));
    key.enter(Ask::read(a));
    let token = key.enter(Ask::read(b)).token;
    assert_eq!(
        key.force(&[token], ForceHow::Now),
        ForceReply::Forced { holders: 2 }
    );
    let mut key = Key::semaphore(3);
    let token = key.enter(Ask::permits(a, 1)).token;
    key.enter(Ask::permits(b, 1));
    assert_eq!(
        key.force(&[token], ForceHow::Now),
        ForceReply::Forced { holders: 1 }
    );
    assert_eq!(key.holding(), ["b1"]);
}
