//! What became of the operations that this client asked for. Each has one fate, decided once, here.
//!
//! An operation that was taken back or released must never be elected: one of the releases may still be
//! on its way to a server, and would end that grant behind the back of its guard. An operation that was
//! elected must not be taken back, because its guard may be in use. So there is one ballot on an operation
//! at a time, and its outcome is remembered.
//!
//! The memory is bounded. If an outcome is forgotten, all operations of the session up to that one count
//! as ended. That is always safe: the client goes on with a new operation, which has a higher sequence.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_api::{Acquire, FencingToken, Moment, Operation, SessionId, bounds};

use crate::server::lock;

/// The outcomes that are remembered for each session.
const MAX_DECIDED: usize = 256;
/// A session that has been silent for so long is forgotten. Its client tries an attempt again within
/// seconds.
const FORGOTTEN_AFTER: Duration = bounds::MAX_LEASE;

/// The fates of the operations, by session.
#[derive(Debug, Default)]
pub(crate) struct Fates(Mutex<BTreeMap<SessionId, Session>>);

#[derive(Debug, Default)]
struct Session {
    /// The sequences that a ballot is under way for, and what is decided about them.
    open: BTreeMap<u64, Option<Fate>>,
    decided: BTreeMap<u64, Fate>,
    /// Every sequence up to this one has ended, unless it is in one of the maps.
    ended_up_to: Option<u64>,
    last_used: Moment,
}

#[derive(Clone, Debug)]
enum Fate {
    Elected(Arc<Hold>),
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

    /// Returns what a quorum granted to an operation, unless that has ended or is forgotten.
    pub(crate) fn hold(&self, operation: Operation) -> Option<Arc<Hold>> {
        let sessions = lock(&self.0);
        match sessions
            .get(&operation.session)?
            .decided
            .get(&operation.sequence)?
        {
            Fate::Elected(hold) => Some(Arc::clone(hold)),
            Fate::Ended => None,
        }
    }

    /// Notes that an operation is released.
    pub(crate) fn end(&self, operation: Operation, now: Moment) {
        self.with(operation.session, now, |session| {
            session.decide(operation.sequence, Fate::Ended);
        });
    }

    /// Notes that an operation is lost. One that was not elected may still be.
    pub(crate) fn lose(&self, operation: Operation, now: Moment) {
        if self.hold(operation).is_some() {
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
        let session = sessions.entry(id).or_default();
        session.last_used = now;
        act(session)
    }
}

impl Session {
    fn fate(&self, sequence: u64) -> Option<Fate> {
        let forgotten = self.ended_up_to.is_some_and(|last| sequence <= last);
        let remembered = self.decided.get(&sequence).cloned();
        remembered.or_else(|| forgotten.then_some(Fate::Ended))
    }

    fn decide(&mut self, sequence: u64, fate: Fate) {
        if let Some(open) = self.open.get_mut(&sequence) {
            *open = Some(fate.clone());
        }
        self.decided.insert(sequence, fate);
        if self.decided.len() > MAX_DECIDED {
            let oldest = self.decided.pop_first().map(|(sequence, _)| sequence);
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
    pub(crate) fn decide(self, elected: Option<Hold>, in_doubt: bool, now: Moment) -> Verdict {
        let sequence = self.operation.sequence;
        self.fates.with(self.operation.session, now, |session| {
            match (session.open.get(&sequence).cloned().flatten(), elected) {
                (Some(Fate::Elected(_)), _) => Verdict::Stands,
                (Some(Fate::Ended), Some(_)) => Verdict::Released,
                (None, Some(hold)) => {
                    session.decide(sequence, Fate::Elected(Arc::new(hold)));
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
        let (lease, until) = (Duration::from_secs(30), ServerTime::default());
        let operation = operation(sequence);
        let spec = LockSpec::mutex();
        Hold {
            request: Acquire::new(key, spec, Mode::Exclusive, operation, lease, until)
                .expect("valid"),
            token: FencingToken::new(7),
        }
    }

    fn decide(fates: &Fates, sequence: u64, elected: bool) -> Verdict {
        let ballot = begin(fates, sequence).expect("no fate yet");
        ballot.decide(elected.then(|| hold(sequence)), true, NOW)
    }

    /// Decides later operations until an earlier one is forgotten.
    fn forget(fates: &Fates) {
        for sequence in 1_000..1_000 + MAX_DECIDED as u64 {
            decide(fates, sequence, true);
        }
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
        assert!(fates.hold(operation(1)).is_some());
        fates.end(operation(1), NOW);
        assert!(fates.hold(operation(1)).is_none());
        assert_eq!(refusal(&fates, 1), Some(NoBallot::Ended));
        let certain = begin(&fates, 3).expect("no fate yet");
        assert_eq!(certain.decide(None, false, NOW), Verdict::Stands);
        assert_eq!(refusal(&fates, 3), None, "no server can have granted it");
    }

    #[test]
    fn released_operation_is_not_elected() {
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
    fn elected_operation_is_not_taken_back_even_if_it_is_forgotten() {
        let fates = Fates::default();
        decide(&fates, 1, true);
        let copy = begin(&fates, 1).expect("it reports the hold");
        forget(&fates);
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
            assert_eq!(
                refusal(&fates, sequence),
                Some(NoBallot::Ended),
                "{sequence}"
            );
        }
        assert_eq!(
            open.decide(Some(hold(4)), true, NOW),
            Verdict::Stands,
            "it was open all the time"
        );
        assert_eq!(refusal(&fates, 4), Some(NoBallot::Ended));
        assert_eq!(refusal(&fates, 6), None);
        let kept = lock(&fates.0)
            .values()
            .map(|session| session.decided.len())
            .sum::<usize>();
        assert_eq!(kept, MAX_DECIDED);
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
        let sessions = lock(&fates.0).keys().copied().collect::<Vec<_>>();
        assert_eq!(
            sessions,
            [2, 4, 5].map(|it| SessionId::from_bytes([it; 16]))
        );
        drop(open);
    }
}
