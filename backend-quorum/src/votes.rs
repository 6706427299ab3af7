//! Counts the answers of the servers to one request.
//!
//! Every count is made once, here, and without I/O. Each function returns `None` while the missing
//! answers could still change whether the lock is granted, held or released, and never when no answer
//! is missing. The reason of a loss is that of the answers so far.

use std::cmp::Reverse;
use std::time::Duration;

use leasehold_api::{
    AcquireReply, Acquired, BackendError, EndReason, FencingToken, ReleaseReply, RenewReply,
};

/// The answer of one server, or `None` while it is missing.
pub(crate) type Vote<T> = Option<Result<T, BackendError>>;

/// What the votes on one request decide, or `None` while that is open.
type Decision<T> = Option<Result<T, BackendError>>;

/// A grant of one server: its token, and the time that it lasts.
type Grant = (FencingToken, Duration);

/// What it takes to win a vote.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) servers: usize,
}

impl Rules {
    pub(crate) const fn quorum(self) -> usize {
        self.servers / 2 + 1
    }

    /// Whether this number of servers is enough to prevent a quorum of the others.
    const fn blocks(self, servers: usize) -> bool {
        servers > self.servers - self.quorum()
    }

    /// Counts the votes on an acquire.
    pub(crate) fn acquire(self, votes: &[Vote<AcquireReply>]) -> Decision<AcquireReply> {
        let grants = picked(votes, |reply| match reply {
            AcquireReply::Acquired(acquired) => Some((acquired.token, acquired.remaining)),
            _ => None,
        });
        let groups = Self::groups(grants);
        if let Some((token, remaining)) = self.grant_of_quorum(&groups) {
            return Some(Ok(AcquireReply::Acquired(Acquired {
                token,
                holds: 1,
                remaining,
            })));
        }
        let can_win = largest(&groups) + missing(votes) >= self.quorum();
        (!can_win).then(|| self.refusal(votes, &groups))
    }

    /// Counts the votes on a renewal.
    pub(crate) fn renew(self, votes: &[Vote<RenewReply>]) -> Decision<RenewReply> {
        let grants = picked(votes, |reply| match *reply {
            RenewReply::Renewed { token, remaining } => Some((token, remaining)),
            RenewReply::Lost(_) => None,
        });
        let groups = Self::groups(grants);
        if let Some((token, remaining)) = self.grant_of_quorum(&groups) {
            return Some(Ok(RenewReply::Renewed { token, remaining }));
        }
        let lost = picked(votes, |reply| match *reply {
            RenewReply::Lost(reason) => Some(reason),
            RenewReply::Renewed { .. } => None,
        });
        if self.blocks(lost.len()) {
            return Some(Ok(RenewReply::Lost(common(&lost))));
        }
        // A server that has lost the hold changes nothing.
        let renewed = |reply: &RenewReply| matches!(reply, RenewReply::Renewed { .. });
        (missing(votes) == 0).then(|| Err(self.failure(votes, renewed)))
    }

    /// Counts the votes on a release.
    pub(crate) fn release(self, votes: &[Vote<ReleaseReply>]) -> Decision<ReleaseReply> {
        let not_held = picked(votes, |reply| match *reply {
            ReleaseReply::NotHeld(reason) => Some(reason),
            // No request to these servers waits, so no release finds a waiter.
            ReleaseReply::Left => Some(EndReason::Unknown),
            ReleaseReply::Released { .. } => None,
        });
        if self.blocks(not_held.len()) {
            return Some(Ok(ReleaseReply::NotHeld(common(&not_held))));
        }
        let answered = votes.iter().flatten().flatten();
        if answered.count() - not_held.len() >= self.quorum() {
            return Some(Ok(ReleaseReply::Released {
                holds_left: 0,
                holder: None,
            }));
        }
        // A release that finds nothing still ends the late copies of its acquire.
        (missing(votes) == 0).then(|| Err(self.failure(votes, |_| true)))
    }

    /// Groups the grants that count together: those with one token. The times of a group are
    /// sorted, the longest first.
    fn groups(mut grants: Vec<Grant>) -> Vec<Vec<Grant>> {
        grants.sort_by_key(|(token, remaining)| (*token, Reverse(*remaining)));
        let groups = grants.chunk_by(|a, b| a.0 == b.0);
        groups.map(<[Grant]>::to_vec).collect()
    }

    /// The grant of a quorum. It lasts as long as the shortest grant among the longest of a quorum.
    fn grant_of_quorum(self, groups: &[Vec<Grant>]) -> Option<Grant> {
        let last = self.quorum() - 1;
        groups.iter().find_map(|group| group.get(last).copied())
    }

    /// The outcome of an acquire that no quorum grants. A reply after which the client tries again
    /// goes before one after which it gives up, because few servers must not decide that.
    fn refusal(
        self,
        votes: &[Vote<AcquireReply>],
        groups: &[Vec<Grant>],
    ) -> Result<AcquireReply, BackendError> {
        let failed = votes.iter().filter(|vote| matches!(vote, Some(Err(_))));
        // Only a grant leaves something behind: nothing waits.
        let granted = |reply: &AcquireReply| matches!(reply, AcquireReply::Acquired(_));
        if self.blocks(failed.count()) {
            return Err(self.failure(votes, granted));
        }
        let replies: Vec<_> = votes.iter().flatten().flatten().collect();
        let answered = |reply| replies.contains(&&reply).then_some(reply);
        let again = answered(AcquireReply::Stale)
            .or_else(|| answered(AcquireReply::TooLate))
            .or_else(|| self.contended(&replies, largest(groups)));
        let other = replies
            .iter()
            .find(|reply| matches!(reply, AcquireReply::Refused(_)));
        let reply = again.or_else(|| other.map(|reply| (*reply).clone()));
        match reply {
            Some(reply) => Ok(reply),
            // The servers that granted don't agree on a token. The next attempt brings a floor.
            None if groups.len() > 1 => Ok(AcquireReply::Stale),
            None => Err(self.failure(votes, granted)),
        }
    }

    /// Some servers granted the attempt, and the others hold the key for somebody else. A quorum can
    /// grant it when enough of these holds have ended.
    fn contended(self, replies: &[&AcquireReply], granted: usize) -> Option<AcquireReply> {
        let contended = replies.iter().filter_map(|reply| match reply {
            AcquireReply::Contended(contended) => Some(contended),
            _ => None,
        });
        let mut contended: Vec<_> = contended.collect();
        contended.sort_by_key(|contended| contended.retry_after);
        let needed = self.quorum() - granted;
        let found = contended.get(needed - 1).or(contended.last())?;
        Some(AcquireReply::Contended((*found).clone()))
    }

    /// The error of a request without an outcome. It is permanent only if every server's is.
    /// `executed` says which replies mean that the server has executed the request.
    pub(crate) fn failure<T>(
        self,
        votes: &[Vote<T>],
        executed: impl Fn(&T) -> bool,
    ) -> BackendError {
        let answers = votes.iter().flatten();
        let errors: Vec<_> = answers.filter_map(|it| it.as_ref().err()).collect();
        let Some(transient) = errors.iter().find(|error| error.is_transient()) else {
            let first = errors.first().map(|error| (*error).clone());
            return first.unwrap_or_else(|| BackendError::outcome_unknown("the servers disagree"));
        };
        let reason = format!("{} of {} servers failed", errors.len(), self.servers);
        let executed = votes.iter().flatten().flatten().any(executed);
        let unknown = |error: &&BackendError| matches!(error, BackendError::OutcomeUnknown { .. });
        let error = if executed || errors.iter().any(unknown) {
            BackendError::outcome_unknown(reason)
        } else {
            BackendError::unavailable(reason)
        };
        error.with_source((*transient).clone())
    }
}

fn picked<T, P>(votes: &[Vote<T>], pick: impl Fn(&T) -> Option<P>) -> Vec<P> {
    votes.iter().flatten().flatten().filter_map(pick).collect()
}

pub(crate) fn missing<T>(votes: &[Vote<T>]) -> usize {
    votes.iter().filter(|vote| vote.is_none()).count()
}

fn largest(groups: &[Vec<Grant>]) -> usize {
    groups.iter().map(Vec::len).max().unwrap_or(0)
}

/// The reason that all these answers give. `Unknown` if they differ, or there is none.
fn common(reasons: &[EndReason]) -> EndReason {
    let first = reasons.first().copied().unwrap_or(EndReason::Unknown);
    let agree = reasons.iter().all(|reason| *reason == first);
    if agree { first } else { EndReason::Unknown }
}

#[cfg(test)]
mod tests {
    use leasehold_api::{Contended, Refused};

    use super::*;

    const RULES: Rules = Rules { servers: 3 };

    fn acquired(token: u64, secs: u64) -> AcquireReply {
        AcquireReply::Acquired(Acquired {
            token: FencingToken::new(token),
            holds: 1,
            remaining: Duration::from_secs(secs),
        })
    }

    fn contended(secs: u64) -> AcquireReply {
        AcquireReply::Contended(Contended {
            retry_after: Duration::from_secs(secs),
            holder: None,
        })
    }

    /// Checks every combination of three servers' votes: there is an outcome once all have answered, and no later vote
    /// changes the `kind` of an outcome that there was before.
    fn early_outcomes_are_final<T: Clone, K: PartialEq + std::fmt::Debug>(
        replies: &[T],
        count: impl Fn(&[Vote<T>]) -> Decision<T>,
        kind: impl Fn(Result<T, BackendError>) -> K,
    ) {
        let errors = [
            BackendError::unavailable("down"),
            BackendError::outcome_unknown("silent"),
            BackendError::Closed,
        ];
        let replies = replies.iter().cloned().map(|reply| Some(Ok(reply)));
        let answers: Vec<Vote<T>> = replies
            .chain(errors.map(|error| Some(Err(error))))
            .collect();
        // The index after the answers is a missing vote.
        let none = answers.len();
        let outcome = |votes: [usize; 3]| {
            let votes = votes.map(|index| answers.get(index).cloned().flatten());
            count(&votes).map(&kind)
        };
        let mut early = 0;
        for votes in triples(none + 1) {
            let Some(decided) = outcome(votes) else {
                assert!(votes.contains(&none), "{votes:?} has no outcome");
                continue;
            };
            early += usize::from(votes.contains(&none));
            let continues = |longer: &[usize; 3]| {
                let mut pairs = votes.iter().zip(longer);
                pairs.all(|(vote, later)| *vote == none || vote == later)
            };
            for longer in triples(none).filter(continues) {
                let last = outcome(longer);
                assert_eq!(last.as_ref(), Some(&decided), "{votes:?} {longer:?}");
            }
        }
        assert!(early > 0);
    }

    fn triples(below: usize) -> impl Iterator<Item = [usize; 3]> {
        (0..below.pow(3)).map(move |n| [n % below, n / below % below, n / below / below])
    }

    #[test]
    fn early_outcomes_of_an_acquire_are_final() {
        let replies = [
            acquired(7, 30),
            acquired(8, 20),
            contended(5),
            AcquireReply::Stale,
            AcquireReply::Refused(Refused::FloorTooHigh),
        ];
        // Which token has won. What a failed attempt is told may depend on later votes.
        let kind = |outcome| match outcome {
            Ok(AcquireReply::Acquired(acquired)) => Some(acquired.token),
            _ => None,
        };
        early_outcomes_are_final(&replies, |votes| RULES.acquire(votes), kind);
    }

    #[test]
    fn early_outcomes_of_renewals_and_releases_are_final() {
        let renewed = |token, secs| RenewReply::Renewed {
            token: FencingToken::new(token),
            remaining: Duration::from_secs(secs),
        };
        let lost = RenewReply::Lost(EndReason::Expired);
        let replies = [renewed(7, 30), renewed(7, 20), renewed(8, 30), lost];
        let kind = |outcome| match outcome {
            Ok(RenewReply::Renewed { token, .. }) => Ok(Some(token)),
            Ok(RenewReply::Lost(_)) => Ok(None),
            Err(_) => Err(()),
        };
        early_outcomes_are_final(&replies, |votes| RULES.renew(votes), kind);
        let released = ReleaseReply::Released {
            holds_left: 0,
            holder: None,
        };
        let replies = [released, ReleaseReply::NotHeld(EndReason::Unknown)];
        let kind = |outcome: Result<_, _>| match outcome {
            Ok(reply) => Ok(matches!(reply, ReleaseReply::Released { .. })),
            Err(_) => Err(()),
        };
        early_outcomes_are_final(&replies, |votes| RULES.release(votes), kind);
    }

    #[test]
    fn grant_lasts_as_long_as_a_quorum_lasts() {
        let votes = |times: &[u64]| {
            let votes = times.iter().map(|secs| Some(Ok(acquired(7, *secs))));
            votes.collect::<Vec<_>>()
        };
        let outcome = RULES.acquire(&votes(&[10, 30, 20])).expect("decided");
        assert_eq!(outcome.expect("granted"), acquired(7, 20));
        let five = Rules { servers: 5 };
        let outcome = five.acquire(&votes(&[5, 4, 3, 2, 1])).expect("decided");
        assert_eq!(outcome.expect("granted"), acquired(7, 3));
    }

    #[test]
    fn only_equal_tokens_count_together() {
        let votes = [7, 8, 9].map(|token| Some(Ok(acquired(token, 30))));
        let outcome = RULES.acquire(&votes).expect("decided");
        assert_eq!(outcome.expect("a reply"), AcquireReply::Stale);
    }

    /// One server answers, and two fail.
    fn failed<T>(
        reply: T,
        other: BackendError,
        count: impl Fn(&[Vote<T>]) -> Decision<T>,
    ) -> BackendError {
        let down = BackendError::unavailable("down");
        let outcome = count(&[Some(Ok(reply)), Some(Err(down)), Some(Err(other))]);
        let Some(Err(error)) = outcome else {
            panic!("no failure");
        };
        error
    }

    #[test]
    fn outcome_is_unknown_only_if_a_server_may_have_executed_the_request() {
        let down = || BackendError::unavailable("down");
        let is_unknown = |error| matches!(error, BackendError::OutcomeUnknown { .. });
        let acquire = |reply, other| is_unknown(failed(reply, other, |it| RULES.acquire(it)));
        let stale = || AcquireReply::Stale;
        for (reply, unknown) in [
            (acquired(7, 30), true),
            (contended(5), false),
            (stale(), false),
        ] {
            assert_eq!(acquire(reply.clone(), down()), unknown, "{reply:?}");
            let silent = BackendError::outcome_unknown("silent");
            assert!(acquire(reply, silent));
        }
        let renew = |reply| is_unknown(failed(reply, down(), |it| RULES.renew(it)));
        assert!(!renew(RenewReply::Lost(EndReason::Expired)));
        assert!(renew(RenewReply::Renewed {
            token: FencingToken::new(7),
            remaining: Duration::from_secs(30),
        }));
        let release = |reply| is_unknown(failed(reply, down(), |it| RULES.release(it)));
        assert!(release(ReleaseReply::NotHeld(EndReason::Unknown)));
        assert!(release(ReleaseReply::Left));
    }

    #[test]
    fn key_is_free_when_enough_leases_have_ended() {
        let contention = |votes: [AcquireReply; 3]| {
            let outcome = RULES.acquire(&votes.map(|reply| Some(Ok(reply))));
            outcome.expect("decided").expect("a reply")
        };
        let (a, b, c) = (contended(5), contended(9), contended(7));
        assert_eq!(contention([a.clone(), b.clone(), c]), contended(7));
        assert_eq!(contention([acquired(7, 30), b, a]), contended(5));
    }
}
