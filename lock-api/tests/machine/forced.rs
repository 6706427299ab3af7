//! Forced releases.

use leasehold_api::machine::Payload;
use leasehold_api::{EndReason, ForceMode, ForceReply, PollReply, ReleaseReply};

use crate::support::{Ask, Key, LEASE, assert_is, id, secs};

#[test]
fn revoked_holder_keeps_its_lease_and_cannot_renew() {
    let (mut key, [a, b]) = Key::mutex().attempts(['a', 'b']);
    let token = key.enter(Ask::write(a).lease(secs(3))).token;
    key.queue(Ask::write(b));
    assert_eq!(key.forced(token, ForceMode::Revoke), 1);
    assert_eq!(key.messages[0].to, a.session);
    assert_eq!(key.messages[0].payload, Payload::Revoked { sequence: 1 });
    assert_eq!(key.lost(a), EndReason::Forced);
    // Exclusion holds.
    assert_is!(key.poll(b) => PollReply::Queued(_));
    key.pass(secs(3));
    assert_is!(key.poll(b) => PollReply::Acquired(_));
}

#[test]
fn revoked_holder_can_release() {
    let (mut key, [a, b]) = Key::mutex().attempts(['a', 'b']);
    let token = key.enter(Ask::write(a)).token;
    key.queue(Ask::write(b));
    assert_eq!(key.forced(token, ForceMode::Revoke), 1);
    assert_is!(key.release(a) => ReleaseReply::Released { .. });
    assert_eq!(key.granted(), [id(b)]);
}

#[test]
fn nothing_extends_a_revoked_holder() {
    let (mut key, [writer]) = Key::rw().attempts(['w']);
    key.enter(Ask::write(writer));
    let (one, between, two) = (key.next_of('a', 1), key.next('v'), key.next_of('a', 1));
    let until = key.at().saturating_add(secs(2));
    key.queue(Ask::read(one).until(until));
    key.queue(Ask::write(between));
    key.queue(Ask::read(two));
    key.release(writer);
    let token = key.inspect().token.expect("granted");
    assert_eq!(key.forced(token, ForceMode::Revoke), 1);
    let nested = key.next_of('a', 1);
    let remaining = key.enter(Ask::read(nested)).remaining;
    assert_eq!(remaining, secs(2), "a nested hold doesn't extend it");
    key.release(between);
    // A grant from the queue doesn't extend it.
    let holder = &key.inspect().holders[0];
    assert_eq!((holder.holds, holder.remaining), (3, secs(2)));
}

#[test]
fn now_removes_the_holder_and_grants_to_the_next() {
    let (mut key, [a, b]) = Key::mutex().attempts(['a', 'b']);
    let token = key.enter(Ask::write(a)).token;
    key.queue(Ask::write(b));
    assert_eq!(key.forced(token, ForceMode::Now), 1);
    assert_eq!(key.granted(), [id(b)]);
    assert_eq!(key.poll(a), PollReply::Gone(EndReason::Forced));
    assert_eq!(key.lost(a), EndReason::Forced);
    assert_eq!(key.not_held(a), EndReason::Forced);
    assert_eq!(key.holding(), ["b1"]);
}

#[test]
fn later_epoch_is_not_affected() {
    let (mut key, [a, b]) = Key::mutex().attempts(['a', 'b']);
    let seen = key.enter(Ask::write(a)).token;
    key.release(a);
    key.enter(Ask::write(b));
    for how in [ForceMode::Revoke, ForceMode::Now] {
        assert_eq!(key.force(&[seen], how), ForceReply::WrongEpoch);
    }
    key.renewed(b, LEASE);
}

#[test]
fn readers_of_the_epoch_and_named_permits_are_removed() {
    let (mut key, [a, b]) = Key::rw().attempts(['a', 'b']);
    key.enter(Ask::read(a));
    let token = key.enter(Ask::read(b)).token;
    assert_eq!(key.forced(token, ForceMode::Now), 2);
    let mut key = Key::semaphore(3);
    let token = key.enter(Ask::permits(a, 1)).token;
    key.enter(Ask::permits(b, 1));
    assert_eq!(key.forced(token, ForceMode::Now), 1);
    assert_eq!(key.holding(), ["b1"]);
}
