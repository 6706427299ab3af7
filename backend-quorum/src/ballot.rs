//! What all servers are asked, and what a majority of them answers.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_channel::mpsc::{UnboundedReceiver, unbounded};
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use leasehold_api::{
    Acquire, AcquireReply, BackendError, BoxFuture, FencingToken, Key, Kind, Moment, Release,
    ReleaseReply, ServerTime, bounds,
};

use crate::backend::{Quorum, time_of};
use crate::fates::{Hold, NoBallot, OpenBallot, Verdict};
use crate::server::{Asked, Replies, Server, lock, nothing_changed};
use crate::votes::{Vote, missing};

/// The votes on each request of a batch.
type Votes<T> = Vec<Vec<Vote<T>>>;
/// The replies of the servers, by their index.
type Ballot<T> = UnboundedReceiver<(usize, Replies<T>)>;

impl Quorum {
    /// When the servers must have answered a call that was sent now.
    pub(crate) fn answers_until(&self, sent: Moment) -> Moment {
        sent.saturating_add(self.settings.call_timeout / 2)
    }

    /// Sends a call to each server, from tasks that go on if the caller doesn't wait for them.
    pub(crate) fn send<T: Send + 'static, F: Future<Output = Replies<T>> + Send + 'static>(
        &self,
        call: impl Fn(usize, Arc<Server>) -> Option<F>,
        spawn: impl Fn(BoxFuture<'static, ()>),
    ) -> Ballot<T> {
        let (send, ballot) = unbounded();
        for (index, server) in self.servers.iter().enumerate() {
            let Some(call) = call(index, Arc::clone(server)) else {
                continue;
            };
            let send = send.clone();
            spawn(Box::pin(async move {
                // Fails if the votes were counted without this one.
                let _ = send.unbounded_send((index, call.await));
            }));
        }
        ballot
    }

    /// Collects votes until each request has an outcome, or the time is up. A vote that is missing
    /// then is an unknown outcome.
    pub(crate) async fn collect<T, R>(
        &self,
        mut ballot: Ballot<T>,
        requests: usize,
        until: Moment,
        count: impl Fn(&[Vote<T>]) -> Option<R>,
    ) -> (Vec<R>, Votes<T>) {
        let none = || (0..self.servers.len()).map(|_| None).collect::<Vec<_>>();
        let mut votes: Votes<T> = (0..requests).map(|_| none()).collect();
        let limit = until.saturating_since(self.runtime.now());
        let mut time_is_up = self.runtime.sleep(limit);
        loop {
            let outcomes: Option<Vec<R>> = votes.iter().map(|votes| count(votes)).collect();
            if let Some(outcomes) = outcomes {
                return (outcomes, votes);
            }
            match select(pin!(ballot.next()), &mut time_is_up).await {
                Either::Left((Some((server, replies)), _)) => {
                    for (votes, reply) in votes.iter_mut().zip(replies) {
                        votes[server] = Some(reply);
                    }
                }
                Either::Left((None, _)) | Either::Right(_) => {
                    for vote in votes.iter_mut().flatten().filter(|vote| vote.is_none()) {
                        *vote = Some(Err(BackendError::outcome_unknown("no answer in time")));
                    }
                }
            }
        }
    }

    /// Begins the ballot on an acquire, or returns the outcome of one that needs no server.
    pub(crate) fn begin(
        &self,
        request: &Acquire,
        now: Moment,
    ) -> Result<OpenBallot<'_>, Result<AcquireReply, BackendError>> {
        if request.spec.kind() != Kind::Mutex {
            let what = "reader/writer locks and semaphores over a quorum";
            return Err(Err(BackendError::unsupported(what)));
        }
        self.check_lease(request.lease).map_err(Err)?;
        let ahead = request.deliver_before.saturating_since(time_of(now));
        if ahead.is_zero() || ahead > bounds::DELIVERY_WINDOW {
            return Err(Ok(AcquireReply::TooLate));
        }
        let ballot = self.fates.begin(request.operation, now);
        ballot.map_err(|reason| match reason {
            NoBallot::Ended => Ok(AcquireReply::Stale),
            NoBallot::UnderWay => Err(BackendError::outcome_unknown(
                "an earlier call of this attempt is under way",
            )),
        })
    }

    pub(crate) fn check_lease(&self, lease: Duration) -> Result<(), BackendError> {
        let max = self.settings.max_lease;
        if lease <= max {
            return Ok(());
        }
        Err(BackendError::rejected(format!(
            "a lease of {lease:?} is longer than the max_lease of the quorum, {max:?}"
        )))
    }

    /// Reads the clocks of the servers, unless a quorum of them is known. The floor of the tokens
    /// needs them.
    pub(crate) async fn know_clocks(&self, now: Moment, until: Moment) -> Result<(), BackendError> {
        let known = self.servers.iter().filter_map(|it| it.time_at(now));
        if known.count() >= self.rules.quorum() {
            return Ok(());
        }
        self.read_clocks(self.rules.quorum(), until).await
    }

    /// Reads the clocks of this many servers, or of a quorum if the others don't answer in time.
    pub(crate) async fn read_clocks(
        &self,
        wanted: usize,
        until: Moment,
    ) -> Result<(), BackendError> {
        let read = |_, server: Arc<Server>| Some(async move { vec![server.hello().await] });
        let ballot = self.send(read, |task| self.runtime.spawn(task));
        let count = |votes: &[Vote<()>]| {
            let answered = votes.iter().flatten().flatten().count();
            let missing = missing(votes);
            if answered >= wanted || (missing == 0 && answered >= self.rules.quorum()) {
                return Some(Ok(()));
            }
            (missing == 0).then(|| Err(self.rules.failure(votes, |()| false)))
        };
        let (mut outcomes, _) = self.collect(ballot, 1, until, count).await;
        let failed = |error| nothing_changed(error, "no quorum of clocks");
        outcomes.remove(0).map_err(failed)
    }

    /// Prepares an acquire for all servers.
    ///
    /// The floor is the same for all. No server executes the request after its deliver-before, so
    /// none of their clocks is past the floor then. All servers that don't remember a higher token
    /// grant the same one: the floor + 1.
    pub(crate) fn prepare(&self, mut request: Acquire, now: Moment) -> Asked {
        let ahead = request.deliver_before.saturating_since(time_of(now));
        let deliver_before = now.saturating_add(ahead);
        request.wait = None;
        let times = self.servers.iter();
        let floor = times
            .filter_map(|server| server.time_at(deliver_before))
            .map(ServerTime::as_micros)
            .chain(request.floor.map(FencingToken::get))
            .chain(lock(&self.floors).get(&request.key))
            .max();
        request.floor = floor.map(FencingToken::new);
        Asked {
            request,
            deliver_before,
        }
    }

    /// Notes the tokens of grants that did not win, as a floor of the next attempt.
    fn note_floor(&self, key: &Key, votes: &[Vote<AcquireReply>], won: bool) {
        let mut floors = lock(&self.floors);
        if won {
            floors.forget(key);
            return;
        }
        let tokens = votes.iter().flatten().filter_map(|vote| match vote {
            Ok(AcquireReply::Acquired(acquired)) => Some(acquired.token.get()),
            _ => None,
        });
        if let Some(highest) = tokens.max() {
            floors.note(key, highest);
        }
    }

    /// Sends acquires to all servers, counts their votes, and takes back what did not win.
    pub(crate) async fn vote(
        &self,
        asked: Vec<Asked>,
        ballots: Vec<OpenBallot<'_>>,
        until: Moment,
    ) -> Replies<AcquireReply> {
        let asked: Arc<[Asked]> = asked.into();
        let acquire = |_, server: Arc<Server>| Some(server.acquire(Arc::clone(&asked)));
        let replies = self.send(acquire, |task| self.runtime.spawn(task));
        let count = |votes: &[Vote<AcquireReply>]| self.rules.acquire(votes);
        let (mut outcomes, votes) = self.collect(replies, asked.len(), until, count).await;
        let now = self.runtime.now();
        if let Err(error) = self.check_distinct() {
            outcomes.fill(Err(error));
        }
        let mut lost = Vec::new();
        let decided = asked.iter().zip(ballots).zip(&mut outcomes).zip(&votes);
        for (((asked, ballot), outcome), votes) in decided {
            let won = match outcome {
                Ok(AcquireReply::Acquired(acquired)) => Some(Hold {
                    request: asked.request.clone(),
                    token: acquired.token,
                }),
                _ => None,
            };
            let verdict = ballot.decide(won, votes.iter().any(in_doubt), now);
            if verdict == Verdict::Released {
                *outcome = Ok(AcquireReply::Stale);
            } else if let Err(error) = outcome {
                *error = self.explained(error.clone(), now);
            }
            let won = matches!(outcome, Ok(AcquireReply::Acquired(_)));
            self.note_floor(&asked.request.key, votes, won);
            if verdict != Verdict::Stands {
                lost.push((asked, votes.as_slice()));
            }
        }
        if !lost.is_empty() {
            let until = until.saturating_add(self.settings.call_timeout / 2);
            self.take_back(&lost, until).await;
        }
        outcomes
    }

    /// Fails if two of the servers are the same one, whose vote would count twice.
    pub(crate) fn check_distinct(&self) -> Result<(), BackendError> {
        let mut names = BTreeMap::new();
        for (server, number) in self.servers.iter().zip(1..) {
            let Some(name) = server.name() else {
                continue;
            };
            if let Some(other) = names.insert(name, number) {
                let reason = format!("servers {other} and {number} of the quorum are the same one");
                return Err(BackendError::rejected(reason));
            }
        }
        Ok(())
    }

    /// The votes, each server's once. A server that has voted under another name too may be known as the same one
    /// only now: its name comes with its first answer.
    pub(crate) fn distinct<T: Clone>(&self, votes: &[Vote<T>]) -> Vec<Vote<T>> {
        let mut names = BTreeSet::new();
        let votes = votes.iter().zip(&self.servers);
        let votes = votes.map(|(vote, server)| match (vote, server.name()) {
            (Some(Ok(_)), Some(name)) if !names.insert(name) => Some(Err(BackendError::rejected(
                "two servers of the quorum are the same one",
            ))),
            _ => vote.clone(),
        });
        votes.collect()
    }

    /// Adds to a transient error which servers have restarted, and for how long they don't count.
    fn explained(&self, error: BackendError, now: Moment) -> BackendError {
        let servers = self.servers.iter().zip(1..);
        let waits = servers.filter_map(|(server, number)| {
            let secs = server.not_counted_for(now).as_secs_f64().ceil();
            (secs > 0.0).then(|| format!("server {number} restarted and counts in {secs} s"))
        });
        match waits.collect::<Vec<_>>().join(", ") {
            waits if !waits.is_empty() && error.is_transient() => error.with_context(waits),
            _ => error,
        }
    }

    /// Releases the requests that did not win, on each server that may have granted them. Waits
    /// for the servers that have.
    async fn take_back(&self, lost: &[(&Asked, &[Vote<AcquireReply>])], until: Moment) {
        let releases = |server: usize| {
            let lost = lost.iter().filter(|(_, votes)| in_doubt(&votes[server]));
            let releases = lost.map(|(asked, _)| {
                let Acquire { key, operation, .. } = &asked.request;
                Release::new(key.clone(), *operation)
            });
            releases.collect::<Arc<[_]>>()
        };
        let release = |index, server: Arc<Server>| {
            let batch = releases(index);
            (!batch.is_empty()).then(|| server.release(batch))
        };
        let ballot = self.send(release, |task| self.runtime.spawn(task));
        let servers = 0..self.servers.len();
        let waits_for = |server: &usize| lost.iter().any(|(_, votes)| granted(&votes[*server]));
        let waited_for: Vec<usize> = servers.filter(waits_for).collect();
        let answered = |votes: &[Vote<ReleaseReply>]| {
            let all = waited_for.iter().all(|server| votes[*server].is_some());
            all.then_some(())
        };
        self.collect(ballot, 1, until, answered).await;
    }
}

fn granted(vote: &Vote<AcquireReply>) -> bool {
    matches!(vote, Some(Ok(AcquireReply::Acquired(_))))
}

/// Whether the server may have granted the attempt, or may still do so.
fn in_doubt(vote: &Vote<AcquireReply>) -> bool {
    match vote {
        Some(Err(error)) => matches!(error, BackendError::OutcomeUnknown { .. }),
        vote => vote.is_none() || granted(vote),
    }
}
