//! Rule 16: the note of a key.

use leasehold_api::bounds::{MAX_NOTE_BYTES, MAX_NOTE_KEEP, TOKEN_RETENTION};
use leasehold_api::{
    EndReason, FencingToken, ForceMode, Mode, Note, NoteReply, NoteView, Operation,
};
use std::time::Duration;

use crate::support::{Ask, Key, ms, name, secs, want};

const NONE: Duration = Duration::ZERO;

/// The note that stands after a note of a live hold.
fn noted(key: &mut Key, of: Operation, version: u32, text: &str, keep: Duration) -> NoteView {
    want!(key.note(of, version, text.as_bytes(), keep), NoteReply::Noted(note) => note)
}

fn lost(key: &mut Key, of: Operation) -> (EndReason, Option<NoteView>) {
    let reply = key.note(of, 1_000, b"late", secs(3_600));
    want!(reply, NoteReply::Lost { reason, note } => (reason, note))
}

fn shown(key: &Key) -> Option<(FencingToken, u32, String)> {
    let note = key.inspect().note?;
    let text = String::from_utf8(note.bytes).expect("text");
    Some((note.token, note.version, text))
}

#[test]
fn higher_version_replaces_and_a_copy_does_not() {
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    let token = key.enter(Ask::write(a)).token;
    let first = noted(&mut key, a, 1, "one", secs(60));
    assert_eq!((first.token, first.kept_for), (token, secs(60)));
    key.pass(secs(1));
    assert_eq!(noted(&mut key, a, 2, "two", secs(50)).bytes, b"two");
    key.pass(secs(1));
    for version in [0, 1, 2] {
        let stands = noted(&mut key, a, version, "other", secs(90));
        assert_eq!((stands.version, &*stands.bytes), (2, &b"two"[..]));
        assert_eq!(stands.kept_for, secs(49), "a copy keeps nothing longer");
    }
    assert_eq!(shown(&key), Some((token, 2, "two".into())));
}

#[test]
fn only_a_live_hold_leaves_a_note() {
    let (mut key, [a, b]) = Key::mutex().attempts(['a', 'b']);
    assert_eq!(lost(&mut key, a), (EndReason::Unknown, None));
    let end = key.enter(Ask::write(a).lease(secs(1))).remaining;
    key.queue(Ask::write(b));
    assert_eq!(lost(&mut key, b), (EndReason::Unknown, None), "it waits");
    key.pass(end - ms(1));
    let note = noted(&mut key, a, 1, "in time", secs(5));
    key.pass(ms(1));
    let (reason, stands) = lost(&mut key, a);
    assert_eq!(reason, EndReason::Expired);
    let stands = stands.expect("kept");
    assert_eq!(stands.bytes, note.bytes);
    assert_eq!(stands.kept_for, secs(5) - ms(1));
    // The note has settled the key: the waiter holds.
    assert_eq!(key.holding(), ["b1"]);
    assert_eq!(noted(&mut key, b, 0, "next", NONE).bytes, b"next");
    key.release(b);
    assert_eq!(lost(&mut key, b).0, EndReason::Released);
}

#[test]
fn note_of_a_later_epoch_wins_whatever_its_version() {
    let (mut key, [a, b]) = Key::mutex().attempts(['a', 'b']);
    key.enter(Ask::write(a));
    noted(&mut key, a, 9, "a", secs(3_600));
    key.release(a);
    let token = key.enter(Ask::write(b)).token;
    noted(&mut key, b, 1, "b", secs(60));
    assert_eq!(shown(&key), Some((token, 1, "b".into())));
    let (_, stands) = lost(&mut key, a);
    assert_eq!(stands.expect("kept").bytes, b"b");
}

#[test]
fn note_that_is_not_kept_ends_with_its_epoch() {
    let (mut key, [a, b]) = Key::mutex().attempts(['a', 'b']);
    key.enter(Ask::write(a).lease(secs(5)));
    noted(&mut key, a, 1, "a", NONE);
    key.pass(secs(3));
    assert!(shown(&key).is_some(), "its token is the last one");
    key.release(a);
    key.pass(secs(10));
    assert!(shown(&key).is_some(), "its token is still the last one");
    key.enter(Ask::write(b));
    assert_eq!(shown(&key), None);
    assert_eq!(lost(&mut key, a).1, None);
    assert_eq!(key.state.to_parts().note, None, "nothing is left of it");
}

#[test]
fn kept_note_outlives_its_epoch_and_the_token() {
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    let token = key.enter(Ask::write(a)).token;
    noted(&mut key, a, 1, "a", MAX_NOTE_KEEP);
    let written = key.now;
    key.release(a);
    key.pass(TOKEN_RETENTION * 2);
    let b = key.next('b');
    key.enter(Ask::write(b));
    key.release(b);
    key.now = written;
    key.pass(MAX_NOTE_KEEP - ms(1));
    let note = key.inspect().note.expect("kept");
    assert_eq!((note.token, note.kept_for), (token, ms(1)));
    key.pass(ms(1));
    assert_eq!(key.inspect().note, None);
    assert!(key.state.stored_end() >= key.at());
}

#[test]
fn note_lives_as_long_as_its_token() {
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    key.enter(Ask::write(a).lease(secs(1)));
    noted(&mut key, a, 1, "a", NONE);
    key.now = key.state.stored_end().as_micros() - 1;
    assert!(key.inspect().token.is_some() && shown(&key).is_some());
    key.now += 1;
    assert_eq!(shown(&key), None);
}

#[test]
fn conversion_starts_an_epoch_for_notes_too() {
    let (mut key, [a]) = Key::rw().attempts(['a']);
    let token = key.enter(Ask::write(a)).token;
    noted(&mut key, a, 5, "wrote", NONE);
    key.convert(a, token, Mode::Shared);
    assert_eq!(shown(&key), None);
    assert_eq!(noted(&mut key, a, 0, "reads", NONE).bytes, b"reads");
}

#[test]
fn readers_share_the_versions_of_their_epoch() {
    let (mut key, [a, b]) = Key::rw().attempts(['a', 'b']);
    key.enter(Ask::read(a));
    key.enter(Ask::read(b));
    noted(&mut key, a, 2, "a", NONE);
    assert_eq!(noted(&mut key, b, 1, "b", NONE).bytes, b"a");
    assert_eq!(noted(&mut key, b, 3, "b", NONE).bytes, b"b");
}

#[test]
fn permits_note_under_their_own_tokens() {
    let (mut key, [a, b]) = Key::semaphore(2).attempts(['a', 'b']);
    key.enter(Ask::permits(a, 1));
    key.enter(Ask::permits(b, 1));
    noted(&mut key, a, 7, "older", secs(5));
    assert_eq!(noted(&mut key, b, 1, "newer", NONE).bytes, b"newer");
    assert_eq!(noted(&mut key, a, 8, "older", secs(5)).bytes, b"newer");
}

#[test]
fn revoked_holder_leaves_notes_until_it_expires() {
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    let token = key.enter(Ask::write(a)).token;
    assert_eq!(key.forced(token, ForceMode::Revoke), 1);
    noted(&mut key, a, 1, "a", secs(5));
    assert_eq!(key.forced(token, ForceMode::Now), 1);
    let (reason, note) = lost(&mut key, a);
    assert_eq!(reason, EndReason::Forced);
    assert_eq!(note.expect("kept").bytes, b"a");
}

#[test]
fn late_copy_after_the_state_has_ended_does_nothing() {
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    key.enter(Ask::write(a));
    noted(&mut key, a, 1, "a", secs(60));
    key.now = key.state.stored_end().as_micros();
    assert_eq!(lost(&mut key, a), (EndReason::Unknown, None));
    assert_eq!(key.inspect().note, None);
}

#[test]
fn bounds_of_a_note() {
    let (mut key, [a]) = Key::mutex().attempts(['a']);
    let note = |bytes: usize, keep| Note::new(name(), a, 1, vec![7; bytes], keep);
    assert!(note(MAX_NOTE_BYTES, MAX_NOTE_KEEP).is_ok());
    let refused = note(MAX_NOTE_BYTES + 1, NONE).expect_err("too long");
    let says = "a note has at most 128 bytes, this one has 129";
    assert_eq!(refused.to_string(), says);
    let refused = note(0, MAX_NOTE_KEEP + ms(1)).expect_err("too long");
    let says = refused.to_string();
    assert!(says.starts_with("a note is kept for at most "), "{says}");
    key.enter(Ask::write(a));
    assert_eq!(noted(&mut key, a, 1, "", NONE).bytes, b"");
}
