//! Rule 15: fencing tokens.

use leasehold_api::Refused;
use leasehold_api::bounds::{MAX_FLOOR, MAX_FLOOR_AHEAD};

use crate::support::{Ask, Key, START, ms};

#[test]
fn each_exclusive_holder_has_a_higher_token() {
    let mut key = Key::mutex();
    let mut last = 0;
    for _ in 0..5 {
        let a = key.next('a');
        let token = key.enter(Ask::write(a)).token.get();
        assert!(token > last, "even in the same microsecond");
        last = token;
        key.release(a);
    }
}

#[test]
fn token_is_at_least_the_time_in_microseconds() {
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    assert_eq!(key.enter(Ask::write(a)).token.get(), START);
    key.release(a);
    key.pass(ms(7));
    let b = key.next('b');
    assert_eq!(key.enter(Ask::write(b)).token.get(), START + 7_000);
}

#[test]
fn overlapping_readers_share_an_epoch() {
    let (mut key, [a, b, c, w]) = Key::rw().attempts(['a', 'b', 'c', 'w']);
    let first = key.enter(Ask::read(a)).token;
    key.pass(ms(5));
    assert_eq!(key.enter(Ask::read(b)).token, first);
    key.release(a);
    assert_eq!(key.enter(Ask::read(c)).token, first);
    key.release(b);
    key.release(c);
    assert!(key.enter(Ask::write(w)).token > first);
}

#[test]
fn higher_floor_starts_an_epoch_that_readers_adopt() {
    let (mut key, [a, b]) = Key::rw().attempts(['a', 'b']);
    let first = key.enter(Ask::read(a)).token.get();
    let second = key.enter(Ask::read(b).floor(first + 1)).token;
    assert_eq!(second.get(), first + 2);
    let (token, _) = key.renewed(a, ms(1));
    assert_eq!(token, second);
}

#[test]
fn floor_equal_to_the_token_joins_the_epoch() {
    let (mut key, [a, b]) = Key::rw().attempts(['a', 'b']);
    let first = key.enter(Ask::read(a)).token;
    key.enter(Ask::read(b));
    key.release(a);
    // Its floor is the token of the epoch in which the other reader still holds.
    let again = key.next('a');
    assert_eq!(key.enter(Ask::read(again).floor(first.get())).token, first);
}

#[test]
fn floor_too_far_ahead_is_refused() {
    let day = u64::try_from(MAX_FLOOR_AHEAD.as_micros()).expect("a day");
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    key.refuses(Ask::write(a).floor(START + day + 1), Refused::FloorTooHigh);
    assert_eq!(key.inspect(), leasehold_api::InspectReply::default());
    let token = key.enter(Ask::write(a).floor(START + day)).token.get();
    assert_eq!(token, START + day + 1);
    key.release(a);
    let b = key.next('b');
    key.enter(Ask::write(b).floor(token + day));
}

#[test]
fn floor_above_the_maximum_is_refused() {
    let mut key = Key::mutex();
    key.now = MAX_FLOOR - 1;
    let a = key.next('a');
    key.refuses(Ask::write(a).floor(MAX_FLOOR + 1), Refused::FloorTooHigh);
    key.enter(Ask::write(a).floor(MAX_FLOOR));
}

#[test]
fn clock_or_floor_keeps_tokens_increasing_after_data_loss() {
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    let seen = key.enter(Ask::write(a)).token;
    key.state = leasehold_api::machine::State::default();
    key.pass(ms(1));
    // The clock has advanced.
    assert!(key.clone().enter(Ask::write(a)).token > seen);
    key.now = START - 1_000_000;
    // The floor has the last token.
    assert!(key.enter(Ask::write(a).floor(seen.get())).token > seen);
}

#[test]
fn each_permit_has_a_separate_token() {
    let (mut key, [a, b]) = Key::semaphore(3).attempts(['a', 'b']);
    let first = key.enter(Ask::permits(a, 1)).token;
    let second = key.enter(Ask::permits(b, 1)).token;
    assert!(second > first);
    let (token, _) = key.renewed(a, ms(1));
    assert_eq!(token, first);
}
