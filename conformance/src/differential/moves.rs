//! Moves: the possible steps of a sequence, and how they are drawn.
//!
//! A move holds few names and times. The times are for a unit of 1 ms, and are scaled when it is
//! played. It picks an attempt or a command when it is played, so a
//! sequence stays meaningful while proptest removes moves from it.

use std::time::Duration;

use leasehold_api::bounds::MAX_NOTE_BYTES;
use leasehold_api::{ForceMode, Kind, Limits, LockSpec, Mode};
use proptest::prelude::*;

/// The number of keys of one sequence.
pub(super) const KEYS: usize = 3;
/// The number of keys that single moves use. They are the first keys.
const SHARED_KEYS: usize = 2;
/// The index of the key that only scenarios use.
const SCENARIO_KEY: usize = 2;
/// The number of sessions. The first always listens, the second sometimes, the third never.
pub(super) const SESSIONS: usize = 3;

/// A sequence of moves.
#[derive(Clone, Debug)]
pub(super) struct Script {
    /// The spec that most acquires of each key use.
    pub(super) specs: [LockSpec; KEYS],
    /// Whether the second session listens at first.
    pub(super) listening: bool,
    pub(super) moves: Vec<Move>,
}

/// A step of a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) enum Move {
    Acquire(AcquireMove),
    /// Two acquires in one batch.
    Acquires([AcquireMove; 2]),
    /// A poll of `batch` attempts in one batch, starting with the `which`-th newest.
    Poll {
        which: usize,
        batch: usize,
        listening: bool,
    },
    Renew {
        which: usize,
        batch: usize,
        lease: Lease,
    },
    Release {
        which: usize,
        batch: usize,
    },
    Convert {
        which: usize,
        to: Mode,
        old: bool,
    },
    Force {
        key: usize,
        how: ForceMode,
        old: bool,
    },
    Inspect {
        key: usize,
    },
    Note {
        which: usize,
        version: u32,
        /// The length of the note, whose first byte is its version.
        length: usize,
        keep: Lease,
    },
    /// Repeats the command that was sent `back` commands ago.
    Again {
        back: usize,
    },
    Sleep(Duration),
    /// Sleeps until a [`Lease::Short`] has expired and a [`Deliver::Early`] is in its window.
    SleepUnit,
    /// The second session starts to listen, or stops.
    Listen(bool),
    /// Puts a new key into this slot.
    Fresh {
        key: usize,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct AcquireMove {
    pub(super) key: usize,
    pub(super) session: usize,
    pub(super) owner: u64,
    /// The number of permits. On a reader/writer lock, 1 writes and more reads.
    pub(super) weight: u32,
    pub(super) lease: Lease,
    pub(super) wait: Option<Waiter>,
    pub(super) deliver: Deliver,
    pub(super) floor: Floor,
    pub(super) limits: Limits,
    /// Uses another kind of lock than the key's spec.
    pub(super) other_kind: bool,
    /// Uses a sequence that the session skipped, which is older than its last attempt.
    pub(super) old: bool,
}

/// The length of a lease, for a unit of 1 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lease {
    /// Usually long enough for one more command, but not for two.
    Short,
    Millis(u64),
}

/// A lease that does not end within a sequence.
const LONG: Lease = Lease::Millis(3_000);

/// The delivery deadline of an acquire.
#[derive(Clone, Copy, Debug)]
pub(super) enum Deliver {
    /// In µs from now.
    In(i64),
    /// Too far ahead when it is executed immediately.
    Early,
}

/// How an acquire waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) listening: bool,
    /// The deadline of the wait, in µs from now.
    pub(super) until: Option<i64>,
}

/// The token floor of an acquire.
#[derive(Clone, Copy, Debug)]
pub(super) enum Floor {
    None,
    /// Relative to the last token seen on the key.
    Near(i64),
    /// Above the allowed maximum.
    TooHigh,
}

/// An acquire that is always in time, does not wait and reaches no limit.
const fn plain(key: usize, session: usize, owner: u64, weight: u32, lease: Lease) -> AcquireMove {
    AcquireMove {
        key,
        session,
        owner,
        weight,
        lease,
        wait: None,
        deliver: Deliver::In(5_000_000),
        floor: Floor::None,
        limits: Limits {
            holds: 100,
            waiters: 100,
            holders: 100,
        },
        other_kind: false,
        old: false,
    }
}

fn asks() -> impl Strategy<Value = AcquireMove> {
    let waiter = (
        prop::bool::weighted(0.8),
        prop::option::weighted(0.2, -1_000..15_000_i64),
    );
    let wait = prop::option::weighted(
        0.75,
        waiter.prop_map(|(listening, until)| Waiter { listening, until }),
    );
    let deliver = prop_oneof![
        16 => Just(5_000_000_i64),
        1 => Just(-1_000),
        1 => 0..400_i64,
        1 => 9_990_000..10_002_000_i64,
    ]
    .prop_map(Deliver::In);
    let floor = prop_oneof![
        16 => Just(Floor::None),
        3 => (-3..4_i64).prop_map(Floor::Near),
        1 => Just(Floor::TooHigh),
    ];
    let few = |often| prop_oneof![10 - often => Just(100_u32), often => 0..3_u32];
    let limits = (few(3), few(4), few(2)).prop_map(|(holds, waiters, holders)| Limits {
        holds,
        waiters,
        holders,
    });
    let target = (0..SHARED_KEYS, 0..SESSIONS, 0..3_u64, 1..4_u32, leases());
    let flags = (prop::bool::weighted(0.08), prop::bool::weighted(0.2));
    (target, wait, deliver, floor, limits, flags).prop_map(
        |(
            (key, session, owner, weight, lease),
            wait,
            deliver,
            floor,
            limits,
            (other_kind, old),
        )| AcquireMove {
            wait,
            deliver,
            floor,
            limits,
            other_kind,
            old,
            ..plain(key, session, owner, weight, lease)
        },
    )
}

/// Short leases expire within a sequence. The long one does not, even on a slow machine.
fn leases() -> impl Strategy<Value = Lease> {
    prop_oneof![
        1 => (1..4_u64).prop_map(Lease::Millis),
        2 => (4..30_u64).prop_map(Lease::Millis),
        4 => Just(LONG),
    ]
}

fn which() -> impl Strategy<Value = usize> {
    prop_oneof![3 => 0..3_usize, 2 => 3..12_usize]
}

fn batch() -> impl Strategy<Value = usize> {
    prop_oneof![4 => Just(1_usize), 1 => 2..4_usize]
}

fn to() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Shared), Just(Mode::Exclusive)]
}

fn how() -> impl Strategy<Value = ForceMode> {
    prop_oneof![Just(ForceMode::Revoke), Just(ForceMode::Now)]
}

/// A note of a holder, often with the version of an earlier one.
fn note(which: BoxedStrategy<usize>) -> impl Strategy<Value = Move> {
    let keep = prop_oneof![2 => Just(Lease::Millis(0)), 3 => leases()];
    let length = prop_oneof![3 => 1..9_usize, 1 => Just(MAX_NOTE_BYTES)];
    (which, 0..4_u32, length, keep).prop_map(|(which, version, length, keep)| Move::Note {
        which,
        version,
        length,
        keep,
    })
}

/// A single command about an attempt.
fn about(which: usize, lease: Lease) -> impl Strategy<Value = Move> {
    prop_oneof![
        2 => any::<bool>().prop_map(move |listening| Move::Poll { which, batch: 1, listening }),
        2 => Just(Move::Renew { which, batch: 1, lease }),
        2 => (to(), prop::bool::weighted(0.1))
            .prop_map(move |(to, old)| Move::Convert { which, to, old }),
        1 => Just(Move::Release { which, batch: 1 }),
        1 => note(Just(which).boxed()),
    ]
}

fn single() -> impl Strategy<Value = Move> {
    prop_oneof![
        24 => asks().prop_map(Move::Acquire),
        6 => [asks(), asks()].prop_map(Move::Acquires),
        9 => (which(), batch(), any::<bool>())
            .prop_map(|(which, batch, listening)| Move::Poll { which, batch, listening }),
        7 => (which(), batch(), leases())
            .prop_map(|(which, batch, lease)| Move::Renew { which, batch, lease }),
        10 => (which(), batch()).prop_map(|(which, batch)| Move::Release { which, batch }),
        8 => (which(), to(), prop::bool::weighted(0.3))
            .prop_map(|(which, to, old)| Move::Convert { which, to, old }),
        3 => (0..SHARED_KEYS, how(), prop::bool::weighted(0.4))
            .prop_map(|(key, how, old)| Move::Force { key, how, old }),
        5 => (0..SHARED_KEYS).prop_map(|key| Move::Inspect { key }),
        6 => note(which().boxed()),
        14 => which().prop_map(|back| Move::Again { back }),
        4 => (1..4_000_u64).prop_map(|us| Move::Sleep(Duration::from_micros(us))),
        1 => (6_000..20_000_u64).prop_map(|us| Move::Sleep(Duration::from_micros(us))),
        1 => any::<bool>().prop_map(Move::Listen),
        1 => (0..SHARED_KEYS).prop_map(|key| Move::Fresh { key }),
    ]
}

/// An event in the life of an attempt. The sequence sends commands about the attempt before and
/// after the event, and repeats them.
fn fate(event: impl Strategy<Value = Move>, lease: Lease) -> impl Strategy<Value = Vec<Move>> {
    // A sleep sends nothing, so the command before it is the newest.
    let back = usize::from(lease == LONG);
    let attempt = (0..SESSIONS, 0..3_u64, 1..3_u32);
    (attempt, about(0, lease), event, about(0, lease)).prop_map(
        move |((session, owner, weight), before, event, after)| {
            vec![
                Move::Fresh { key: SCENARIO_KEY },
                Move::Acquire(plain(SCENARIO_KEY, session, owner, weight, lease)),
                before,
                event,
                Move::Again { back },
                after,
                Move::Again { back: 0 },
                // Repeats the event; after a sleep, the command before it.
                Move::Again { back: 3 },
            ]
        },
    )
}

/// An attempt that expires unnoticed until its own next command.
fn expired_unseen() -> impl Strategy<Value = Vec<Move>> {
    let attempt = (0..SESSIONS, 0..3_u64, 1..3_u32);
    (attempt, about(0, LONG)).prop_map(|((session, owner, weight), first)| {
        vec![
            Move::Fresh { key: SCENARIO_KEY },
            Move::Acquire(plain(SCENARIO_KEY, session, owner, weight, Lease::Short)),
            Move::SleepUnit,
            first,
            Move::Again { back: 0 },
        ]
    })
}

/// A command that is repeated immediately.
fn twice() -> impl Strategy<Value = Vec<Move>> {
    let old = true;
    let force = (0..SHARED_KEYS, how()).prop_map(move |(key, how)| Move::Force { key, how, old });
    let late = asks().prop_map(|ask| {
        let deliver = Deliver::In(-1_000);
        Move::Acquire(AcquireMove { deliver, ..ask })
    });
    let other = (which(), leases()).prop_flat_map(|(which, lease)| about(which, lease));
    let inspect = (0..SHARED_KEYS).prop_map(|key| Move::Inspect { key });
    prop_oneof![1 => force, 2 => late, 4 => other, 2 => inspect]
        .prop_map(|first| vec![first, Move::Again { back: 0 }])
}

/// An acquire that is refused before its delivery window opens, and then repeated in time.
fn early() -> impl Strategy<Value = Vec<Move>> {
    asks().prop_map(|ask| {
        let deliver = Deliver::Early;
        vec![
            Move::Acquire(AcquireMove { deliver, ..ask }),
            Move::SleepUnit,
            Move::Again { back: 0 },
        ]
    })
}

/// An upgrade is refused while another owner reads. The sole reader repeats it, then downgrades and renews.
fn upgrade() -> impl Strategy<Value = Vec<Move>> {
    (0..SESSIONS, 0..SESSIONS).prop_map(|(one, other)| {
        let convert = |to, old| Move::Convert { which: 1, to, old };
        let down = convert(Mode::Shared, false);
        vec![
            Move::Fresh { key: SCENARIO_KEY },
            Move::Acquire(plain(SCENARIO_KEY, one, 0, 2, LONG)),
            Move::Acquire(plain(SCENARIO_KEY, other, 1, 2, LONG)),
            convert(Mode::Exclusive, false),
            Move::Release { which: 0, batch: 1 },
            Move::Again { back: 1 },
            // An older token (epoch): refused.
            convert(Mode::Shared, true),
            // Takes effect. Its repetition names an older token.
            down,
            Move::Again { back: 0 },
            // An older token again.
            convert(Mode::Exclusive, true),
            // Both find the hold already shared.
            down,
            Move::Again { back: 0 },
            Move::Renew {
                which: 1,
                batch: 1,
                lease: LONG,
            },
            Move::Again { back: 0 },
        ]
    })
}

/// A holder leaves a note, and then older ones. A note after the release is not written.
fn notes() -> impl Strategy<Value = Vec<Move>> {
    (0..SESSIONS, 0..3_u64, any::<bool>()).prop_map(|(session, owner, kept)| {
        let note = |version, length| Move::Note {
            which: 0,
            version,
            length,
            keep: if kept { LONG } else { Lease::Millis(0) },
        };
        vec![
            Move::Fresh { key: SCENARIO_KEY },
            Move::Acquire(plain(SCENARIO_KEY, session, owner, 1, LONG)),
            note(1, 5),
            note(3, 8),
            note(2, 7),
            Move::Again { back: 0 },
            Move::Inspect { key: SCENARIO_KEY },
            Move::Release { which: 0, batch: 1 },
            note(4, 6),
            Move::Inspect { key: SCENARIO_KEY },
            Move::Again { back: 0 },
            Move::Acquire(plain(SCENARIO_KEY, session, owner, 1, LONG)),
            Move::Inspect { key: SCENARIO_KEY },
        ]
    })
}

/// A holder tries to take another hold. Then one of the two is released.
fn nested() -> impl Strategy<Value = Vec<Move>> {
    let outer = (0..SESSIONS, 0..3_u64, 1..4_u32);
    (outer, asks(), any::<bool>(), 0..2_usize).prop_map(
        |((session, owner, weight), ask, early, which)| {
            let mut inner = AcquireMove {
                key: SCENARIO_KEY,
                session,
                owner,
                other_kind: false,
                old: false,
                ..ask
            };
            let mut moves = vec![
                Move::Fresh { key: SCENARIO_KEY },
                Move::Acquire(plain(SCENARIO_KEY, session, owner, weight, LONG)),
            ];
            if early {
                inner.deliver = Deliver::Early;
                moves.extend([
                    Move::Acquire(inner),
                    Move::SleepUnit,
                    Move::Again { back: 0 },
                ]);
            } else {
                moves.push(Move::Acquire(inner));
            }
            moves.push(Move::Release { which, batch: 1 });
            moves
        },
    )
}

/// A waiter that doesn't listen becomes unreachable, so that the key may be free while it waits. It
/// polls and becomes unreachable again, several times.
fn unreachable() -> impl Strategy<Value = Vec<Move>> {
    (1..SESSIONS, leases(), 0..4_usize).prop_map(|(session, lease, rounds)| {
        let (listening, until) = (true, None);
        let waiter = AcquireMove {
            wait: Some(Waiter { listening, until }),
            ..plain(SCENARIO_KEY, session, 1, 1, lease)
        };
        let holder = |owner| Move::Acquire(plain(SCENARIO_KEY, 0, owner, 1, LONG));
        let (inspect, again) = (Move::Inspect { key: SCENARIO_KEY }, Move::Again { back: 0 });
        let release = |which| Move::Release { which, batch: 1 };
        let mut moves = vec![
            Move::Fresh { key: SCENARIO_KEY },
            holder(0),
            Move::Acquire(waiter),
            release(1),
        ];
        moves.extend([inspect, again]);
        for round in 1..=rounds {
            let poll = Move::Poll {
                which: round,
                batch: 1,
                listening,
            };
            moves.extend([holder(2), poll, release(0), inspect]);
        }
        moves
    })
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let (key, old) = (SCENARIO_KEY, false);
    let force = |how| Just(Move::Force { key, how, old });
    let released = Just(Move::Release { which: 0, batch: 1 });
    let expired = Just(Move::SleepUnit);
    prop_oneof![
        64 => single().prop_map(|one| vec![one]),
        3 => fate(force(ForceMode::Now), LONG),
        3 => fate(force(ForceMode::Revoke), LONG),
        1 => fate(released, LONG),
        4 => fate(expired, Lease::Short),
        6 => expired_unseen(),
        10 => early(),
        2 => notes(),
        2 => upgrade(),
        6 => nested(),
        1 => unreachable(),
        8 => twice(),
    ]
}

/// The spec for a kind of lock. `choice` covers all kinds; a reader/writer lock has the most outcomes.
fn spec(choice: usize, waiter_lease: u64) -> LockSpec {
    let spec = match choice {
        0 => Ok(LockSpec::mutex()),
        1..4 => Ok(LockSpec::rw_lock()),
        _ => LockSpec::semaphore(3),
    };
    spec.and_then(|spec| spec.with_waiter_lease(Duration::from_millis(waiter_lease)))
        .expect("every choice is valid")
}

/// The mode that a weight means for this kind of lock.
pub(super) const fn mode(kind: Kind, weight: u32) -> Mode {
    match (kind, weight) {
        (Kind::Semaphore, permits) => Mode::Permits(permits),
        (Kind::RwLock, 2..) => Mode::Shared,
        (Kind::Mutex | Kind::RwLock, _) => Mode::Exclusive,
    }
}

/// The strategy for sequences.
pub(super) fn scripts() -> impl Strategy<Value = Script> {
    let choice = || (0..5_usize, prop::sample::select(vec![12_u64, 3_000]));
    let specs = [choice(), choice(), choice()]
        .prop_map(|choices| choices.map(|(kind, waiter_lease)| spec(kind, waiter_lease)));
    let moves = prop::collection::vec(moves(), 1..60).prop_map(|parts| parts.concat());
    (specs, any::<bool>(), moves).prop_map(|(specs, listening, moves)| Script {
        specs,
        listening,
        moves,
    })
}
