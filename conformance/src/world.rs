//! The steps that cases are made of: sessions, and the attempts that they send.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_api::{
    Acquire, AcquireReply, Acquired, Capabilities, Contended, Convert, ConvertReply, FencingToken,
    ForceRelease, ForceReply, InspectReply, Key, Label, Limits, LockBackend, LockSpec, Mode,
    Operation, OwnerId, Policy, Poll, PollReply, Queued, Refused, Release, ReleaseReply, Renew,
    RenewReply, ServerTime, SessionId, Stamp, Stamped, Wait,
};

use crate::case::Case;
use crate::failure::{Failure, Verdict, ensure, want};
use crate::harness::{Environment, Harness, Timing};

/// How long an acquire may be delivered, within the delivery window of 10 s.
const DELIVERABLE: Duration = Duration::from_secs(5);

/// The environment that one case runs in.
#[derive(Debug)]
pub(crate) struct World {
    environment: Arc<dyn Environment>,
    timing: Timing,
    capabilities: Capabilities,
}

impl World {
    pub(crate) async fn new(harness: &dyn Harness, case: Case) -> Result<Self, Failure> {
        let random = RandomState::new().build_hasher().finish();
        let namespace = format!("{}-{}-{random:016x}", case.family, case.name);
        let environment = harness
            .environment(&namespace)
            .await
            .map_err(|error| Failure::setup(&error))?;
        Ok(Self {
            environment,
            timing: harness.timing(),
            capabilities: harness.capabilities(),
        })
    }

    pub(crate) async fn close(&self) {
        self.environment.close().await;
    }

    /// The capabilities that the harness declares.
    pub(crate) const fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    pub(crate) fn environment(&self) -> &dyn Environment {
        &*self.environment
    }

    /// Connects a new client.
    pub(crate) async fn backend(&self) -> Result<Arc<dyn LockBackend>, Failure> {
        let backend = self.environment.backend().await;
        backend.map_err(|error| Failure::setup(&error))
    }

    /// Creates a session on a new client.
    pub(crate) async fn session(&self) -> Result<Session, Failure> {
        Ok(Session::on(self.backend().await?))
    }

    /// Creates several sessions, each on a new client.
    pub(crate) async fn sessions<const N: usize>(&self) -> Result<[Session; N], Failure> {
        let mut sessions = Vec::with_capacity(N);
        for _ in 0..N {
            sessions.push(self.session().await?);
        }
        Ok(<[Session; N]>::try_from(sessions).expect("there are N sessions"))
    }

    /// Returns `n` units of the harness's time.
    pub(crate) fn units(&self, n: u32) -> Duration {
        self.timing.unit * n
    }

    pub(crate) async fn pass(&self, units: u32) {
        self.environment.let_time_pass(self.units(units)).await;
    }

    pub(crate) async fn pass_for(&self, time: Duration) {
        self.environment.let_time_pass(time).await;
    }

    /// Fails the case unless the lease expires at `expiry`, within the tolerance.
    pub(crate) fn ends_at(
        &self,
        (stamp, remaining): (Stamp, Duration),
        expiry: ServerTime,
        rule: &'static str,
        promise: &str,
    ) -> Verdict {
        let actual = stamp.at.saturating_add(remaining).as_micros();
        let difference = Duration::from_micros(actual.abs_diff(expiry.as_micros()));
        if difference <= self.timing.tolerance {
            return Ok(());
        }
        let left = expiry.saturating_since(stamp.at);
        let expected = format!("{left:?} left, plus or minus {:?}", self.timing.tolerance);
        Err(Failure::new(rule, promise, expected, remaining))
    }
}

/// A key and the kind of lock that a case uses it as.
#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub(crate) key: Key,
    pub(crate) spec: LockSpec,
}

impl Lock {
    pub(crate) fn new(name: &str, spec: LockSpec) -> Self {
        let key = Key::new(name).expect("scenario keys are valid");
        Self { key, spec }
    }

    pub(crate) fn mutex(name: &str) -> Self {
        Self::new(name, LockSpec::mutex())
    }

    pub(crate) fn rw(name: &str) -> Self {
        Self::new(name, LockSpec::rw_lock())
    }

    pub(crate) fn semaphore(name: &str, permits: u32) -> Self {
        let spec = LockSpec::semaphore(permits).expect("scenario permits are valid");
        Self::new(name, spec)
    }

    pub(crate) fn policy(mut self, policy: Policy) -> Self {
        self.spec = self
            .spec
            .with_policy(policy)
            .expect("the policy fits the kind");
        self
    }

    pub(crate) fn waiter_lease(mut self, lease: Duration) -> Self {
        let spec = self.spec.with_waiter_lease(lease);
        self.spec = spec.expect("scenario waiter leases are valid");
        self
    }
}

/// A session, which numbers its attempts.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) backend: Arc<dyn LockBackend>,
    pub(crate) id: SessionId,
    sequence: Arc<AtomicU64>,
}

impl Session {
    pub(crate) fn on(backend: Arc<dyn LockBackend>) -> Self {
        let mut id = [0; 16];
        backend.runtime().fill_random(&mut id);
        Self {
            backend,
            id: SessionId::from_bytes(id),
            sequence: Arc::new(AtomicU64::new(0)),
        }
    }

    /// The server's time.
    pub(crate) async fn now(&self) -> Result<ServerTime, Failure> {
        Ok(self.backend.hello().await?.at)
    }

    pub(crate) fn owner(&self) -> OwnerId {
        OwnerId::from_u64(self.backend.runtime().random_u64())
    }

    /// Numbers the next attempt of the given owner.
    pub(crate) fn operation(&self, owner: OwnerId) -> Operation {
        Operation {
            session: self.id,
            sequence: self.sequence.fetch_add(1, Ordering::Relaxed) + 1,
            owner,
        }
    }

    /// Prepares an attempt: exclusive (or one permit), by a new owner, with a long lease, without
    /// waiting.
    pub(crate) fn ask(&self, lock: &Lock) -> Ask {
        let mode = match lock.spec.kind() {
            leasehold_api::Kind::Semaphore => Mode::Permits(1),
            _ => Mode::Exclusive,
        };
        Ask {
            session: self.clone(),
            lock: lock.clone(),
            mode,
            operation: self.operation(self.owner()),
            label: Label::new("").expect("empty is short enough"),
            lease: Duration::from_secs(30),
            wait: None,
            floor: None,
            limits: Limits::default(),
        }
    }

    pub(crate) async fn inspect(&self, lock: &Lock) -> Result<Stamped<InspectReply>, Failure> {
        Ok(self.backend.inspect(&lock.key).await?)
    }

    pub(crate) async fn force(&self, request: &ForceRelease) -> Result<ForceReply, Failure> {
        Ok(self.backend.force_release(request).await?.reply)
    }
}

/// An attempt that is not sent yet.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    session: Session,
    lock: Lock,
    mode: Mode,
    operation: Operation,
    label: Label,
    lease: Duration,
    wait: Option<Wait>,
    floor: Option<FencingToken>,
    limits: Limits,
}

impl Ask {
    pub(crate) fn shared(mut self) -> Self {
        self.mode = Mode::Shared;
        self
    }

    pub(crate) fn permits(mut self, n: u32) -> Self {
        self.mode = Mode::Permits(n);
        self
    }

    pub(crate) fn owner(mut self, owner: OwnerId) -> Self {
        self.operation.owner = owner;
        self
    }

    pub(crate) fn label(mut self, label: &str) -> Self {
        self.label = Label::new(label).expect("scenario labels are short");
        self
    }

    pub(crate) fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Waits in the queue, without a subscription.
    pub(crate) fn wait(self) -> Self {
        self.wait_as(Wait::new(false))
    }

    pub(crate) fn wait_as(mut self, wait: Wait) -> Self {
        self.wait = Some(wait);
        self
    }

    pub(crate) fn floor(mut self, floor: FencingToken) -> Self {
        self.floor = Some(floor);
        self
    }

    pub(crate) fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Builds the request, deliverable from now on.
    pub(crate) async fn build(&self) -> Result<Acquire, Failure> {
        let deliver_before = self.session.now().await?.saturating_add(DELIVERABLE);
        self.build_until(deliver_before)
    }

    pub(crate) fn build_until(&self, deliver_before: ServerTime) -> Result<Acquire, Failure> {
        let mut request = Acquire::new(
            self.lock.key.clone(),
            self.lock.spec,
            self.mode,
            self.operation,
            self.lease,
            deliver_before,
        )?
        .with_label(self.label.clone())
        .with_limits(self.limits);
        if let Some(wait) = self.wait {
            request = request.with_wait(wait);
        }
        if let Some(floor) = self.floor {
            request = request.with_floor(floor)?;
        }
        Ok(request)
    }

    /// Sends the attempt.
    pub(crate) async fn send(self) -> Result<(Attempt, AcquireReply), Failure> {
        let request = self.build().await?;
        Attempt::send(self.session, request).await
    }

    /// Sends the attempt and expects that it is granted.
    pub(crate) async fn acquired(self, rule: &'static str) -> Result<Attempt, Failure> {
        let (attempt, reply) = self.send().await?;
        want!(
            reply,
            AcquireReply::Acquired(_),
            rule,
            "an attempt on a free key is granted"
        );
        Ok(attempt)
    }

    /// Sends the attempt and expects that it waits.
    pub(crate) async fn queued(self, rule: &'static str) -> Result<(Attempt, Queued), Failure> {
        let (attempt, reply) = self.send().await?;
        let queued = want!(
            reply,
            AcquireReply::Queued(queued) => queued,
            rule,
            "an attempt that may wait joins the queue while the key is held"
        );
        Ok((attempt, queued))
    }

    /// Sends the attempt and expects that somebody else holds the key.
    pub(crate) async fn held(self, rule: &'static str) -> Result<Contended, Failure> {
        let (_, reply) = self.send().await?;
        let held = want!(
            reply,
            AcquireReply::Contended(held) => held,
            rule,
            "an attempt that doesn't wait learns that the key is held"
        );
        Ok(held)
    }

    /// Sends the attempt and expects that it is refused.
    pub(crate) async fn refused(self, rule: &'static str) -> Result<Refused, Failure> {
        let (_, reply) = self.send().await?;
        let refused = want!(
            reply,
            AcquireReply::Refused(refused) => refused,
            rule,
            "the attempt is refused"
        );
        Ok(refused)
    }
}

/// An attempt that was sent.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) session: Session,
    pub(crate) request: Acquire,
    /// The stamp of the first reply.
    pub(crate) stamp: Stamp,
    first: AcquireReply,
}

impl Attempt {
    pub(crate) async fn send(
        session: Session,
        request: Acquire,
    ) -> Result<(Self, AcquireReply), Failure> {
        let answers = session.backend.acquire(from_ref(&request)).await;
        let Stamped { stamp, reply } = one(answers)?;
        let attempt = Self {
            session,
            request,
            stamp,
            first: reply.clone(),
        };
        Ok((attempt, reply))
    }

    fn granted(&self) -> Acquired {
        match &self.first {
            AcquireReply::Acquired(acquired) => *acquired,
            other => unreachable!("the case expects a grant, not {other:?}"),
        }
    }

    /// The token of an attempt that was granted at once.
    pub(crate) fn token(&self) -> FencingToken {
        self.granted().token
    }

    /// The holds of an attempt that was granted at once.
    pub(crate) fn holds(&self) -> u32 {
        self.granted().holds
    }

    /// The expiry of the lease of an attempt that was granted at once.
    pub(crate) fn end_time(&self) -> ServerTime {
        self.stamp.at.saturating_add(self.granted().remaining)
    }

    pub(crate) const fn operation(&self) -> Operation {
        self.request.operation
    }

    /// Delivers the same acquire again.
    pub(crate) async fn again(&self) -> Result<Stamped<AcquireReply>, Failure> {
        let request = from_ref(&self.request);
        one(self.session.backend.acquire(request).await)
    }

    pub(crate) fn poll_request(&self, listening: bool) -> Poll {
        Poll::new(self.request.key.clone(), self.operation(), listening)
    }

    /// Polls as a session that doesn't listen.
    pub(crate) async fn poll(&self) -> Result<Stamped<PollReply>, Failure> {
        self.poll_as(false).await
    }

    pub(crate) async fn poll_as(&self, listening: bool) -> Result<Stamped<PollReply>, Failure> {
        let batch = [self.poll_request(listening)];
        one(self.session.backend.poll(&batch).await)
    }

    /// Polls and expects a grant.
    pub(crate) async fn poll_granted(&self, rule: &'static str) -> Result<Acquired, Failure> {
        Ok(want!(
            self.poll().await?.reply,
            PollReply::Acquired(acquired) => acquired,
            rule,
            "a waiter gets the key when it is its turn"
        ))
    }

    /// Polls and expects that the attempt still waits.
    pub(crate) async fn poll_queued(&self, rule: &'static str) -> Result<Queued, Failure> {
        Ok(want!(
            self.poll().await?.reply,
            PollReply::Queued(queued) => queued,
            rule,
            "a waiter waits until its turn"
        ))
    }

    /// Polls and expects that the attempt neither waits nor holds.
    pub(crate) async fn poll_gone(&self, rule: &'static str, promise: &str) -> Verdict {
        want!(
            self.poll().await?.reply,
            PollReply::Gone(_),
            rule,
            "{promise}"
        );
        Ok(())
    }

    pub(crate) fn renew_request(&self, lease: Duration) -> Result<Renew, Failure> {
        Ok(Renew::new(
            self.request.key.clone(),
            self.operation(),
            lease,
        )?)
    }

    pub(crate) async fn renew(&self, lease: Duration) -> Result<Stamped<RenewReply>, Failure> {
        let batch = [self.renew_request(lease)?];
        one(self.session.backend.renew(&batch).await)
    }

    /// Renews and expects that the lock is lost.
    pub(crate) async fn renewal_lost(
        &self,
        lease: Duration,
        rule: &'static str,
        promise: &str,
    ) -> Verdict {
        let reply = self.renew(lease).await?.reply;
        want!(reply, RenewReply::Lost(_), rule, "{promise}");
        Ok(())
    }

    /// Renews and expects that the lock is still held.
    pub(crate) async fn renewed(
        &self,
        lease: Duration,
        rule: &'static str,
    ) -> Result<(FencingToken, ServerTime), Failure> {
        let Stamped { stamp, reply } = self.renew(lease).await?;
        Ok(want!(
            reply,
            RenewReply::Renewed { token, remaining } => (token, stamp.at.saturating_add(remaining)),
            rule,
            "a valid lease is renewed"
        ))
    }

    pub(crate) fn release_request(&self) -> Release {
        Release::new(self.request.key.clone(), self.operation())
    }

    pub(crate) async fn release(&self) -> Result<ReleaseReply, Failure> {
        let batch = [self.release_request()];
        Ok(one(self.session.backend.release(&batch).await)?.reply)
    }

    /// Releases and expects that it was the owner's last hold.
    pub(crate) async fn released(&self, rule: &'static str) -> Verdict {
        want!(
            self.release().await?,
            ReleaseReply::Released {
                holds_left: 0,
                holder: None
            },
            rule,
            "a release of the only hold frees the key"
        );
        Ok(())
    }

    /// Releases and expects that `left` holds of the owner remain.
    pub(crate) async fn release_leaves(
        &self,
        left: u32,
        rule: &'static str,
        promise: &str,
    ) -> Verdict {
        want!(
            self.release().await?,
            ReleaseReply::Released { holds_left, .. } if holds_left == left,
            rule,
            "{promise}"
        );
        Ok(())
    }

    /// Releases and expects that the attempt waits, and so leaves the queue.
    pub(crate) async fn leaves(&self, rule: &'static str) -> Verdict {
        want!(
            self.release().await?,
            ReleaseReply::Left,
            rule,
            "a release of a waiting attempt removes it from the queue"
        );
        Ok(())
    }

    /// Releases and expects that the attempt holds nothing.
    pub(crate) async fn not_held(&self, rule: &'static str, promise: &str) -> Verdict {
        want!(
            self.release().await?,
            ReleaseReply::NotHeld(_),
            rule,
            "{promise}"
        );
        Ok(())
    }

    /// Downgrades, and returns the token of the new epoch.
    pub(crate) async fn downgraded(&self, expected: FencingToken) -> Result<FencingToken, Failure> {
        Ok(want!(
            self.downgrade(expected).await?.reply,
            ConvertReply::Converted { token, .. } => token,
            "rule 6",
            "a writer can downgrade at any time"
        ))
    }

    /// Upgrades, and returns the token of the new epoch.
    pub(crate) async fn upgraded(&self, expected: FencingToken) -> Result<FencingToken, Failure> {
        Ok(want!(
            self.upgrade(expected).await?.reply,
            ConvertReply::Converted { token, .. } => token,
            "rule 6",
            "the only reader can upgrade"
        ))
    }

    pub(crate) async fn downgrade(
        &self,
        expected: FencingToken,
    ) -> Result<Stamped<ConvertReply>, Failure> {
        let request = Convert::to_shared(self.request.key.clone(), self.operation(), expected);
        Ok(self.session.backend.convert(&request).await?)
    }

    pub(crate) async fn upgrade(
        &self,
        expected: FencingToken,
    ) -> Result<Stamped<ConvertReply>, Failure> {
        let request = Convert::to_exclusive(self.request.key.clone(), self.operation(), expected);
        Ok(self.session.backend.convert(&request).await?)
    }
}

/// The only reply to a batch of one.
pub(crate) fn one<T: std::fmt::Debug>(
    mut answers: Vec<Result<Stamped<T>, leasehold_api::BackendError>>,
) -> Result<Stamped<T>, Failure> {
    let count = answers.len();
    ensure!(
        count == 1,
        "trait contract",
        count,
        "a batch has one reply per request"
    );
    Ok(answers.remove(0)?)
}
