//! Rule 4: the bound on scans for expired holders.

use leasehold_api::bounds::{SCAN_FREELY, SCAN_INTERVAL};
use leasehold_api::{AcquireReply, EndReason, LockSpec, Operation, ReleaseReply, ServerTime};

use crate::support::{Ask, Key, assert_is, ms, secs};

/// A reader/writer lock with `n` readers that never expire in these tests.
fn readers(n: usize) -> Key {
    let mut key = Key::rw();
    for _ in 0..n {
        let reader = key.next('r');
        key.enter(Ask::read(reader).lease(secs(600)));
    }
    key
}

/// Forces a scan, so that the scan interval starts now. Then adds a reader with a short lease.
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
fn few_holders_are_scanned_whenever_it_matters() {
    let mut key = readers(SCAN_FREELY - 1);
    short_reader_after_a_scan(&mut key, ms(5));
    key.pass(ms(5));
    let (x, limit) = (key.next('x'), u32::try_from(SCAN_FREELY).expect("small"));
    key.enter(Ask::read(x).limits(32, 10, limit));
}

#[test]
fn expired_holder_among_many_counts_for_at_most_the_scan_interval() {
    let mut key = readers(SCAN_FREELY + 1);
    let limit = u32::try_from(SCAN_FREELY + 2).expect("small");
    let dead = short_reader_after_a_scan(&mut key, ms(5));
    key.pass(SCAN_INTERVAL - ms(1));
    let x = key.next('x');
    // The next scan is not due yet.
    let early = key.ask(Ask::read(x).limits(32, 10, limit));
    assert_is!(early => AcquireReply::Refused(leasehold_api::Refused::HoldersFull));
    // The holder's own command finds it expired.
    assert_eq!(key.clone().lost(dead), EndReason::Expired);
    key.pass(ms(1));
    let y = key.next('y');
    key.enter(Ask::read(y).limits(32, 10, limit));
}

#[test]
fn expired_holder_among_many_may_free_the_key_at_the_next_scan() {
    let mut key = readers(SCAN_FREELY + 1);
    short_reader_after_a_scan(&mut key, ms(5));
    key.pass(ms(5));
    let w = key.next('w');
    let contended = key.held(Ask::write(w));
    assert_eq!(contended.retry_after, SCAN_INTERVAL - ms(5));
}

#[test]
fn inspection_never_shows_expired_holders() {
    let mut key = readers(SCAN_FREELY + 1);
    short_reader_after_a_scan(&mut key, ms(5));
    key.pass(ms(5));
    let holders = key.inspect().holder_count as usize;
    assert_eq!(holders, SCAN_FREELY + 1);
}

#[test]
fn grant_does_not_revive_an_expired_holder_of_the_owner() {
    let (mut key, [writer]) = Key::rw().attempts(['w']);
    key.enter(Ask::write(writer));
    let start = key.at();
    let (first, older) = (key.next('f'), key.next_of('o', 7));
    key.queue(Ask::read(first).until(start.saturating_add(ms(1))));
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
    key.poll(between); // Scans; the next scan is not due yet.
    key.pass(ms(1));
    key.release(between);
    assert_eq!(key.granted(), [crate::support::id(newer)]);
    assert_eq!(key.lost(older), EndReason::Unknown);
    assert_is!(key.release(newer) => ReleaseReply::Released { holds_left: 0, .. });
}

#[test]
fn reader_does_not_join_the_epoch_of_expired_readers() {
    let (mut key, [a, b]) = Key::rw().attempts(['a', 'b']);
    let before = key.enter(Ask::read(a).lease(ms(10))).token;
    key.pass(ms(10));
    assert!(key.enter(Ask::read(b)).token > before);
}

#[test]
fn acquire_that_fits_does_not_scan() {
    let (mut key, [a, b]) = Key::semaphore(3).attempts(['a', 'b']);
    key.enter(Ask::permits(a, 1).lease(secs(1)));
    key.pass(secs(2));
    key.enter(Ask::permits(b, 1));
    let parts = key.state.to_parts();
    let kept = parts.holders.len();
    assert_eq!(kept, 2, "the first has expired, but is not dropped");
    assert_eq!(parts.last_scan, ServerTime::default());
}

#[test]
fn expired_holder_does_not_keep_the_spec() {
    let (mut key, [a, b]) = Key::semaphore(3).attempts(['a', 'b']);
    key.enter(Ask::permits(a, 1).lease(secs(1)));
    key.spec = LockSpec::semaphore(9).expect("valid");
    key.pass(secs(2));
    key.enter(Ask::permits(b, 1));
    assert_eq!(key.inspect().spec, Some(key.spec));
}
