//! Rule 6: downgrade and upgrade.

use leasehold_api::{ConvertReply, EndReason, FencingToken, Mode, ReleaseReply};

use crate::support::{Ask, Key, ms, want};

#[track_caller]
fn converted(reply: ConvertReply) -> FencingToken {
    want!(reply, ConvertReply::Converted { token, .. } => token)
}

#[track_caller]
fn not_sole(reply: ConvertReply) {
    assert_eq!(reply, ConvertReply::NotSoleHolder);
}

#[test]
fn downgrade_starts_an_epoch_and_grants_readers_at_the_head() {
    let (mut key, [a, r, s, w, late]) = Key::rw().attempts(['a', 'r', 's', 'w', 'l']);
    let token = key.enter(Ask::write(a)).token;
    for ask in [Ask::read(r), Ask::read(s), Ask::write(w), Ask::read(late)] {
        key.queue(ask);
    }
    let next = converted(key.convert(a, token, Mode::Shared));
    assert!(next > token);
    assert_eq!(key.holding(), ["a1", "r1", "s1"]);
    assert_eq!(key.waiting(), ["w1", "l1"]);
    let shown = key.inspect().token;
    assert_eq!(shown, Some(next), "the readers share the new token");
}

#[test]
fn downgrade_grants_no_reader_past_a_writer() {
    let (mut key, [a, w, r]) = Key::rw().attempts(['a', 'w', 'r']);
    let token = key.enter(Ask::write(a)).token;
    key.queue(Ask::write(w));
    key.queue(Ask::read(r));
    converted(key.convert(a, token, Mode::Shared));
    assert_eq!(key.holding(), ["a1"]);
}

#[test]
fn sole_reader_upgrades_once_while_others_wait() {
    let (mut key, [a, w]) = Key::rw().attempts(['a', 'w']);
    let token = key.enter(Ask::read(a)).token;
    key.queue(Ask::write(w));
    let token = converted(key.convert(a, token, Mode::Exclusive));
    let token = converted(key.convert(a, token, Mode::Shared));
    not_sole(key.convert(a, token, Mode::Exclusive));
    key.release(w);
    let token = converted(key.convert(a, token, Mode::Exclusive));
    converted(key.convert(a, token, Mode::Shared));
}

#[test]
fn only_an_upgrade_while_others_wait_counts() {
    let (mut key, [a, w]) = Key::rw().attempts(['a', 'w']);
    let token = key.enter(Ask::read(a)).token;
    let token = converted(key.convert(a, token, Mode::Exclusive));
    key.queue(Ask::write(w));
    let token = converted(key.convert(a, token, Mode::Shared));
    converted(key.convert(a, token, Mode::Exclusive));
}

#[test]
fn upgrade_next_to_a_reader_is_refused() {
    let (mut key, [a, b]) = Key::rw().attempts(['a', 'b']);
    key.enter(Ask::read(a).lease(ms(10)));
    let token = key.enter(Ask::read(b)).token;
    not_sole(key.convert(b, token, Mode::Exclusive));
    key.pass(ms(10));
    converted(key.convert(b, token, Mode::Exclusive));
}

#[test]
fn offer_counts_as_a_holder() {
    let (mut key, [w, a, b]) = Key::rw().attempts(['w', 'a', 'b']);
    key.enter(Ask::write(w));
    key.queue(Ask::read(a));
    key.queue(Ask::read(b));
    key.release(w);
    let token = key.inspect().token.expect("granted");
    not_sole(key.convert(a, token, Mode::Exclusive));
}

#[test]
fn duplicate_does_not_undo_a_later_conversion() {
    let (mut key, [a]) = Key::rw().attempts(['a']);
    let first = key.enter(Ask::write(a)).token;
    let second = converted(key.convert(a, first, Mode::Shared));
    let third = converted(key.convert(a, second, Mode::Exclusive));
    let view = want!(key.convert(a, first, Mode::Shared), ConvertReply::WrongEpoch(view) => view);
    assert_eq!((view.mode, view.token), (Mode::Exclusive, third));
}

#[test]
fn conversion_to_the_current_mode_changes_nothing() {
    let (mut key, [a]) = Key::rw().attempts(['a']);
    let token = key.enter(Ask::read(a)).token;
    assert_eq!(converted(key.convert(a, token, Mode::Shared)), token);
}

#[test]
fn conversion_changes_one_hold() {
    let (mut key, [one, two]) = Key::rw().nested();
    key.enter(Ask::write(one));
    let token = key.enter(Ask::write(two)).token;
    let next = converted(key.convert(one, token, Mode::Shared));
    assert!(next > token);
    assert_eq!(key.inspect().holders[0].mode, Mode::Exclusive);
    converted(key.convert(two, next, Mode::Shared));
    assert_eq!(key.inspect().holders[0].mode, Mode::Shared);
}

#[test]
fn release_of_the_write_hold_is_a_downgrade() {
    let (mut key, [write, read]) = Key::rw().nested();
    let other = key.next('b');
    let token = key.enter(Ask::write(write)).token;
    key.enter(Ask::read(read));
    key.queue(Ask::read(other));
    let ReleaseReply::Released { holds_left, holder } = key.release(write) else {
        panic!("not released");
    };
    let holder = holder.expect("the read hold remains");
    assert_eq!((holds_left, holder.mode), (1, Mode::Shared));
    assert!(holder.token > token);
    assert_eq!(key.holding(), ["a1", "b1"]);
}

#[test]
fn expired_hold_or_mutex_is_not_converted() {
    let (mut key, [a]) = Key::rw().attempts(['a']);
    let token = key.enter(Ask::read(a).lease(ms(1))).token;
    key.pass(ms(1));
    let late = key.convert(a, token, Mode::Exclusive);
    assert_eq!(late, ConvertReply::Lost(EndReason::Expired));
    let mut key = Key::mutex();
    let token = key.enter(Ask::write(a)).token;
    not_sole(key.convert(a, token, Mode::Shared));
}
