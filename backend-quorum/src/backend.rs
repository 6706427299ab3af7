//! The backend over several servers.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_channel::mpsc::{UnboundedReceiver, unbounded};
use futures_util::StreamExt;
use futures_util::future::{Either, join_all, select};
use leasehold_api::{
    Acquire, AcquireReply, BackendError, BoxFuture, Capabilities, ClockId, Convert, ConvertReply,
    ForceRelease, ForceReply, InspectReply, InvalidInput, Key, Kind, LockBackend, Moment,
    Notifications, Poll, PollReply, Refused, Release, ReleaseReply, Renew, RenewReply, Runtime,
    ServerTime, SessionId, Stamp, Stamped, bounds,
};

use crate::fates::{Fates, NoBallot, OpenBallot, Verdict};
use crate::floors::Floors;
use crate::server::{Asked, Replies, Server, lock};
use crate::votes::{Rules, Vote};

/// The clock of every quorum: the local clock of the process.
const CLOCK: ClockId = ClockId::new(0x5155_4f52_554d);
/// The servers that a quorum may have.
const SERVERS: std::ops::RangeInclusive<usize> = 3..=9;

/// The votes on each request of a batch.
type Votes<T> = Vec<Vec<Vote<T>>>;
/// The replies of the servers, by their index.
type Ballot<T> = UnboundedReceiver<(usize, Replies<T>)>;

/// A [`LockBackend`] over an odd number of independent servers. A majority of them grants a lock.
///
/// The [crate's documentation](crate) says how it works, and when to use it.
///
/// # Errors of the commands
/// - [`BackendError::Unavailable`] if no quorum of servers can be reached, and nothing was executed.
/// - [`BackendError::OutcomeUnknown`] if too few servers answered, and some may have executed the
///   command.
/// - [`BackendError::Rejected`] for a lease above [`max_lease`](Self::max_lease), before any I/O.
/// - The error of a server, if all servers that failed have a permanent one.
///
/// The source of an error is that of one server.
///
/// # Cancel safety
/// Dropping the future of a command doesn't take back what was sent. Release the operation, as after
/// any unknown outcome.
pub struct Quorum {
    runtime: Arc<dyn Runtime>,
    servers: Vec<Arc<Server>>,
    backends: Vec<Arc<dyn LockBackend>>,
    rules: Rules,
    capabilities: Capabilities,
    call_timeout: Duration,
    max_lease: Duration,
    floors: Mutex<Floors>,
    fates: Fates,
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum")
            .field("servers", &self.backends)
            .field("call_timeout", &self.call_timeout)
            .field("max_lease", &self.max_lease)
            .finish_non_exhaustive()
    }
}

impl Quorum {
    /// Creates a quorum of servers, one backend for each.
    ///
    /// Every client of the same locks must name the same servers. The servers must fail
    /// independently: none is a replica of another, and none is a cluster. All times are read from
    /// the [runtime](LockBackend::runtime) of the first backend.
    ///
    /// To mix types, pass `Arc<dyn LockBackend>`.
    ///
    /// # Errors
    /// [`InvalidInput::Setting`] unless there are 3, 5, 7 or 9 backends. An even number tolerates no
    /// more failures than the odd number below it.
    pub fn new<B: LockBackend>(
        backends: impl IntoIterator<Item = B>,
    ) -> Result<Self, InvalidInput> {
        let backends = backends.into_iter().map(|backend| Arc::new(backend) as _);
        let backends: Vec<Arc<dyn LockBackend>> = backends.collect();
        if !SERVERS.contains(&backends.len()) || backends.len().is_multiple_of(2) {
            return Err(InvalidInput::Setting {
                what: "servers",
                problem: format!("a quorum has 3, 5, 7 or 9 servers, not {}", backends.len()),
            });
        }
        let all = |has: fn(Capabilities) -> bool| backends.iter().all(|b| has(b.capabilities()));
        let mut capabilities = Capabilities::minimal();
        capabilities.fencing_tokens = all(|inner| inner.fencing_tokens);
        capabilities.independent_renewal = all(|inner| inner.independent_renewal);
        capabilities.batches = all(|inner| inner.batches);
        let mut quorum = Self {
            runtime: backends[0].runtime(),
            servers: Vec::new(),
            rules: Rules {
                servers: backends.len(),
                tokens: capabilities.fencing_tokens,
            },
            backends,
            capabilities,
            call_timeout: bounds::CALL_TIMEOUT,
            max_lease: bounds::DEFAULT_LEASE,
            floors: Mutex::default(),
            fates: Fates::default(),
        };
        quorum.connect();
        Ok(quorum)
    }

    /// Sets the maximum time of one call, 10 ms to 5 s. The default is 1 s.
    ///
    /// The servers have half of it to answer. The other half is for taking back the grants of an
    /// acquire that no quorum granted.
    ///
    /// # Errors
    /// [`InvalidInput::Setting`] if the timeout is outside the range.
    pub fn call_timeout(mut self, timeout: Duration) -> Result<Self, InvalidInput> {
        InvalidInput::check_time_limit("call_timeout", timeout)?;
        self.call_timeout = timeout;
        self.connect();
        Ok(self)
    }

    /// Sets the longest lease that any client of these servers uses, 100 ms to 1 h. The default is
    /// 30 s, the default lease.
    ///
    /// - A request for a longer lease is [`Rejected`](BackendError::Rejected).
    /// - A server that has lost its data must not serve until the last lease that it granted has
    ///   ended: for this time, its drift, and the [delivery window](bounds::DELIVERY_WINDOW) of 10 s.
    ///   A client that notices a restart waits for it. See the [crate's documentation](crate).
    ///
    /// # Errors
    /// [`InvalidInput::Setting`] if the lease is outside the range.
    pub fn max_lease(mut self, lease: Duration) -> Result<Self, InvalidInput> {
        let limits = bounds::MIN_LEASE..=bounds::MAX_LEASE;
        InvalidInput::check_time("max_lease", lease, limits)?;
        self.max_lease = lease;
        self.connect();
        Ok(self)
    }

    /// Begins anew with the settings. Nothing was sent before.
    fn connect(&mut self) {
        let drift = self.max_lease / bounds::DRIFT_PARTS + bounds::DRIFT_FLOOR;
        let restart_delay = self.max_lease + drift + bounds::DELIVERY_WINDOW;
        let server = |backend: &Arc<dyn LockBackend>| {
            let (backend, runtime) = (Arc::clone(backend), Arc::clone(&self.runtime));
            Arc::new(Server::new(
                backend,
                runtime,
                self.call_timeout,
                restart_delay,
            ))
        };
        self.servers = self.backends.iter().map(server).collect();
    }

    /// When the servers must have answered a call that was sent now.
    fn answers_until(&self, sent: Moment) -> Moment {
        sent.saturating_add(self.call_timeout / 2)
    }

    /// Sends a call to each server, from tasks that go on if the caller doesn't wait for them.
    fn send<T: Send + 'static, F: Future<Output = Replies<T>> + Send + 'static>(
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
    async fn collect<T, R>(
        &self,
        mut ballot: Ballot<T>,
        requests: usize,
        until: Moment,
        count: impl Fn(&[Vote<T>]) -> Option<R>,
    ) -> (Vec<R>, Votes<T>) {
        let none = || (0..self.servers.len()).map(|_| None).collect::<Vec<_>>();
        let mut votes: Votes<T> = (0..requests).map(|_| none()).collect();
        let mut time_is_up = self
            .runtime
            .sleep(until.saturating_since(self.runtime.now()));
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
    fn begin(
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
            return Err(Ok(AcquireReply::Refused(Refused::TooLate)));
        }
        let ballot = self.fates.begin(request.operation, now);
        ballot.map_err(|reason| match reason {
            NoBallot::Ended => Ok(AcquireReply::Refused(Refused::Stale)),
            NoBallot::UnderWay => Err(BackendError::outcome_unknown(
                "an earlier call of this attempt is under way",
            )),
        })
    }

    fn check_lease(&self, lease: Duration) -> Result<(), BackendError> {
        if lease <= self.max_lease {
            return Ok(());
        }
        let max = self.max_lease;
        Err(BackendError::rejected(format!(
            "a lease of {lease:?} is longer than the max_lease of the quorum, {max:?}"
        )))
    }

    /// Reads the clocks of the servers, unless a quorum of them is known. The floor of the tokens
    /// needs them.
    async fn know_clocks(&self, now: Moment, until: Moment) -> Result<(), BackendError> {
        let known = self
            .servers
            .iter()
            .filter(|server| server.time_at(now).is_some());
        if !self.rules.tokens || known.count() >= self.rules.quorum() {
            return Ok(());
        }
        self.read_clocks(until).await
    }

    async fn read_clocks(&self, until: Moment) -> Result<(), BackendError> {
        let read = |_, server: Arc<Server>| Some(async move { vec![server.hello().await] });
        let ballot = self.send(read, |task| self.runtime.spawn(task));
        let count = |votes: &[Vote<()>]| {
            let answered = votes
                .iter()
                .filter(|vote| matches!(vote, Some(Ok(()))))
                .count();
            let missing = votes.iter().filter(|vote| vote.is_none()).count();
            if answered >= self.rules.quorum() {
                return Some(Ok(()));
            }
            (missing == 0).then(|| Err(self.rules.failure(votes, |()| false)))
        };
        let (mut outcomes, _) = self.collect(ballot, 1, until, count).await;
        // Reading a clock changes nothing.
        outcomes.remove(0).map_err(|error| match error {
            BackendError::OutcomeUnknown { .. } => {
                BackendError::unavailable("no quorum of clocks").with_source(error)
            }
            other => other,
        })
    }

    /// Prepares an acquire for all servers.
    ///
    /// The floor is the same for all. No server executes the request after its deliver-before, so
    /// none of their clocks is past the floor then. All servers that don't remember a higher token
    /// grant the same one: the floor + 1.
    fn prepare(&self, mut request: Acquire, now: Moment) -> Asked {
        let ahead = request.deliver_before.saturating_since(time_of(now));
        let deliver_before = now.saturating_add(ahead);
        request.wait = None;
        if self.rules.tokens {
            let times = self
                .servers
                .iter()
                .filter_map(|server| server.time_at(deliver_before));
            let floor = times
                .map(ServerTime::as_micros)
                .chain(request.floor.map(leasehold_api::FencingToken::get))
                .chain(lock(&self.floors).get(&request.key))
                .max();
            request.floor = floor.map(leasehold_api::FencingToken::new);
        }
        Asked {
            request,
            deliver_before,
        }
    }

    /// Notes the tokens of grants that were not elected, as a floor of the next attempt.
    fn note_floor(&self, key: &Key, votes: &[Vote<AcquireReply>], elected: bool) {
        if !self.rules.tokens {
            return;
        }
        let mut floors = lock(&self.floors);
        if elected {
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

    /// Sends acquires to all servers, counts their votes, and takes back what was not elected.
    async fn elect(
        &self,
        asked: Vec<Asked>,
        ballots: Vec<OpenBallot<'_>>,
        until: Moment,
    ) -> Replies<AcquireReply> {
        let asked: Arc<[Asked]> = asked.into();
        let acquire = |_, server: Arc<Server>| {
            let asked = Arc::clone(&asked);
            Some(async move { server.acquire(&asked).await })
        };
        let replies = self.send(acquire, |task| self.runtime.spawn(task));
        let count = |votes: &[Vote<AcquireReply>]| self.rules.acquire(votes);
        let (mut outcomes, votes) = self.collect(replies, asked.len(), until, count).await;
        let now = self.runtime.now();
        let mut lost = Vec::new();
        let decided = asked.iter().zip(ballots).zip(&mut outcomes).zip(&votes);
        for (((asked, ballot), outcome), votes) in decided {
            let elected = matches!(outcome, Ok(AcquireReply::Acquired(_)));
            let verdict = ballot.decide(elected, votes.iter().any(in_doubt), now);
            if verdict == Verdict::Released {
                *outcome = Ok(AcquireReply::Refused(Refused::Stale));
            }
            let elected = matches!(outcome, Ok(AcquireReply::Acquired(_)));
            self.note_floor(&asked.request.key, votes, elected);
            if verdict != Verdict::Stands {
                lost.push((asked, votes.as_slice()));
            }
        }
        if !lost.is_empty() {
            let until = until.saturating_add(self.call_timeout / 2);
            self.take_back(&lost, until).await;
        }
        outcomes
    }

    /// Releases the requests that were not elected, on each server that may have granted them. Waits
    /// for the servers that have.
    async fn take_back(&self, lost: &[(&Asked, &[Vote<AcquireReply>])], until: Moment) {
        let releases = |server: usize| {
            let lost = lost.iter().filter(|(_, votes)| in_doubt(&votes[server]));
            let releases = lost.map(|(asked, _)| {
                let Acquire { key, operation, .. } = &asked.request;
                Release::new(key.clone(), *operation)
            });
            releases.collect::<Vec<_>>()
        };
        let release = |index, server: Arc<Server>| {
            let batch = releases(index);
            (!batch.is_empty()).then_some(async move { server.release(&batch).await })
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

/// The requests of a batch that the servers decide. The others were refused.
fn open<T: Clone, R>(batch: &[T], refused: &[Option<R>]) -> Vec<T> {
    let pairs = batch.iter().zip(refused);
    let open = pairs.filter(|(_, refused)| refused.is_none());
    open.map(|(request, _)| request.clone()).collect()
}

/// The results of a batch: the refusals, and the outcomes of the open requests in between.
fn merge<R>(refused: Vec<Option<R>>, outcomes: Vec<R>) -> Vec<R> {
    let mut outcomes = outcomes.into_iter();
    let results = refused.into_iter();
    results
        .filter_map(|refused| refused.or_else(|| outcomes.next()))
        .collect()
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

/// A local moment on the clock of the quorum.
fn time_of(moment: Moment) -> ServerTime {
    ServerTime::default().saturating_add(moment.since_origin())
}

/// All replies of a call are stamped with the moment when it was made. The times in them count from
/// later moments, so they are true for at least as long as they say.
fn stamped<T>(
    sent: Moment,
    results: Vec<Result<T, BackendError>>,
) -> Vec<Result<Stamped<T>, BackendError>> {
    let stamp = stamp(sent);
    let results = results.into_iter();
    results
        .map(|result| result.map(|reply| Stamped { stamp, reply }))
        .collect()
}

fn stamp(moment: Moment) -> Stamp {
    Stamp {
        clock: CLOCK,
        at: time_of(moment),
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockBackend for Quorum {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime)
    }

    async fn hello(&self) -> Result<Stamp, BackendError> {
        let sent = self.runtime.now();
        self.read_clocks(self.answers_until(sent)).await?;
        Ok(stamp(sent))
    }

    fn clock(&self, _: &Key) -> Option<ClockId> {
        None
    }

    async fn read_clock(&self, _: &Key) -> Result<Stamp, BackendError> {
        self.hello().await
    }

    async fn listen(&self, _: SessionId) -> Result<Notifications, BackendError> {
        Err(BackendError::unsupported("listen"))
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        let sent = self.runtime.now();
        let until = self.answers_until(sent);
        let (mut ballots, mut refused) = (Vec::new(), Vec::new());
        for request in batch {
            let begun = self.begin(request, sent);
            refused.push(begun.map(|ballot| ballots.push(ballot)).err());
        }
        let open = open(batch, &refused);
        if open.is_empty() {
            return stamped(sent, merge(refused, Vec::new()));
        }
        let outcomes = match self.know_clocks(sent, until).await {
            Ok(()) => {
                let asked = open.into_iter();
                let asked = asked.map(|request| self.prepare(request, sent));
                self.elect(asked.collect(), ballots, until).await
            }
            Err(error) => vec![Err(error); open.len()],
        };
        stamped(sent, merge(refused, outcomes))
    }

    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        let unsupported = || Err(BackendError::unsupported("poll"));
        batch.iter().map(|_| unsupported()).collect()
    }

    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        let sent = self.runtime.now();
        let refuse = |renew: &Renew| self.check_lease(renew.lease).err().map(Err);
        let refused: Vec<_> = batch.iter().map(refuse).collect();
        let requests: Arc<[Renew]> = open(batch, &refused).into();
        let renew = |_, server: Arc<Server>| {
            let requests = Arc::clone(&requests);
            (!requests.is_empty()).then_some(async move { server.renew(&requests).await })
        };
        let ballot = self.send(renew, |task| self.runtime.spawn_on_renewal_thread(task));
        let count = |votes: &[Vote<RenewReply>]| self.rules.renew(votes);
        let until = self.answers_until(sent);
        let (outcomes, _) = self.collect(ballot, requests.len(), until, count).await;
        stamped(sent, merge(refused, outcomes))
    }

    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>> {
        let sent = self.runtime.now();
        for request in batch {
            self.fates.end(request.operation, sent);
        }
        let requests: Arc<[Release]> = batch.into();
        let release = |_, server: Arc<Server>| {
            let requests = Arc::clone(&requests);
            Some(async move { server.release(&requests).await })
        };
        let ballot = self.send(release, |task| self.runtime.spawn(task));
        let count = |votes: &[Vote<ReleaseReply>]| self.rules.release(votes);
        let until = self.answers_until(sent);
        let (outcomes, _) = self.collect(ballot, batch.len(), until, count).await;
        stamped(sent, outcomes)
    }

    async fn convert(&self, _: &Convert) -> Result<Stamped<ConvertReply>, BackendError> {
        Err(BackendError::unsupported("convert"))
    }

    async fn inspect(&self, _: &Key) -> Result<Stamped<InspectReply>, BackendError> {
        Err(BackendError::unsupported("inspect"))
    }

    async fn force_release(&self, _: &ForceRelease) -> Result<Stamped<ForceReply>, BackendError> {
        Err(BackendError::unsupported("force_release"))
    }

    /// Closes the backends of all servers. Grants that are still to be taken back end with their
    /// leases.
    async fn close(&self) -> Result<(), BackendError> {
        let closed = join_all(self.backends.iter().map(|backend| backend.close())).await;
        closed.into_iter().collect()
    }
}
