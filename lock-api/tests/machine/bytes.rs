//! A state as bytes. `random` checks the round trip of every state.

use leasehold_api::machine::{Command, DecodeError, Env, State};
use leasehold_api::{
    BackendError, Convert, EndReason, FencingToken, ForceMode, ForceRelease, Kind, Label, LockSpec,
    Note, Operation, OwnerId, Poll, Release, Renew,
};
use proptest::prelude::*;

use crate::support::{Ask, Key, assert_is, ms, name, session};

/// The positions of fields in [`full`]: behind magic, version and spec of 14 bytes.
const HOLDER: usize = 4 + 13 + 5 * 8 + 4;

/// A key of this spec with holders and waiters of several sessions.
fn busy(spec: LockSpec, asks: [fn(Operation) -> Ask; 4]) -> Key {
    let mut key = Key::of(spec);
    for (letter, ask) in ['a', 'b', 'c', 'd'].into_iter().zip(asks) {
        let operation = key.next(letter);
        let ask = ask(operation).until(key.at().saturating_add(ms(3_000)));
        key.ask(if letter == 'd' { ask.floor(7) } else { ask });
    }
    key
}

fn samples() -> Vec<Key> {
    let semaphore = LockSpec::semaphore(3).expect("valid");
    let permits: [fn(Operation) -> Ask; 4] = [
        |o| Ask::permits(o, 1),
        |o| Ask::permits(o, 2),
        |o| Ask::permits(o, 1),
        |o| Ask::permits(o, 3),
    ];
    let readers: [fn(Operation) -> Ask; 4] = [Ask::read, Ask::read, Ask::write, Ask::read];
    vec![
        busy(LockSpec::mutex(), [Ask::write; 4]),
        busy(LockSpec::rw_lock(), readers),
        busy(semaphore, permits),
        nested(),
        with_note(),
    ]
}

/// A key with a holder that holds twice, and a waiter of the same owner.
fn nested() -> Key {
    let (mut key, [outer, inner]) = Key::rw().nested();
    key.enter(Ask::write(outer));
    key.enter(Ask::read(inner));
    let (other, own) = (key.next('b'), key.next_of('b', 1));
    key.queue(Ask::read(other).not_listening());
    key.queue(Ask::read(own));
    key
}

/// A held mutex with a note and a waiter.
fn with_note() -> Key {
    let (mut key, a, _) = Key::awaited();
    key.note(a, 7, b"note", ms(3_000));
    key
}

/// A mutex that is held under the longest label.
fn full() -> State {
    let (mut key, [operation]) = Key::mutex().attempts(['a']);
    let mut request = Ask::write(operation).request(&key);
    request.label = Label::new("a".repeat(32)).expect("the longest label");
    key.deliver(request);
    key.state
}

fn malformed(bytes: &[u8]) -> String {
    match State::from_bytes(bytes) {
        Err(error @ DecodeError::Malformed { .. }) => error.to_string(),
        other => panic!("{other:?} for malformed bytes"),
    }
}

#[test]
fn samples_survive() {
    for key in samples() {
        let bytes = key.state.to_bytes();
        assert_eq!(State::from_bytes(&bytes), Ok(key.state));
    }
}

#[test]
fn held_mutex_is_short() {
    let length = full().to_bytes().len();
    assert!(length <= 200, "{length} bytes");
    assert!(State::default().to_bytes().len() <= 60);
}

/// Another version must still read what this one wrote. If this fails, raise the format version.
#[test]
fn layout_is_stable() {
    let (mut key, [a, b]) = Key::mutex().attempts(['a', 'b']);
    key.enter(Ask::write(a));
    key.queue(Ask::write(b).floor(5));
    let bytes = key.state.to_bytes();
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let expected = concat!(
        "4c485303",
        "4d01000000404b4c0000000000", // magic, version, spec
        "00ca9a3b00000000",
        "403ca06500000000",
        "808d643d00000000", // token, stored end, earliest
        "0000000000000000",
        "0100000000000000", // last scan, next ticket
        "01000000",
        "61616161616161616161616161616161",
        "e803000000000000", // the holder
        "808d643d00000000",
        "00",
        "026131",
        "01000000",
        "0100000000000000",
        "58",
        "01000000",
        "0000000000000000",
        "62626262626262626262626262626262", // the waiter
        "0100000000000000",
        "e803000000000000",
        "58",
        "026231",
        "80c3c90100000000",
        "4015e73b00000000",
        "00",
        "05",
        "0500000000000000",
        "02000000",
        "61616161616161616161616161616161",
        "0100000000000000", // the watermarks
        "00f7cb3c00000000",
        "00",
        "62626262626262626262626262626262",
        "0100000000000000",
        "00f7cb3c00000000",
        "00",
    );
    assert_eq!(hex, expected);
}

/// Only a state with a note has version 4, and its other parts are those of version 3.
#[test]
fn note_is_at_the_end() {
    let mut key = with_note();
    let bytes = key.state.to_bytes();
    let mut parts = key.state.to_parts();
    parts.note = None;
    key.state = State::from_parts(parts).expect("consistent");
    let without = key.state.to_bytes();
    let (head, note) = bytes.split_at(without.len());
    assert_eq!((head[3], without[3]), (4, 3));
    assert_eq!(head[4..], without[4..]);
    let mut expected = key.now.to_le_bytes().to_vec(); // the token
    expected.extend(7_u32.to_le_bytes());
    expected.extend((key.now + 3_000_000).to_le_bytes());
    expected.extend(*b"\x04note");
    assert_eq!(note, expected);
    let mut longest = bytes.clone();
    longest.truncate(bytes.len() - 5);
    longest.push(129);
    longest.extend([0; 129]);
    let refused = State::from_bytes(&longest).expect_err("a note is shorter");
    assert_is!(refused => DecodeError::Inconsistent(_));
}

#[test]
fn other_values_are_foreign() {
    for bytes in [&b""[..], b"LH", b"some text", b"\0\0\0\0"] {
        assert_eq!(State::from_bytes(bytes), Err(DecodeError::NotAState));
    }
    // Versions 1 and 2 had a policy in the spec.
    for other in [1, 2, 5] {
        let mut bytes = full().to_bytes();
        bytes[3] = other;
        let error = State::from_bytes(&bytes).expect_err("an unknown version");
        assert_is!(error => DecodeError::UnknownVersion { version, .. } if *version == other);
        let says = format!("format version {other}");
        let error = BackendError::from(error);
        assert_is!(error => BackendError::ForeignValue { found, .. } if *found == says);
    }
}

#[test]
fn damaged_bytes_are_refused() {
    let bytes = full().to_bytes();
    for length in 4..bytes.len() {
        malformed(&bytes[..length]);
    }
    let mut longer = bytes.clone();
    longer.push(0);
    let says = "a malformed state: bytes behind the end";
    assert_eq!(malformed(&longer), says);
    for count in [100, u32::MAX] {
        let mut many = bytes.clone();
        many[HOLDER - 4..HOLDER].copy_from_slice(&count.to_le_bytes());
        assert_eq!(malformed(&many), "a malformed state: holders");
    }
    let mut capacity = bytes;
    capacity[5] = 2;
    assert_eq!(malformed(&capacity), "a malformed state: spec");
}

#[test]
fn every_reason_survives() {
    for reason in EndReason::ALL.iter().copied().map(Some) {
        let mut parts = full().to_parts();
        parts.watermarks[0].reason = reason;
        let state = State::from_parts(parts).expect("any reason is consistent");
        assert_eq!(State::from_bytes(&state.to_bytes()), Ok(state));
    }
}

#[test]
fn reserved_bits_are_refused() {
    let flags = HOLDER + 16 + 8 + 8;
    let with = |bits: u8| {
        let mut bytes = full().to_bytes();
        bytes[flags] = bits;
        bytes
    };
    let both = State::from_bytes(&with(3)).expect("two known bits");
    let parts = both.to_parts();
    assert!(parts.holders[0].revoked && parts.holders[0].upgraded);
    for bit in 2..8 {
        let says = "a malformed state: flags of a holder";
        assert_eq!(malformed(&with(1 << bit)), says);
    }
}

#[test]
fn futures_that_hold_an_environment_are_send() {
    const fn send<T: Send>() {}
    send::<Env<'_>>();
}

/// A command of the session `letter` to a state that may be damaged.
fn command(kind: u8, letter: char, sequence: u64, key: &Key) -> Command {
    let operation = Operation {
        session: session(letter),
        sequence,
        owner: OwnerId::from_u64(1_000),
    };
    let token = FencingToken::new(key.state.to_parts().token);
    match kind {
        0 => {
            let ask = match key.spec.kind() {
                Kind::Semaphore => Ask::permits(operation, 1),
                Kind::RwLock if sequence == 2 => Ask::read(operation),
                Kind::Mutex | Kind::RwLock => Ask::write(operation),
            };
            Command::Acquire(ask.request(key))
        }
        1 => Command::Poll(Poll::new(name(), operation, true)),
        2 => Command::Renew(Renew::new(name(), operation, ms(50)).expect("valid")),
        3 => Command::Release(Release::new(name(), operation)),
        4 => Command::Convert(Convert::to_exclusive(name(), operation, token)),
        5 => {
            let request = ForceRelease::new(name(), vec![token]).with_how(ForceMode::Now);
            Command::ForceRelease(request)
        }
        6 => Command::Note(Note::new(name(), operation, 8, [1], ms(9)).expect("valid")),
        _ => Command::Inspect,
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 2_000,
        ..ProptestConfig::default()
    })]

    /// `step` checks its invariants in this build, and panics if one is broken.
    #[test]
    fn damaged_bytes_never_panic(
        sample in 0..5_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        end in prop::option::weighted(0.2, any::<prop::sample::Index>()),
        commands in prop::collection::vec(
            (0..8_u8, prop::sample::select(vec!['a', 'b', 'c', 'd']), 1..4_u64, 0..4_000_u64),
            1..12,
        ),
    ) {
        let mut key = samples().swap_remove(sample);
        let mut bytes = key.state.to_bytes();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(end) = end {
            bytes.truncate(end.index(bytes.len()));
        }
        if let Ok(state) = State::from_bytes(&bytes) {
            prop_assert_eq!(State::from_bytes(&state.to_bytes()), Ok(state.clone()));
            key.state = state;
            for (kind, letter, sequence, pass) in commands {
                key.pass(ms(pass));
                let command = command(kind, letter, sequence, &key);
                key.step(&command);
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(tail in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = State::from_bytes(&tail);
        let mut bytes = full().to_bytes();
        bytes.truncate(HOLDER - 4);
        bytes.extend(tail);
        let _ = State::from_bytes(&bytes);
    }
}
