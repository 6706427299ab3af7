//! Random actions, and the requests that their numbers mean.

use std::time::Duration;

use leasehold_api::{
    Acquire, FencingToken, Kind, Label, Limits, LockSpec, Mode, Operation, OwnerId, Wait,
};
use proptest::prelude::*;

use super::{World, session};

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
    /// Releases the oldest attempt that was not released like this before. It is the holder's.
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

/// A mutex, a reader/writer lock, or a semaphore. Waiters and leases last for the whole
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

/// Owners that sort differently as bytes and as numbers.
fn owner(number: u8) -> OwnerId {
    OwnerId::from_u64([5, 1 << 32, 0x0100_0000_0000_0001][usize::from(number)])
}

impl World<'_> {
    fn spec(&self, choice: u8) -> LockSpec {
        if choice >= CONTENDED {
            let spec = match self.spec - CONTENDED {
                0 => LockSpec::mutex(),
                1 => LockSpec::rw_lock(),
                _ => LockSpec::semaphore(3).expect("a good number"),
            };
            return spec
                .with_waiter_lease(Duration::from_secs(2))
                .expect("a good lease");
        }
        // Mostly the same one in a case, so that the key is shared.
        let choice = if choice < 28 { self.spec } else { choice };
        let plain = match choice % 4 {
            0 => LockSpec::mutex(),
            1 | 2 => LockSpec::rw_lock(),
            _ => LockSpec::semaphore(3).expect("a good number"),
        };
        let lease = Duration::from_micros([8_000, 25_001][usize::from(choice / 4 % 2)]);
        plain.with_waiter_lease(lease).expect("a good lease")
    }

    pub(super) fn request(&mut self, attempt: &Attempt) -> Acquire {
        let spec = self.spec(attempt.spec);
        let mode = match spec.kind() {
            Kind::Mutex => Mode::Exclusive,
            Kind::RwLock if attempt.mode.is_multiple_of(3) => Mode::Exclusive,
            Kind::RwLock => Mode::Shared,
            Kind::Semaphore => Mode::Permits(u32::from(attempt.mode) % 3 + 1),
        };
        let session = session(attempt.session);
        let next = self.sequences.entry(session).or_insert(0);
        *next += 1;
        let operation = Operation {
            session,
            sequence: *next,
            owner: owner(attempt.owner),
        };
        let ahead = match attempt.deliver {
            0..4 => Duration::ZERO,
            4..8 => Duration::from_secs(1),
            _ => Duration::from_millis(25),
        };
        let lease = Duration::from_millis(u64::from(attempt.lease) + 1);
        let key = self.keys[usize::from(attempt.key)].clone();
        let until = self.now.saturating_add(ahead);
        let mut request = Acquire::new(key, spec, mode, operation, lease, until)
            .expect("a good request")
            .with_label(Label::new("label".repeat(usize::from(attempt.owner))).expect("short"));
        request.wait = match attempt.wait % 8 {
            0 | 1 => None,
            2 => Some(Wait::new(false)),
            3 => Some(
                Wait::new(true).with_wait_until(
                    self.now
                        .saturating_add(Duration::from_millis(u64::from(attempt.wait % 16))),
                ),
            ),
            _ => Some(Wait::new(true)),
        };
        let token = self.tokens.last().map_or(0, |token| token.get());
        request.floor = match attempt.floor {
            0..4 => Some(FencingToken::new(1 << 52)),
            4..30 => Some(FencingToken::new(token)),
            30..40 => Some(FencingToken::new(token + 50_000)),
            _ => None,
        };
        if attempt.limits < 40 {
            request = request.with_limits(Limits {
                holds: 1 + u32::from(attempt.limits % 3),
                waiters: u32::from(attempt.limits % 4),
                holders: 1 + u32::from(attempt.limits / 4 % 4),
            });
        }
        request
    }
}
