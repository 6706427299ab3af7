//! The backend over several servers.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Capabilities, ClockId, Convert, ConvertReply,
    ForceRelease, ForceReply, InspectReply, InvalidInput, Key, List, Listed, LockBackend, Moment,
    Note, NoteReply, Notifications, Poll, PollReply, Release, ReleaseReply, Renew, RenewReply,
    Runtime, ServerTime, SessionId, Stamp, Stamped, bounds,
};

use crate::fates::Fates;
use crate::floors::Floors;
use crate::repair;
use crate::server::{Server, Settings};
use crate::votes::{Rules, Vote};

/// The clock of every quorum: the local clock of the process.
const CLOCK: ClockId = ClockId::new(0x5155_4f52_554d);
/// The servers that a quorum may have.
const SERVERS: std::ops::RangeInclusive<usize> = 3..=9;

/// A [`LockBackend`] over an odd number of independent servers. A majority of them grants a lock.
///
/// The [crate's documentation](crate) says how it works, and when to use it.
///
/// # Errors of the commands
/// - [`BackendError::Unavailable`] if no quorum of servers can be reached, and nothing was executed.
/// - [`BackendError::OutcomeUnknown`] if too few servers answered, and some may have executed the
///   command.
/// - [`BackendError::Rejected`] for a lease above [`max_lease`](Self::max_lease), before any I/O; and
///   for each acquire if two of the backends have reached the same server, once both have answered. Until then, that
///   server's votes on a renewal or a release count once.
/// - The error of a server, if all servers that failed have a permanent one.
///
/// The source of an error is that of one server.
///
/// # Cancel safety
/// Dropping the future of a command doesn't take back what was sent. Release the operation, as after
/// any unknown outcome.
pub struct Quorum {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) servers: Vec<Arc<Server>>,
    pub(crate) rules: Rules,
    capabilities: Capabilities,
    pub(crate) settings: Settings,
    pub(crate) floors: Mutex<Floors>,
    pub(crate) fates: Arc<Fates>,
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum")
            .field("servers", &self.backends().collect::<Vec<_>>())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Quorum {
    /// Creates a quorum of servers, one backend for each.
    ///
    /// Every client of the same locks must name the same servers, each once. The servers must fail
    /// independently: none is a replica of another, and none is a cluster. All times are read from
    /// the [runtime](LockBackend::runtime) of the first backend.
    ///
    /// To mix types, pass `Arc<dyn LockBackend>`.
    ///
    /// # Errors
    /// [`InvalidInput`] unless there are 3, 5, 7 or 9 backends. An even number tolerates no
    /// more failures than the odd number below it.
    pub fn new<B: LockBackend>(
        backends: impl IntoIterator<Item = B>,
    ) -> Result<Self, InvalidInput> {
        let backends = backends.into_iter().map(|backend| Arc::new(backend) as _);
        let backends: Vec<Arc<dyn LockBackend>> = backends.collect();
        if !SERVERS.contains(&backends.len()) || backends.len().is_multiple_of(2) {
            let reason = format!("a quorum has 3, 5, 7 or 9 servers, not {}", backends.len());
            return Err(InvalidInput::setting("servers", reason));
        }
        let all = |has: fn(Capabilities) -> bool| backends.iter().all(|b| has(b.capabilities()));
        let mut capabilities = Capabilities::minimal();
        capabilities.independent_renewal = all(|inner| inner.independent_renewal);
        capabilities.batches = all(|inner| inner.batches);
        let errors = backends.iter().map(|it| it.capabilities().clock_error);
        capabilities.clock_error = errors.max().unwrap_or_default();
        let runtime = backends[0].runtime();
        let settings = Settings::default();
        let server = |backend| Arc::new(Server::new(backend, Arc::clone(&runtime), settings));
        let servers: Vec<_> = backends.into_iter().map(server).collect();
        Ok(Self {
            rules: Rules {
                servers: servers.len(),
            },
            runtime,
            servers,
            capabilities,
            settings,
            floors: Mutex::default(),
            fates: Arc::default(),
        })
    }

    /// Sets the maximum time of one call, 10 ms to 5 s. The default is 1 s.
    ///
    /// The servers have half of it to answer. The other half is for taking back the grants of an
    /// acquire that no quorum granted.
    ///
    /// # Errors
    /// [`InvalidInput`] if the timeout is outside the range.
    pub fn call_timeout(self, timeout: Duration) -> Result<Self, InvalidInput> {
        bounds::check_time_limit("call_timeout", timeout)?;
        Ok(self.with(|settings| settings.call_timeout = timeout))
    }

    /// Sets the longest lease that any client of these servers uses, 100 ms to 1 h. The default is
    /// 30 s, the default lease.
    ///
    /// - A client refuses a longer lease as [`InvalidInput`], and a request for one is
    ///   [`Rejected`](BackendError::Rejected).
    /// - A server that has lost its data must not serve until the last lease that it granted has
    ///   ended: for this time, its drift, and the [delivery window](bounds::DELIVERY_WINDOW) of 10 s.
    ///   A client that notices a restart waits for it. See the [crate's documentation](crate).
    ///
    /// # Errors
    /// [`InvalidInput`] if the lease is outside the range.
    pub fn max_lease(self, lease: Duration) -> Result<Self, InvalidInput> {
        let limits = bounds::MIN_LEASE..=bounds::MAX_LEASE;
        bounds::check_time("max_lease", lease, limits)?;
        Ok(self.with(|settings| settings.max_lease = lease))
    }

    /// States whether each server has all its data after a restart, down to the last write that it
    /// answered. The default is `false`.
    ///
    /// - `false`: a client that notices a restart doesn't count the server's grants until every lease
    ///   that the server may have forgotten has ended (see [`max_lease`](Self::max_lease)). If a majority
    ///   restarts within that time, nobody acquires a lock until it is over.
    /// - `true`: the server's grants count at once, so servers may restart one after the other. **If a
    ///   server has lost data all the same, two clients may hold a lock.** No client notices that.
    ///
    /// A quorum can't find this out: no answer of a server proves that its very last writes survived. For
    /// Redis, it takes `appendonly yes`, `appendfsync always` and `no-appendfsync-on-rewrite no`.
    ///
    /// ```
    /// # use leasehold_sim::SimServer;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let servers = [1, 2, 3].map(|seed| SimServer::new(seed).client("a"));
    /// let quorum = leasehold_quorum::Quorum::new(servers)?.restarts_keep_data(true);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn restarts_keep_data(self, keep: bool) -> Self {
        self.with(|settings| settings.restarts_keep_data = keep)
    }

    /// Begins anew with other settings. Nothing was sent before.
    fn with(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(&mut self.settings);
        let anew = |backend: &Arc<dyn LockBackend>| {
            let (backend, runtime) = (Arc::clone(backend), Arc::clone(&self.runtime));
            Arc::new(Server::new(backend, runtime, self.settings))
        };
        self.servers = self.backends().map(anew).collect();
        self
    }

    fn backends(&self) -> impl Iterator<Item = &Arc<dyn LockBackend>> {
        self.servers.iter().map(|server| &server.backend)
    }

    /// Reads the clocks of this many servers.
    async fn greet(&self, wanted: usize) -> Result<Stamp, BackendError> {
        let sent = self.runtime.now();
        self.read_clocks(wanted, self.answers_until(sent)).await?;
        self.check_distinct()?;
        Ok(stamp(sent))
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

/// A local moment on the clock of the quorum.
pub(crate) fn time_of(moment: Moment) -> ServerTime {
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
        let mut capabilities = self.capabilities;
        capabilities.max_lease = capabilities.max_lease.min(self.settings.max_lease);
        capabilities
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime)
    }

    async fn hello(&self) -> Result<Stamp, BackendError> {
        // Whether two of them are the same shows only when both have answered.
        self.greet(self.servers.len()).await
    }

    fn clock(&self, _: &Key) -> Option<ClockId> {
        None
    }

    fn clock_address(&self, _: ClockId) -> Option<String> {
        None
    }

    fn time_of_day(&self, at: ServerTime) -> ServerTime {
        at
    }

    async fn read_clock(&self, _: &Key) -> Result<Stamp, BackendError> {
        self.greet(self.rules.quorum()).await
    }

    async fn self_check(&self, key: &Key) -> Result<(), BackendError> {
        let checked = join_all(self.backends().map(|it| it.self_check(key))).await;
        checked.into_iter().collect()
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
                self.vote(asked.collect(), ballots, until).await
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
            let (fates, requests) = (Arc::clone(&self.fates), Arc::clone(&requests));
            (!requests.is_empty()).then(|| repair::renew(server, fates, requests))
        };
        let ballot = self.send(renew, |task| self.runtime.spawn_on_renewal_thread(task));
        let count = |votes: &[Vote<RenewReply>]| self.rules.renew(&self.distinct(votes));
        let until = self.answers_until(sent);
        let (outcomes, _) = self.collect(ballot, requests.len(), until, count).await;
        for (request, outcome) in requests.iter().zip(&outcomes) {
            if matches!(outcome, Ok(RenewReply::Lost(_))) {
                self.fates.lose(request.operation, self.runtime.now());
            }
        }
        stamped(sent, merge(refused, outcomes))
    }

    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>> {
        let sent = self.runtime.now();
        for request in batch {
            self.fates.end(request.operation, sent);
        }
        let requests: Arc<[Release]> = batch.into();
        let release = |_, server: Arc<Server>| Some(server.release(Arc::clone(&requests)));
        let ballot = self.send(release, |task| self.runtime.spawn(task));
        let count = |votes: &[Vote<ReleaseReply>]| self.rules.release(&self.distinct(votes));
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

    async fn list(&self, _: &List) -> Result<Listed, BackendError> {
        Err(BackendError::unsupported("list"))
    }

    async fn force_release(&self, _: &ForceRelease) -> Result<Stamped<ForceReply>, BackendError> {
        Err(BackendError::unsupported("force_release"))
    }

    /// Servers of a quorum number the epochs (successive holders) of a key separately, so they can't agree on the newer
    /// note.
    async fn write_note(&self, _: &Note) -> Result<Stamped<NoteReply>, BackendError> {
        Err(BackendError::unsupported("write_note"))
    }

    /// Closes the backends of all servers. Grants that are still to be taken back end with their
    /// leases.
    async fn close(&self) -> Result<(), BackendError> {
        let closed = join_all(self.backends().map(|it| it.close())).await;
        closed.into_iter().collect()
    }
}
