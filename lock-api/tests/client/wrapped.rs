//! A wrapper of the simulated backend that removes capabilities, changes the runtime, records calls
//! and makes calls fail.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, BoxFuture, Capabilities, FencingToken, InspectReply, Key,
    LockBackend, Moment, Notifications, Poll, PollReply, Release, ReleaseReply, Renew, RenewReply,
    Runtime, SessionId, Stamped, forward_lock_backend,
};
use leasehold_sim::SimBackend;

#[derive(Debug)]
pub(crate) struct Wrapped {
    pub(crate) inner: SimBackend,
    pub(crate) capabilities: Capabilities,
    /// Whether grants have a fencing token.
    pub(crate) has_tokens: bool,
    pub(crate) process: Arc<AtomicU32>,
    /// The seconds that the machine was suspended. Its clock counts them, its timers do not.
    pub(crate) suspended: Arc<AtomicU64>,
    /// The time and the size of each batch of polls.
    pub(crate) polls: Arc<Mutex<Vec<(Moment, usize)>>>,
    /// Replaces `poll_after` in replies.
    pub(crate) poll_after: Option<Duration>,
    /// The number of subscriptions to refuse; it counts down.
    pub(crate) refusals: Arc<AtomicUsize>,
    /// All acquire requests.
    pub(crate) acquires: Arc<Mutex<Vec<Acquire>>>,
    /// The size of each batch of acquires, including single ones.
    pub(crate) batches: Arc<Mutex<Vec<usize>>>,
    /// The error of the next batch of acquires.
    pub(crate) acquire_fails: Mutex<Option<BackendError>>,
    /// The size of each batch of releases, including single ones.
    pub(crate) releases: Arc<Mutex<Vec<usize>>>,
    /// A key for which each batch of releases fails after the given time.
    pub(crate) stuck: Option<(Key, Duration)>,
    /// A key that is never answered. Neither is a poll, a renewal or a release in the same batch.
    pub(crate) silent: Option<Key>,
    /// The number of renewals that panic; it counts down.
    pub(crate) panics: Arc<AtomicUsize>,
    /// How long the server takes for each renewal, one after the other, also for those that nobody waits for any more.
    pub(crate) renewals_take: Duration,
    /// When it has executed all renewals that were sent.
    pub(crate) busy_until: Mutex<Moment>,
    /// For how long the answer to an inspection is under way.
    pub(crate) inspections_take: Duration,
}

impl Wrapped {
    pub(crate) fn new(inner: SimBackend) -> Self {
        Self {
            capabilities: inner.capabilities(),
            has_tokens: true,
            inner,
            process: Arc::new(AtomicU32::new(1)),
            suspended: Arc::default(),
            polls: Arc::default(),
            poll_after: None,
            refusals: Arc::default(),
            acquires: Arc::default(),
            batches: Arc::default(),
            acquire_fails: Mutex::default(),
            releases: Arc::default(),
            stuck: None,
            silent: None,
            panics: Arc::default(),
            renewals_take: Duration::ZERO,
            busy_until: Mutex::default(),
            inspections_take: Duration::ZERO,
        }
    }

    fn may_hide(&self, token: &mut FencingToken) {
        if !self.has_tokens {
            *token = FencingToken::default();
        }
    }

    /// Waits until the server has executed this many renewals more.
    async fn execute_renewals(&self, count: usize) {
        let now = self.inner.runtime().now();
        let time = self.renewals_take * u32::try_from(count).expect("a batch");
        let done = {
            let mut busy_until = self.busy_until.lock().expect("no panic");
            *busy_until = now.max(*busy_until).saturating_add(time);
            *busy_until
        };
        if done > now {
            self.inner.runtime().sleep(done.saturating_since(now)).await;
        }
    }

    /// Waits forever if a key is silent.
    async fn hear<'a>(&self, mut keys: impl Iterator<Item = &'a Key>) {
        if keys.any(|key| Some(key) == self.silent.as_ref()) {
            std::future::pending::<()>().await;
        }
    }
}

/// Counts down by one. Returns whether it could, that is, whether the count was not zero yet.
fn counted_down(count: &AtomicUsize) -> bool {
    let one_less = |left: usize| left.checked_sub(1);
    count
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less)
        .is_ok()
}

type Replies<T> = Vec<Result<Stamped<T>, BackendError>>;

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockBackend for Wrapped {
    forward_lock_backend!(|it| it.inner; hello clock read_clock convert force_release list write_note close);
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(Process {
            inner: self.inner.runtime(),
            id: Arc::clone(&self.process),
            suspended: Arc::clone(&self.suspended),
        })
    }
    async fn inspect(&self, key: &Key) -> Result<Stamped<InspectReply>, BackendError> {
        let answer = self.inner.inspect(key).await;
        self.inner.runtime().sleep(self.inspections_take).await;
        answer
    }
    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        if counted_down(&self.refusals) {
            return Err(BackendError::rejected("NOPERM"));
        }
        self.inner.listen(session).await
    }
    async fn acquire(&self, batch: &[Acquire]) -> Replies<AcquireReply> {
        let allowed = batch.len() == 1 || self.capabilities.batches;
        assert!(allowed, "a batch without the capability");
        self.batches.lock().expect("no panic").push(batch.len());
        let mut batch = batch.to_vec();
        if !self.capabilities.queue {
            batch.iter_mut().for_each(|request| request.wait = None);
        }
        let requests = batch.iter().cloned();
        self.acquires.lock().expect("no panic").extend(requests);
        if let Some(error) = self.acquire_fails.lock().expect("no panic").take() {
            return batch.iter().map(|_| Err(error.clone())).collect();
        }
        let mut replies = self.inner.acquire(&batch).await;
        for reply in replies.iter_mut().flatten() {
            if let AcquireReply::Acquired(acquired) = &mut reply.reply {
                self.may_hide(&mut acquired.token);
            }
        }
        if let Some(poll_after) = self.poll_after {
            for reply in replies.iter_mut().flatten() {
                if let AcquireReply::Queued(waiter) = &mut reply.reply {
                    waiter.poll_after = poll_after;
                }
            }
        }
        replies
    }
    async fn poll(&self, batch: &[Poll]) -> Replies<PollReply> {
        assert!(self.capabilities.queue, "polled without a queue");
        let sent = (self.inner.runtime().now(), batch.len());
        self.polls.lock().expect("no panic").push(sent);
        self.hear(batch.iter().map(|poll| &poll.key)).await;
        let mut replies = self.inner.poll(batch).await;
        for reply in replies.iter_mut().flatten() {
            if let PollReply::Acquired(acquired) = &mut reply.reply {
                self.may_hide(&mut acquired.token);
            }
            if let (PollReply::Queued(waiter), Some(poll_after)) =
                (&mut reply.reply, self.poll_after)
            {
                waiter.poll_after = poll_after;
            }
        }
        replies
    }
    async fn renew(&self, batch: &[Renew]) -> Replies<RenewReply> {
        self.hear(batch.iter().map(|renew| &renew.key)).await;
        assert!(!counted_down(&self.panics), "a backend with a fault");
        self.execute_renewals(batch.len()).await;
        self.inner.renew(batch).await
    }
    async fn release(&self, batch: &[Release]) -> Replies<ReleaseReply> {
        self.releases.lock().expect("no panic").push(batch.len());
        if let Some((key, after)) = &self.stuck
            && batch.iter().any(|release| release.key == *key)
        {
            self.inner.runtime().sleep(*after).await;
            let failed = || Err(BackendError::unavailable("stuck"));
            return batch.iter().map(|_| failed()).collect();
        }
        self.hear(batch.iter().map(|release| &release.key)).await;
        self.inner.release(batch).await
    }
}

/// A runtime with a changeable process id, as after a fork, and with suspends.
#[derive(Debug)]
struct Process {
    inner: Arc<dyn Runtime>,
    id: Arc<AtomicU32>,
    suspended: Arc<AtomicU64>,
}

#[deny(clippy::missing_trait_methods)]
impl Runtime for Process {
    fn now(&self) -> Moment {
        let suspended = Duration::from_secs(self.suspended.load(Ordering::SeqCst));
        self.inner.now().saturating_add(suspended)
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.inner.sleep(duration)
    }
    fn spawn(&self, future: BoxFuture<'static, ()>) {
        self.inner.spawn(future);
    }
    fn spawn_on_renewal_thread(&self, future: BoxFuture<'static, ()>) {
        self.inner.spawn_on_renewal_thread(future);
    }
    fn time_of_day(&self) -> Option<Duration> {
        self.inner.time_of_day()
    }
    fn fill_random(&self, bytes: &mut [u8]) {
        self.inner.fill_random(bytes);
    }
    fn process_id(&self) -> u32 {
        self.id.load(Ordering::SeqCst)
    }
    fn default_label(&self) -> String {
        self.inner.default_label()
    }
    fn random_u64(&self) -> u64 {
        self.inner.random_u64()
    }
}
