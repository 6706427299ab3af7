//! Random actions.

use proptest::prelude::*;

/// One random action. The numbers choose keys, sessions, earlier attempts and so on.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Acquire(Attempt),
    /// Repeats an acquire.
    Repeat(u8),
    Poll(u8, bool),
    /// Polls this many attempts in one call, after skipping the first number of the latest.
    PollRecent(u8, u8, bool),
    Renew(u8, u8),
    Release(u8),
    /// Releases the oldest attempt that was not released like this before. In a fair queue, it is
    /// the holder's.
    ReleaseOldest,
    /// Releases an attempt, then sends its acquire.
    ReleaseFirst(Attempt),
    Convert(u8, bool, bool),
    /// Leaves a note: who, of which version, and how long to keep it, in ms.
    Note(u8, u8, u8),
    Inspect(u8),
    Force(u8, bool, bool),
    Listen(u8, bool),
    Sleep(u8),
}

#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) key: u8,
    pub(super) session: u8,
    pub(super) owner: u8,
    pub(super) spec: u8,
    pub(super) mode: u8,
    pub(super) lease: u8,
    pub(super) wait: u8,
    pub(super) deliver: u8,
    pub(super) floor: u8,
    pub(super) limits: u8,
}

pub(super) fn attempts() -> impl Strategy<Value = Attempt> {
    let ids = (0..2_u8, 0..4_u8, 0..3_u8);
    let terms = (0..32_u8, any::<u8>(), 0..30_u8);
    let options = (any::<u8>(), any::<u8>(), any::<u8>(), any::<u8>());
    (ids, terms, options).prop_map(|((key, session, owner), (spec, mode, lease), options)| {
        Attempt {
            key,
            session,
            owner,
            spec,
            mode,
            lease,
            wait: options.0,
            deliver: options.1,
            floor: options.2,
            limits: options.3,
        }
    })
}

pub(super) fn actions() -> impl Strategy<Value = Action> {
    prop_oneof![
        10 => attempts().prop_map(Action::Acquire),
        2 => any::<u8>().prop_map(Action::Repeat),
        6 => (any::<u8>(), any::<bool>()).prop_map(|(a, b)| Action::Poll(a, b)),
        3 => (any::<u8>(), 2..12_u8, any::<bool>())
            .prop_map(|(a, b, c)| Action::PollRecent(a, b, c)),
        4 => (any::<u8>(), 0..30_u8).prop_map(|(a, b)| Action::Renew(a, b)),
        6 => any::<u8>().prop_map(Action::Release),
        1 => attempts().prop_map(Action::ReleaseFirst),
        3 => (any::<u8>(), any::<bool>(), any::<bool>())
            .prop_map(|(a, b, c)| Action::Convert(a, b, c)),
        2 => (any::<u8>(), 0..4_u8, 0..30_u8).prop_map(|(a, b, c)| Action::Note(a, b, c)),
        2 => (0..2_u8).prop_map(Action::Inspect),
        1 => (0..2_u8, any::<bool>(), any::<bool>()).prop_map(|(a, b, c)| Action::Force(a, b, c)),
        2 => (0..4_u8, any::<bool>()).prop_map(|(a, b)| Action::Listen(a, b)),
        2 => (0..12_u8).prop_map(Action::Sleep),
    ]
}

/// A fair mutex, a reader/writer lock, or a semaphore. Waiters and leases last for the whole
/// case, so queues grow and releases grant.
pub(super) const CONTENDED: u8 = 32;

pub(super) fn contenders() -> impl Strategy<Value = Attempt> {
    let ids = (0..4_u8, 0..3_u8);
    let terms = (any::<u8>(), prop::sample::select(vec![3_u8, 30, 250]));
    (ids, terms, any::<u8>(), 0..250_u8, any::<u8>()).prop_map(
        |((session, owner), (mode, lease), wait, floor, limits)| Attempt {
            key: 0,
            session,
            owner,
            spec: CONTENDED,
            mode,
            lease,
            // Most attempts wait and listen.
            wait: if wait < 144 { wait } else { 4 },
            deliver: u8::MAX,
            floor,
            limits,
        },
    )
}

pub(super) fn contention() -> impl Strategy<Value = Action> {
    prop_oneof![
        12 => contenders().prop_map(Action::Acquire),
        10 => Just(Action::ReleaseOldest),
        3 => any::<u8>().prop_map(Action::Repeat),
        4 => (any::<u8>(), any::<bool>()).prop_map(|(a, b)| Action::Poll(a, b)),
        4 => (0..8_u8, 2..40_u8, any::<bool>()).prop_map(|(a, b, c)| Action::PollRecent(a, b, c)),
        4 => (any::<u8>(), 0..200_u8).prop_map(|(a, b)| Action::Renew(a, b)),
        2 => any::<u8>().prop_map(Action::Release),
        1 => Just(Action::Inspect(0)),
        4 => (0..4_u8, any::<bool>()).prop_map(|(a, b)| Action::Listen(a, b)),
        2 => (0..16_u8).prop_map(Action::Sleep),
    ]
}
