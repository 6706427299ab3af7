//! One server of a quorum: its clock as this client knows it, and the releases that it still owes
//! an answer.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_api::{
    Acquire, AcquireReply, BackendError, ClockId, Key, LockBackend, Moment, Operation, Release,
    ReleaseReply, Renew, RenewReply, Runtime, ServerTime, Stamp, Stamped, bounds,
};

/// The results of a batch, one for each request.
pub(crate) type Replies<T> = Vec<Result<T, BackendError>>;

/// The maximum number of releases that a server may owe an answer. Those above it are left to their
/// leases.
const MAX_OWED: usize = 10_000;
/// The first pause between two tries of the owed releases, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Smaller clock ids name no server: they are the same for all stores, and for all servers that don't tell their
/// identity.
const FIRST_NAME: u64 = 1 << 16;

/// An acquire for all servers. Its times are on the local clock.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) request: Acquire,
    pub(crate) deliver_before: Moment,
}

/// What the user can set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// The maximum time of one call.
    pub(crate) call_timeout: Duration,
    pub(crate) max_lease: Duration,
    /// Whether a server that has restarted has its data for certain.
    pub(crate) restarts_keep_data: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            call_timeout: bounds::CALL_TIMEOUT,
            max_lease: bounds::DEFAULT_LEASE,
            restarts_keep_data: false,
        }
    }
}

impl Settings {
    /// How long a server that may have lost its data gets no say in who acquires a lock.
    fn restart_delay(&self) -> Duration {
        let drift = self.max_lease / bounds::DRIFT_PARTS + bounds::DRIFT_FLOOR;
        self.max_lease + drift + bounds::DELIVERY_WINDOW
    }
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) backend: Arc<dyn LockBackend>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) settings: Settings,
    clock: Mutex<Option<Clock>>,
    owed: Mutex<Owed>,
}

/// A sample of the server's clock.
#[derive(Clone, Copy, Debug)]
struct Clock {
    id: ClockId,
    at: ServerTime,
    received: Moment,
    /// When the server's grants begin to count.
    counts_from: Moment,
}

#[derive(Debug, Default)]
struct Owed {
    releases: BTreeMap<Operation, (Key, Moment)>,
    /// Whether a task sends them.
    sending: bool,
}

impl Server {
    pub(crate) fn new(
        backend: Arc<dyn LockBackend>,
        runtime: Arc<dyn Runtime>,
        settings: Settings,
    ) -> Self {
        Self {
            backend,
            runtime,
            settings,
            clock: Mutex::default(),
            owed: Mutex::default(),
        }
    }

    /// The time on the server's clock at a local moment, if the clock is known. It is a lower bound,
    /// up to the drift since the last answer.
    pub(crate) fn time_at(&self, moment: Moment) -> Option<ServerTime> {
        let clock = (*lock(&self.clock))?;
        let elapsed = moment.saturating_since(clock.received);
        Some(clock.at.saturating_add(elapsed))
    }

    /// What names the server, if its clock is known. Of two backends of one server, one may have seen more
    /// steps of its clock.
    pub(crate) fn name(&self) -> Option<u64> {
        let clock = (*lock(&self.clock))?;
        Some(clock.id.server()).filter(|name| *name >= FIRST_NAME)
    }

    /// How long the server's grants don't count yet.
    pub(crate) fn not_counted_for(&self, now: Moment) -> Duration {
        let counts_from = (*lock(&self.clock)).map_or(Moment::default(), |clock| clock.counts_from);
        counts_from.saturating_since(now)
    }

    /// Adds a sample of the server's clock. Another clock means that the server has restarted, or was
    /// replaced. It may have lost grants, so its own grants don't count until those have expired.
    fn observe(&self, stamp: Stamp) {
        let now = self.runtime.now();
        let mut clock = lock(&self.clock);
        let counts_from = match *clock {
            Some(known) if known.id == stamp.clock || self.settings.restarts_keep_data => {
                known.counts_from
            }
            Some(_) => now.saturating_add(self.settings.restart_delay()),
            None => Moment::default(),
        };
        *clock = Some(Clock {
            id: stamp.clock,
            at: stamp.at,
            received: now,
            counts_from,
        });
    }

    pub(crate) async fn hello(&self) -> Result<(), BackendError> {
        let stamp = self.bounded(self.backend.hello()).await;
        self.observe(stamp.unwrap_or_else(|| Err(BackendError::unavailable("no answer in time")))?);
        Ok(())
    }

    /// Sends acquires. Converts their times from the local clock to the server's.
    pub(crate) async fn acquire(self: Arc<Self>, batch: Arc<[Asked]>) -> Replies<AcquireReply> {
        let sent = self.runtime.now();
        if lock(&self.clock).is_none()
            && let Err(error) = self.hello().await
        {
            let error = nothing_changed(error, "the clock could not be read");
            return vec![Err(error); batch.len()];
        }
        let requests = batch.iter().map(|asked| {
            let mut request = asked.request.clone();
            request.deliver_before = self.time_at(asked.deliver_before).unwrap_or_default();
            request
        });
        let requests: Vec<_> = requests.collect();
        let call = self.backend.acquire(&requests);
        let mut replies = self.call(requests.len(), call).await;
        // Asked after the call: its own replies may be the first from a server that has restarted.
        if !self.not_counted_for(sent).is_zero() {
            for reply in &mut replies {
                if matches!(reply, Ok(AcquireReply::Acquired(_))) {
                    *reply = Err(BackendError::outcome_unknown("the server has restarted"));
                }
            }
        }
        replies
    }

    pub(crate) async fn renew(&self, batch: &[Renew]) -> Replies<RenewReply> {
        self.call(batch.len(), self.backend.renew(batch)).await
    }

    /// Releases operations. A release that fails is owed, unless no server can execute it.
    pub(crate) async fn release(self: Arc<Self>, batch: Arc<[Release]>) -> Replies<ReleaseReply> {
        let replies = self.call(batch.len(), self.backend.release(&batch)).await;
        for (request, reply) in batch.iter().zip(&replies) {
            if reply.as_ref().is_err_and(|error| !error.is_final()) {
                self.owe(request);
            }
        }
        replies
    }

    /// Runs a call within its time, and samples the clock.
    async fn call<T>(
        &self,
        count: usize,
        call: impl Future<Output = Vec<Result<Stamped<T>, BackendError>>>,
    ) -> Replies<T> {
        let mut replies = self.bounded(call).await.unwrap_or_default();
        replies.resize_with(count, || {
            Err(BackendError::outcome_unknown("no answer in time"))
        });
        let replies = replies.into_iter().map(|reply| {
            let Stamped { stamp, reply } = reply?;
            self.observe(stamp);
            Ok(reply)
        });
        replies.collect()
    }

    async fn bounded<T>(&self, call: impl Future<Output = T>) -> Option<T> {
        self.runtime.timeout(self.settings.call_timeout, call).await
    }

    /// Sends a release until it is answered, or nothing of the operation can be left.
    fn owe(self: &Arc<Self>, release: &Release) {
        let mut owed = lock(&self.owed);
        if owed.releases.len() >= MAX_OWED {
            return;
        }
        let delay = self.settings.restart_delay();
        let until = self.runtime.now().saturating_add(delay);
        let entry = (release.key.clone(), until);
        owed.releases.entry(release.operation).or_insert(entry);
        if !std::mem::replace(&mut owed.sending, true) {
            let server = Arc::clone(self);
            self.runtime.spawn(Box::pin(server.send_owed()));
        }
    }

    async fn send_owed(self: Arc<Self>) {
        let mut pause = PAUSES.0;
        while let Some(batch) = self.next_owed() {
            let replies = self.call(batch.len(), self.backend.release(&batch)).await;
            let mut failed = false;
            for (request, reply) in batch.iter().zip(replies) {
                if reply.is_err_and(|error| !error.is_final()) {
                    failed = true;
                } else {
                    lock(&self.owed).releases.remove(&request.operation);
                }
            }
            if failed {
                self.runtime.sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            } else {
                pause = PAUSES.0;
            }
        }
    }

    /// The next owed releases. `None` ends the task.
    fn next_owed(&self) -> Option<Vec<Release>> {
        let now = self.runtime.now();
        let mut owed = lock(&self.owed);
        owed.releases.retain(|_, (_, until)| now < *until);
        owed.sending = !owed.releases.is_empty();
        let batch = owed.releases.iter().take(bounds::MAX_BATCH);
        owed.sending.then(|| {
            batch
                .map(|(operation, (key, _))| Release::new(key.clone(), *operation))
                .collect()
        })
    }
}

/// The error of a clock that was not read. Reading a clock changes nothing, so it leaves no doubt: the error is
/// this `reason` then.
pub(crate) fn nothing_changed(error: BackendError, reason: &str) -> BackendError {
    match error {
        BackendError::OutcomeUnknown { .. } => BackendError::unavailable(reason).with_source(error),
        other => other,
    }
}

/// Locks a mutex. No code that can panic runs while it is locked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
