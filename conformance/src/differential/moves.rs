//! Moves: the possible steps of a sequence, and how they are drawn.
//!
//! A move says little about names and times; it chooses among what there is when it is played, so
//! that a sequence stays meaningful while proptest takes moves out of it.

use std::time::Duration;

use leasehold_api::{ForceHow, Kind, Limits, LockSpec, Mode, Policy};
use proptest::prelude::*;

/// Keys of one sequence.
pub(super) const KEYS: usize = 3;
/// Of these, those that everything happens to; the last is for stories that need it for themselves.
const BUSY: usize = 2;
const OWN: usize = 2;
/// Sessions; the first listens always, the second now and then, the third never.
pub(super) const SESSIONS: usize = 3;

/// A sequence of moves.
#[derive(Clone, Debug)]
pub(super) struct Script {
    /// What each key is usually used as.
    pub(super) specs: [LockSpec; KEYS],
    /// Whether the second session listens at first.
    pub(super) listening: bool,
    pub(super) moves: Vec<Move>,
}

/// A step of a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) enum Move {
    Acquire(Ask),
    /// Two in one batch.
    Acquires([Ask; 2]),
    /// A poll of this many attempts in one batch, the `which`-th newest first.
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
        how: ForceHow,
        old: bool,
    },
    Inspect {
        key: usize,
    },
    /// The command that was sent `back` commands ago, again.
    Again {
        back: usize,
    },
    Sleep(Duration),
    /// Until a [`Lease::Short`] is over, and what was [`Deliver::Early`] is in its window.
    SleepUnit,
    /// The second session starts to listen, or stops.
    Listen(bool),
    /// The slot of this key gets a key that was never used.
    Fresh {
        key: usize,
    },
}

/// An acquire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) key: usize,
    pub(super) session: usize,
    pub(super) owner: u64,
    /// 1 writes; more reads, or takes so many permits.
    pub(super) weight: u32,
    pub(super) lease: Lease,
    pub(super) wait: Option<Waiter>,
    pub(super) deliver: Deliver,
    pub(super) floor: Floor,
    pub(super) limits: Limits,
    /// Takes the key for something that it is not.
    pub(super) other: bool,
    /// A sequence that the session skipped before: an older attempt than the last.
    pub(super) old: bool,
}

/// The length of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lease {
    /// Long enough for one more command, if all goes well, and not for more.
    Short,
    Millis(u64),
}

/// A lease that does not end within a sequence.
const LONG: Lease = Lease::Millis(3_000);

/// The delivery deadline of an acquire.
#[derive(Clone, Copy, Debug)]
pub(super) enum Deliver {
    /// From now, in µs.
    In(i64),
    /// Too far ahead, if it is executed at once.
    Early,
}

/// How an acquire waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) listening: bool,
    /// The waiter's own deadline, from now, in µs.
    pub(super) until: Option<i64>,
}

/// The token floor that an acquire brings.
#[derive(Clone, Copy, Debug)]
pub(super) enum Floor {
    None,
    /// Relative to the last token seen on the key.
    Near(i64),
    /// More than a day ahead.
    TooHigh,
}

/// An acquire that is certain to be in time, waits for nothing and sets no limits.
const fn plain(key: usize, session: usize, owner: u64, weight: u32, lease: Lease) -> Ask {
    Ask {
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
        other: false,
        old: false,
    }
}

fn asks() -> impl Strategy<Value = Ask> {
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
    let who = (0..BUSY, 0..SESSIONS, 0..3_u64, 1..4_u32, leases());
    let odd = (prop::bool::weighted(0.08), prop::bool::weighted(0.2));
    (who, wait, deliver, floor, limits, odd).prop_map(
        |((key, session, owner, weight, lease), wait, deliver, floor, limits, (other, old))| Ask {
            wait,
            deliver,
            floor,
            limits,
            other,
            old,
            ..plain(key, session, owner, weight, lease)
        },
    )
}

/// Short ones expire on the way, long ones do not even on a slow machine.
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

fn how() -> impl Strategy<Value = ForceHow> {
    prop_oneof![Just(ForceHow::Revoke), Just(ForceHow::Now)]
}

/// A short command about an attempt, to be sent before and after something happens to it.
fn about(which: usize, lease: Lease) -> impl Strategy<Value = Move> {
    prop_oneof![
        2 => any::<bool>().prop_map(move |listening| Move::Poll { which, batch: 1, listening }),
        2 => Just(Move::Renew { which, batch: 1, lease }),
        2 => (to(), prop::bool::weighted(0.1))
            .prop_map(move |(to, old)| Move::Convert { which, to, old }),
        1 => Just(Move::Release { which, batch: 1 }),
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
        3 => (0..BUSY, how(), prop::bool::weighted(0.4))
            .prop_map(|(key, how, old)| Move::Force { key, how, old }),
        5 => (0..BUSY).prop_map(|key| Move::Inspect { key }),
        14 => which().prop_map(|back| Move::Again { back }),
        4 => (1..4_000_u64).prop_map(|us| Move::Sleep(Duration::from_micros(us))),
        1 => (6_000..20_000_u64).prop_map(|us| Move::Sleep(Duration::from_micros(us))),
        1 => any::<bool>().prop_map(Move::Listen),
        1 => (0..BUSY).prop_map(|key| Move::Fresh { key }),
    ]
}

/// What happens to an attempt, told by what is said about it before and after, and once more.
fn fate(what: impl Strategy<Value = Move>, lease: Lease) -> impl Strategy<Value = Vec<Move>> {
    // A sleep sends nothing, so what was said before it is the newest.
    let back = usize::from(lease == LONG);
    let who = (0..SESSIONS, 0..3_u64, 1..3_u32);
    (who, about(0, lease), what, about(0, lease)).prop_map(
        move |((session, owner, weight), before, what, after)| {
            vec![
                Move::Fresh { key: OWN },
                Move::Acquire(plain(OWN, session, owner, weight, lease)),
                before,
                what,
                Move::Again { back },
                after,
                Move::Again { back: 0 },
                // What happened, once more; for a sleep, what was said before it.
                Move::Again { back: 3 },
            ]
        },
    )
}

/// An attempt that has expired, and nobody but its own next command can have noticed.
fn expired_unseen() -> impl Strategy<Value = Vec<Move>> {
    let who = (0..SESSIONS, 0..3_u64, 1..3_u32);
    (who, about(0, LONG)).prop_map(|((session, owner, weight), first)| {
        vec![
            Move::Fresh { key: OWN },
            Move::Acquire(plain(OWN, session, owner, weight, Lease::Short)),
            Move::SleepUnit,
            first,
            Move::Again { back: 0 },
        ]
    })
}

/// A command that is repeated immediately.
fn twice() -> impl Strategy<Value = Vec<Move>> {
    let force = (0..BUSY, how()).prop_map(|(key, how)| Move::Force {
        key,
        how,
        old: true,
    });
    let late = asks().prop_map(|ask| {
        let deliver = Deliver::In(-1_000);
        Move::Acquire(Ask { deliver, ..ask })
    });
    let other = (which(), leases()).prop_flat_map(|(which, lease)| about(which, lease));
    let look = (0..BUSY).prop_map(|key| Move::Inspect { key });
    prop_oneof![1 => force, 2 => late, 4 => other, 2 => look]
        .prop_map(|first| vec![first, Move::Again { back: 0 }])
}

/// An acquire that comes before its window and is told so, and then in time.
fn early() -> impl Strategy<Value = Vec<Move>> {
    asks().prop_map(|ask| {
        let deliver = Deliver::Early;
        vec![
            Move::Acquire(Ask { deliver, ..ask }),
            Move::SleepUnit,
            Move::Again { back: 0 },
        ]
    })
}

/// An upgrade that is refused while another reads, and comes again when it is alone; and the way
/// back.
fn upgrade() -> impl Strategy<Value = Vec<Move>> {
    (0..SESSIONS, 0..SESSIONS).prop_map(|(one, other)| {
        let down = Move::Convert {
            which: 1,
            to: Mode::Shared,
            old: false,
        };
        vec![
            Move::Fresh { key: OWN },
            Move::Acquire(plain(OWN, one, 0, 2, LONG)),
            Move::Acquire(plain(OWN, other, 1, 2, LONG)),
            Move::Convert {
                which: 1,
                to: Mode::Exclusive,
                old: false,
            },
            Move::Release { which: 0, batch: 1 },
            Move::Again { back: 1 },
            // It takes effect, arrives again in a past epoch, and then twice has nothing to do.
            down,
            Move::Again { back: 0 },
            Move::Convert {
                which: 1,
                to: Mode::Exclusive,
                old: true,
            },
            down,
            Move::Again { back: 0 },
        ]
    })
}

/// One more hold, or an attempt at one, by an owner that holds; then one of them ends.
fn nested() -> impl Strategy<Value = Vec<Move>> {
    let outer = (0..SESSIONS, 0..3_u64, 1..4_u32);
    (outer, asks(), any::<bool>(), 0..2_usize).prop_map(
        |((session, owner, weight), ask, early, which)| {
            let mut inner = Ask {
                key: OWN,
                session,
                owner,
                other: false,
                old: false,
                ..ask
            };
            let mut moves = vec![
                Move::Fresh { key: OWN },
                Move::Acquire(plain(OWN, session, owner, weight, LONG)),
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

/// A key that may be free while all its waiters are unreachable, and a waiter that polls and then is
/// unreachable again, several times.
fn unreachable() -> impl Strategy<Value = Vec<Move>> {
    (1..SESSIONS, leases(), 0..4_usize).prop_map(|(deaf, lease, rounds)| {
        let listening = true;
        let waiter = Waiter {
            listening,
            until: None,
        };
        let waiter = Ask {
            wait: Some(waiter),
            ..plain(OWN, deaf, 1, 1, lease)
        };
        let holder = |owner| Move::Acquire(plain(OWN, 0, owner, 1, LONG));
        let (look, again) = (Move::Inspect { key: OWN }, Move::Again { back: 0 });
        let end = |which| Move::Release { which, batch: 1 };
        let mut moves = vec![
            Move::Fresh { key: OWN },
            holder(0),
            Move::Acquire(waiter),
            end(1),
        ];
        moves.extend([look, again]);
        for round in 1..=rounds {
            let poll = Move::Poll {
                which: round,
                batch: 1,
                listening,
            };
            moves.extend([holder(2), poll, end(0), look]);
        }
        moves
    })
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let force = |how| {
        Just(Move::Force {
            key: OWN,
            how,
            old: false,
        })
    };
    let ended = Just(Move::Release { which: 0, batch: 1 });
    let expired = Just(Move::SleepUnit);
    prop_oneof![
        64 => single().prop_map(|one| vec![one]),
        2 => fate(force(ForceHow::Now), LONG),
        2 => fate(force(ForceHow::Revoke), LONG),
        1 => fate(ended, LONG),
        4 => fate(expired, Lease::Short),
        6 => expired_unseen(),
        10 => early(),
        2 => upgrade(),
        6 => nested(),
        1 => unreachable(),
        8 => twice(),
    ]
}

/// All kinds of lock that a key may be used as.
fn spec(choice: usize, waiter_lease: u64) -> LockSpec {
    let rw = |policy| LockSpec::rw_lock().with_policy(policy);
    let spec = match choice {
        0 => Ok(LockSpec::mutex()),
        1 => LockSpec::mutex().with_policy(Policy::Barging),
        2 | 3 => rw(Policy::Fair),
        4 => rw(Policy::Barging),
        5 => rw(Policy::ReaderPreference),
        6 => rw(Policy::WriterPreference),
        7 => LockSpec::semaphore(3).and_then(|spec| spec.with_policy(Policy::Barging)),
        _ => LockSpec::semaphore(3),
    };
    spec.and_then(|spec| spec.with_waiter_lease(Duration::from_millis(waiter_lease)))
        .expect("every choice is valid")
}

/// The mode that a weight stands for on a lock of this kind.
pub(super) const fn mode(kind: Kind, weight: u32) -> Mode {
    match (kind, weight) {
        (Kind::Semaphore, permits) => Mode::Permits(permits),
        (Kind::RwLock, 2..) => Mode::Shared,
        (Kind::Mutex | Kind::RwLock, _) => Mode::Exclusive,
    }
}

/// How to draw sequences.
pub(super) fn scripts() -> impl Strategy<Value = Script> {
    let choice = || (0..9_usize, prop::sample::select(vec![12_u64, 3_000]));
    let specs = [choice(), choice(), choice()]
        .prop_map(|choices| choices.map(|(kind, waiter_lease)| spec(kind, waiter_lease)));
    let moves = prop::collection::vec(moves(), 1..60).prop_map(|parts| parts.concat());
    (specs, any::<bool>(), moves).prop_map(|(specs, listening, moves)| Script {
        specs,
        listening,
        moves,
    })
}
