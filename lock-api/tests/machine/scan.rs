//! Rule 4, the bound on looking for the expired among many.

use leasehold_api::bounds::{SCAN_FREELY, SCAN_INTERVAL};
use leasehold_api::{
    AcquireReply, EndReason, LockSpec, Mode, Operation, ReleaseReply, RenewReply, ServerTime,
};

use crate::support::{Ask, Key, LEASE, ms, secs};

/// A reader/writer lock with `n` readers that never end in these tests, after one scan at START.
fn crowd(n: usize) -> Key {
    let mut key = Key::rw();
    for _ in 0..n {
        let reader = key.next('r');
        key.enter(Ask::read(reader).lease(secs(600)));
    }
    key
}

/// Adds a reader with a short lease, and a reader that dies at once and is scanned away, so that
/// the interval between scans starts now.
fn short_reader_after_a_scan(key: &mut Key, lease: std::time::Duration) -> Operation {
    let first = key.next('f');
    key.enter(Ask::read(first).lease(ms(1)));
    key.pass(ms(1));
    let writer = key.next('w');
    key.held(Ask::write(writer));
    let short = key.next('s');
    key.enter(Ask::read(short).lease(lease));
    short
}

#[test]
fn few_holders_are_searched_whenever_it_matters() {
    let mut key = crowd(SCAN_FREELY - 1);
    short_reader_after_a_scan(&mut key, ms(5));
    key.pass(ms(5));
    let (x, limit) = (key.next('x'), u32::try_from(SCAN_FREELY).expect("small"));
    key.enter(Ask::read(x).limits(32, 10, limit));
}

#[test]
fn among_many_a_dead_holder_may_count_for_the_scan_interval_and_no_longer() {
    let mut key = crowd(SCAN_FREELY + 1);
    let limit = u32::try_from(SCAN_FREELY + 2).expect("small");
    let dead = short_reader_after_a_scan(&mut key, ms(5));
    key.pass(SCAN_INTERVAL - ms(1));
    let x = key.next('x');
    assert!(
        matches!(
            key.ask(Ask::read(x).limits(32, 10, limit)),
            AcquireReply::Refused(leasehold_api::Refused::HoldersFull)
        ),
        "not searched again so soon"
    );
    assert_eq!(
        key.clone().renew(dead, LEASE),
        RenewReply::Lost(EndReason::Expired),
        "its own command always finds it expired"
    );
    key.pass(ms(1));
    let y = key.next('y');
    key.enter(Ask::read(y).limits(32, 10, limit));
}

#[test]
fn an_inspection_never_shows_the_dead_however_many_there_are() {
    let mut key = crowd(SCAN_FREELY + 1);
    short_reader_after_a_scan(&mut key, ms(5));
    key.pass(ms(5));
    let holders = key.look().holder_count as usize;
    assert_eq!(holders, SCAN_FREELY + 1);
}

#[test]
fn a_grant_to_an_owner_whose_holder_expired_unseen_does_not_bring_it_back() {
    let mut key = Key::rw();
    let writer = key.next('w');
    key.enter(Ask::write(writer));
    let start = key.at();
    let (first_to_go, older) = (key.next('f'), key.next_of('o', 7));
    key.queue(Ask::read(first_to_go).until(start.saturating_add(ms(1))));
    key.queue(Ask::read(older).until(start.saturating_add(ms(2))));
    for _ in 0..=SCAN_FREELY {
        let reader = key.next('r');
        key.queue(Ask::read(reader));
    }
    let (between, newer) = (key.next('v'), key.next_of('o', 7));
    key.queue(Ask::write(between));
    key.queue(Ask::read(newer));
    key.release(writer);
    key.pass(ms(1));
    key.poll(between); // The scan: the next one is not due for a while.
    key.pass(ms(1));
    key.release(between);
    assert_eq!(key.granted(), [crate::support::id(newer)]);
    assert_eq!(
        key.renew(older, LEASE),
        RenewReply::Lost(EndReason::Unknown)
    );
    assert!(matches!(
        key.release(newer),
        ReleaseReply::Released { holds_left: 0, .. }
    ));
}

#[test]
fn readers_do_not_join_the_epoch_of_readers_that_are_gone() {
    let mut key = Key::rw();
    let (a, b) = (key.next('a'), key.next('b'));
    let before = key.enter(Ask::read(a).lease(ms(10))).token;
    key.pass(ms(10));
    assert!(key.enter(Ask::read(b)).token > before);
}

#[test]
fn an_upgrade_counts_no_reader_that_is_gone() {
    let mut key = Key::rw();
    let (a, b) = (key.next('a'), key.next('b'));
    key.enter(Ask::read(a).lease(ms(10)));
    let token = key.enter(Ask::read(b)).token;
    key.pass(ms(10));
    let reply = key.convert(b, token, Mode::Exclusive);
    assert!(matches!(
        reply,
        leasehold_api::ConvertReply::Converted { .. }
    ));
}

#[test]
fn an_acquire_that_fits_does_not_scan() {
    let mut key = Key::semaphore(3);
    let (a, b) = (key.next('a'), key.next('b'));
    key.enter(Ask::permits(a, 1).lease(secs(1)));
    key.pass(secs(2));
    key.enter(Ask::permits(b, 1));
    let parts = key.state.to_parts();
    assert_eq!(
        parts.holders.len(),
        2,
        "the first is over, but in nobody's way"
    );
    assert_eq!(parts.last_scan, ServerTime::default());
}

#[test]
fn an_expired_holder_does_not_keep_the_spec() {
    let mut key = Key::semaphore(3);
    let (a, b) = (key.next('a'), key.next('b'));
    key.enter(Ask::permits(a, 1).lease(secs(1)));
    key.spec = LockSpec::semaphore(9).expect("valid");
    key.pass(secs(2));
    key.enter(Ask::permits(b, 1));
    assert_eq!(key.look().spec, Some(key.spec));
}
