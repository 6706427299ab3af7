//! What became of the operations that this client asked for. Each has one fate, decided once, here.
//!
//! An operation that was taken back or released must never win its ballot: one of the releases may still be
//! on its way to a server, and would end that grant behind the back of its guard. An operation that
//! has won must not be taken back, because its guard may be in use. So there is one ballot on an operation
//! at a time, and its outcome is remembered (decision 0040).
//!
//! The memory is bounded. If an operation that has ended is forgotten, all operations of the session up to that one
//! count as ended, except those that are remembered as won or have a ballot under way. That is always safe: the
//! client goes on with a new operation, which has a higher sequence.
//!
//! What has won has a bound of its own, because it is needed for as long as the lock is held, and a lock
//! may be held through any number of other outcomes: to know the token of its guard, and to repair it (decision 0058).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_api::{Acquire, FencingToken, Moment, Operation, SessionId, bounds};
use lru::LruCache;

use crate::server::lock;

/// The operations that are remembered to have ended, for each session.
const MAX_ENDED: usize = 256;
/// The operations that are remembered as won, for each session. The one that was renewed least recently
/// makes room: a guard may end without a release.
const MAX_WON: usize = 10_000;
/// A session that has been silent for so long is forgotten. Its client tries an attempt again within
/// seconds.
const FORGOTTEN_AFTER: Duration = bounds::MAX_LEASE;

/// The fates of the operations, by session.
#[derive(Debug, Default)]
pub(crate) struct Fates(Mutex<BTreeMap<SessionId, Session>>);

#[derive(Debug)]
struct Session {
    /// The sequences that a ballot is under way for, and what is decided about them. Nothing is forgotten here.
    open: BTreeMap<u64, Option<Fate>>,
    /// What has won and has not ended, by when it was last asked for.
    won: LruCache<u64, Arc<Hold>>,
    ended: BTreeSet<u64>,
    /// Every sequence up to this one has ended, unless it is in one of the maps. See `fate`.
    ended_up_to: Option<u64>,
    last_used: Moment,
}

#[derive(Clone, Debug)]
enum Fate {
    Won(Arc<Hold>),
    /// Taken back, released or lost.
    Ended,
}

/// What a quorum granted.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) request: Acquire,
    pub(crate) token: FencingToken,
}

/// Why there is no ballot on an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoBallot {
    /// An earlier call has not been decided yet.
    UnderWay,
    Ended,
}

/// What the votes of a ballot amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The outcome of the votes stands.
    Stands,
    /// The outcome stands, and what the servers may have granted is taken back.
    TakeBack,
    /// A quorum granted the operation, but it was released in the meantime. The grants are taken back.
    Released,
}

impl Fates {
    /// Begins a ballot on an operation.
    pub(crate) fn begin(
        &self,
        operation: Operation,
        now: Moment,
    ) -> Result<OpenBallot<'_>, NoBallot> {
        let sequence = operation.sequence;
        self.with(operation.session, now, |session| {
            if session.open.contains_key(&sequence) {
                return Err(NoBallot::UnderWay);
            }
            let fate = session.fate(sequence);
            if matches!(fate, Some(Fate::Ended)) {
                return Err(NoBallot::Ended);
            }
            session.open.insert(sequence, fate);
            Ok(())
        })?;
        Ok(OpenBallot {
            fates: self,
            operation,
        })
    }

    /// Returns what a quorum granted to an operation, unless that has ended or is forgotten. A hold that is
    /// asked for is in use: neither it nor its session is forgotten soon.
    pub(crate) fn hold(&self, operation: Operation, now: Moment) -> Option<Arc<Hold>> {
        let mut sessions = lock(&self.0);
        let session = sessions.get_mut(&operation.session)?;
        let hold = session.won.get(&operation.sequence)?;
        session.last_used = now;
        Some(Arc::clone(hold))
    }

    /// Notes that an operation is released.
    pub(crate) fn end(&self, operation: Operation, now: Moment) {
        self.with(operation.session, now, |session| {
            session.decide(operation.sequence, Fate::Ended);
        });
    }

    /// Notes that an operation is lost. One that has not won may still win.
    pub(crate) fn lose(&self, operation: Operation, now: Moment) {
        if self.hold(operation, now).is_some() {
            self.end(operation, now);
        }
    }

    fn with<T>(&self, id: SessionId, now: Moment, act: impl FnOnce(&mut Session) -> T) -> T {
        let mut sessions = lock(&self.0);
        if !sessions.contains_key(&id) {
            sessions.retain(|_, session| {
                let silent = now.saturating_since(session.last_used);
                !session.open.is_empty() || silent < FORGOTTEN_AFTER
            });
        }
        let session = sessions.entry(id).or_insert_with(Session::new);
        session.last_used = now;
        act(session)
    }
}

impl Session {
    fn new() -> Self {
        Self {
            open: BTreeMap::new(),
            // A cache with a bound would allocate it at once.
            won: LruCache::unbounded(),
            ended: BTreeSet::new(),
            ended_up_to: None,
            last_used: Moment::default(),
        }
    }

    /// What is decided about an operation whose ballot is to begin. What is remembered goes before the mark. Once the
    /// ballot has begun, its entry in `open` decides, whatever is forgotten meanwhile.
    fn fate(&self, sequence: u64) -> Option<Fate> {
        if let Some(hold) = self.won.peek(&sequence) {
            return Some(Fate::Won(Arc::clone(hold)));
        }
        let forgotten = self.ended_up_to.is_some_and(|last| sequence <= last);
        (forgotten || self.ended.contains(&sequence)).then_some(Fate::Ended)
    }

    fn decide(&mut self, sequence: u64, fate: Fate) {
        if let Some(open) = self.open.get_mut(&sequence) {
            *open = Some(fate.clone());
        }
        match fate {
            Fate::Ended => self.end(sequence),
            Fate::Won(hold) => {
                self.won.put(sequence, hold);
                if self.won.len() > MAX_WON
                    && let Some((unused, _)) = self.won.pop_lru()
                {
                    self.end(unused);
                }
            }
        }
    }

    fn end(&mut self, sequence: u64) {
        self.won.pop(&sequence);
        self.ended.insert(sequence);
        if self.ended.len() > MAX_ENDED {
            let oldest = self.ended.pop_first();
            self.ended_up_to = self.ended_up_to.max(oldest);
        }
    }
}

/// A ballot that is under way. If its caller is dropped, the operation stays undecided: nothing takes it
/// back then.
#[derive(Debug)]
pub(crate) struct OpenBallot<'a> {
    fates: &'a Fates,
    operation: Operation,
}

impl OpenBallot<'_> {
    /// Decides the fate of the operation. `in_doubt` says whether a server may have granted it.
    pub(crate) fn decide(self, won: Option<Hold>, in_doubt: bool, now: Moment) -> Verdict {
        let sequence = self.operation.sequence;
        self.fates.with(self.operation.session, now, |session| {
            let decided = session.open.get(&sequence).cloned().flatten();
            match (decided, won) {
                // A copy. It can't bring another token: its servers report the holds that they granted together, and
                // none has been repaired, because copies are sent before the first renewal.
                (Some(Fate::Won(_)), _) => Verdict::Stands,
                (Some(Fate::Ended), Some(_)) => Verdict::Released,
                (None, Some(hold)) => {
                    session.decide(sequence, Fate::Won(Arc::new(hold)));
                    Verdict::Stands
                }
                (None | Some(Fate::Ended), None) if in_doubt => {
                    session.decide(sequence, Fate::Ended);
                    Verdict::TakeBack
                }
                (None | Some(Fate::Ended), None) => Verdict::Stands,
            }
        })
    }
}

impl Drop for OpenBallot<'_> {
    fn drop(&mut self) {
        if let Some(session) = lock(&self.fates.0).get_mut(&self.operation.session) {
            session.open.remove(&self.operation.sequence);
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_api::{Key, LockSpec, Mode, OwnerId, ServerTime};

    use super::*;

    const NOW: Moment = Moment::from_origin(Duration::from_secs(9));

    fn operation(sequence: u64) -> Operation {
        Operation {
            session: SessionId::from_bytes([1; 16]),
            sequence,
            owner: OwnerId::from_u64(sequence),
        }
    }

    fn begin(fates: &Fates, sequence: u64) -> Result<OpenBallot<'_>, NoBallot> {
        fates.begin(operation(sequence), NOW)
    }

    fn hold(sequence: u64) -> Hold {
        let key = Key::new("k").expect("valid");
        let (spec, mode) = (LockSpec::mutex(), Mode::Exclusive);
        let (lease, until) = (Duration::from_secs(30), ServerTime::default());
        let request = Acquire::new(key, spec, mode, operation(sequence), lease, until);
        Hold {
            request: request.expect("valid"),
            token: FencingToken::new(7),
        }
    }

    fn decide(fates: &Fates, sequence: u64, won: bool) -> Verdict {
        let ballot = begin(fates, sequence).expect("no fate yet");
        ballot.decide(won.then(|| hold(sequence)), true, NOW)
    }

    /// Ends later operations until each earlier one that has ended is forgotten.
    fn forget(fates: &Fates) {
        for sequence in 1_000..1_000 + MAX_ENDED as u64 {
            decide(fates, sequence, false);
        }
    }

    /// Elects so many operations that one which is not renewed is forgotten.
    fn forget_won(fates: &Fates) {
        for sequence in 2_000..2_000 + MAX_WON as u64 {
            decide(fates, sequence, true);
        }
    }

    fn held(fates: &Fates, sequence: u64) -> bool {
        fates.hold(operation(sequence), NOW).is_some()
    }

    fn refusal(fates: &Fates, sequence: u64) -> Option<NoBallot> {
        begin(fates, sequence).err()
    }

    #[test]
    fn one_ballot_at_a_time() {
        let fates = Fates::default();
        let first = begin(&fates, 1).expect("no fate yet");
        assert_eq!(refusal(&fates, 1), Some(NoBallot::UnderWay));
        assert_eq!(refusal(&fates, 2), None);
        drop(first);
        assert_eq!(refusal(&fates, 1), None, "a dropped call decides nothing");
    }

    #[test]
    fn fate_is_decided_once() {
        let fates = Fates::default();
        assert_eq!(decide(&fates, 1, true), Verdict::Stands);
        assert_eq!(decide(&fates, 1, false), Verdict::Stands, "not taken back");
        assert_eq!(decide(&fates, 2, false), Verdict::TakeBack);
        assert_eq!(refusal(&fates, 2), Some(NoBallot::Ended));
        assert!(held(&fates, 1));
        fates.end(operation(1), NOW);
        assert!(!held(&fates, 1));
        assert_eq!(refusal(&fates, 1), Some(NoBallot::Ended));
        let certain = begin(&fates, 3).expect("no fate yet");
        assert_eq!(certain.decide(None, false, NOW), Verdict::Stands);
        assert_eq!(refusal(&fates, 3), None, "no server can have granted it");
    }

    #[test]
    fn released_operation_does_not_win() {
        for forgotten in [false, true] {
            let fates = Fates::default();
            let ballot = begin(&fates, 1).expect("no fate yet");
            fates.end(operation(1), NOW);
            if forgotten {
                forget(&fates);
            }
            assert_eq!(ballot.decide(Some(hold(1)), true, NOW), Verdict::Released);
            assert_eq!(refusal(&fates, 1), Some(NoBallot::Ended));
        }
    }

    #[test]
    fn operation_that_has_won_is_not_taken_back_even_if_it_is_forgotten() {
        let fates = Fates::default();
        decide(&fates, 1, true);
        let copy = begin(&fates, 1).expect("it reports the hold");
        forget_won(&fates);
        assert!(!held(&fates, 1));
        assert_eq!(copy.decide(None, true, NOW), Verdict::Stands);
    }

    #[test]
    fn what_is_forgotten_has_ended() {
        let fates = Fates::default();
        decide(&fates, 5, false);
        let open = begin(&fates, 4).expect("no fate yet");
        assert_eq!(refusal(&fates, 3), None);
        forget(&fates);
        for sequence in [0, 1, 3, 5] {
            let refused = refusal(&fates, sequence);
            assert_eq!(refused, Some(NoBallot::Ended), "{sequence}");
        }
        let verdict = open.decide(Some(hold(4)), true, NOW);
        assert_eq!(verdict, Verdict::Stands, "it was open all the time");
        assert!(held(&fates, 4));
        assert_eq!(refusal(&fates, 6), None);
        let sessions = lock(&fates.0);
        let kept = sessions.values().map(|session| session.ended.len());
        assert_eq!(kept.sum::<usize>(), MAX_ENDED);
    }

    #[test]
    fn hold_that_is_not_renewed_makes_room() {
        let fates = Fates::default();
        decide(&fates, 1, true);
        decide(&fates, 2, true);
        assert!(held(&fates, 1), "renewed");
        for sequence in 3..=MAX_WON as u64 + 1 {
            decide(&fates, sequence, true);
        }
        assert!(held(&fates, 1) && !held(&fates, 2));
        assert_eq!(refusal(&fates, 2), Some(NoBallot::Ended));
        let sessions = lock(&fates.0);
        let kept = sessions.values().map(|session| session.won.len());
        assert_eq!(kept.sum::<usize>(), MAX_WON);
    }

    #[test]
    fn session_that_only_renews_is_not_silent() {
        let fates = Fates::default();
        let held = |now| fates.hold(operation(1), now).is_some();
        decide(&fates, 1, true);
        assert!(held(NOW.saturating_add(FORGOTTEN_AFTER / 2)));
        let later = NOW.saturating_add(FORGOTTEN_AFTER);
        let session = SessionId::from_bytes([2; 16]);
        let other = Operation {
            session,
            ..operation(1)
        };
        drop(fates.begin(other, later)); // forgets silent sessions
        assert!(held(later));
    }

    #[test]
    fn silent_sessions_are_forgotten_unless_a_ballot_is_under_way() {
        let fates = Fates::default();
        let of = |session: u8| Operation {
            session: SessionId::from_bytes([session; 16]),
            ..operation(1)
        };
        let later = NOW.saturating_add(FORGOTTEN_AFTER);
        let open = fates.begin(of(2), NOW);
        fates.end(of(3), NOW);
        fates.end(of(4), NOW.saturating_add(Duration::from_millis(1)));
        fates.end(of(5), later);
        let kept: Vec<_> = lock(&fates.0).keys().copied().collect();
        assert_eq!(kept, [2, 4, 5].map(|it| of(it).session));
        drop(open);
    }
}
