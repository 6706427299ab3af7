//! The steps that cases are made of: sessions, and the attempts that they send.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_api::{
    Acquire, AcquireReply, Capabilities, Contended, FencingToken, ForceMode, ForceRelease,
    ForceReply, InspectReply, Key, Label, Limits, LockBackend, LockSpec, Mode, Notifications,
    Operation, OwnerId, Queued, Refused, Release, ReleaseReply, Runtime, ServerTime, SessionId,
    Stamp, Stamped, Wait, bounds,
};

pub(crate) use crate::attempt::{Attempt, next_epoch, one};
use crate::case::Case;
use crate::failure::{Checked, Failure, Verdict, ensure, want};
use crate::harness::{Abilities, Environment, Harness, NAMESPACE_BYTES, Timing};

/// How long an acquire may be delivered, within the delivery window of 10 s.
pub(crate) const DELIVERABLE: Duration = Duration::from_secs(5);

/// The environment that one case runs in.
#[derive(Debug)]
pub(crate) struct World {
    environment: Arc<dyn Environment>,
    timing: Timing,
    capabilities: Capabilities,
    abilities: Abilities,
    slowest: Slowest,
}

/// The time of the slowest call of a case, in µs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slowest(Arc<AtomicU64>);

impl Slowest {
    /// Waits for a call, and notes how long it takes.
    pub(crate) async fn time<T>(&self, runtime: &dyn Runtime, call: impl Future<Output = T>) -> T {
        let began = runtime.now();
        let answer = call.await;
        let took = runtime.now().saturating_since(began).as_micros();
        let took = u64::try_from(took).unwrap_or(u64::MAX);
        self.0.fetch_max(took, Ordering::Relaxed);
        answer
    }

    fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// The name of a case's environment: as much of the case's name as fits, and 64 random bits.
fn namespace(case: Case) -> String {
    let mut namespace = format!("{}-{}", case.family, case.name);
    let random = format!("-{:016x}", RandomState::new().build_hasher().finish());
    namespace.truncate(NAMESPACE_BYTES - random.len());
    namespace + &random
}

impl World {
    pub(crate) async fn new(harness: &dyn Harness, case: Case) -> Result<Self, Failure> {
        Ok(Self {
            environment: harness.environment(&namespace(case)).await?,
            timing: harness.timing(),
            capabilities: harness.capabilities(),
            abilities: harness.abilities(),
            slowest: Slowest::default(),
        })
    }

    pub(crate) async fn close(&self) {
        self.environment.close().await;
    }

    /// Cuts all connections of the clients.
    pub(crate) async fn cut(&self) -> Result<(), Failure> {
        Ok(self.environment.cut().await?)
    }

    /// Stops all messages between the clients and the server, or lets them pass again.
    pub(crate) async fn freeze(&self, frozen: bool) -> Result<(), Failure> {
        Ok(self.environment.freeze(frozen).await?)
    }

    /// Stores a foreign value under the key. Connects a client first, so that the backend's tables exist.
    pub(crate) async fn plant_foreign(&self, key: &Key) -> Verdict {
        self.backend().await?.hello().await?;
        Ok(self.environment.plant_foreign(key).await?)
    }

    /// Fails the case if the foreign value under the key has changed.
    pub(crate) async fn foreign_is_untouched(&self, key: &Key) -> Verdict {
        let intact = self.environment.foreign_is_untouched(key).await?;
        ensure!(intact, "the value was changed")
            .promised("rule 14: a foreign value stays unchanged")
    }

    /// The capabilities that the harness declares.
    pub(crate) const fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Whether tokens increase over the epochs of a key.
    pub(crate) const fn has_tokens(&self) -> bool {
        self.abilities.fencing_tokens
    }

    /// Whether several servers vote on each attempt.
    pub(crate) const fn several_servers(&self) -> bool {
        self.abilities.several_servers
    }

    /// How far the stamps of different clients may be apart.
    pub(crate) fn skew(&self) -> Duration {
        match self.several_servers() {
            true => self.tolerance(),
            false => Duration::ZERO,
        }
    }

    /// Connects a new client.
    pub(crate) async fn backend(&self) -> Result<Arc<dyn LockBackend>, Failure> {
        Ok(self.environment.backend().await?)
    }

    /// Creates a session on a new client.
    pub(crate) async fn session(&self) -> Result<Session, Failure> {
        let mut session = Session::on(self.backend().await?);
        session.slowest = self.slowest.clone();
        Ok(session)
    }

    /// Creates several sessions, each on a new client.
    pub(crate) async fn sessions<const N: usize>(&self) -> Result<[Session; N], Failure> {
        several(|| self.session()).await
    }

    /// Creates two sessions, and lets the first one hold the lock, with a lease of 30 s.
    pub(crate) async fn held(&self, lock: Lock) -> Held {
        self.held_by(lock, |ask| ask).await
    }

    /// Like [`held`](Self::held), a mutex with a lease of `units` units.
    pub(crate) async fn held_for(&self, units: u32) -> Held {
        self.held_by(Lock::mutex("k"), |ask| ask.lease(self.units(units)))
            .await
    }

    /// Like [`held`](Self::held), by a reader.
    pub(crate) async fn held_shared(&self, lock: Lock) -> Held {
        self.held_by(lock, Ask::shared).await
    }

    async fn held_by(&self, lock: Lock, how: impl FnOnce(Ask) -> Ask) -> Held {
        let [a, b] = self.sessions().await?;
        let held = how(a.ask(&lock)).acquired("S1").await?;
        Ok((a, b, lock, held))
    }

    /// Acquires `n` read holds, each in a new session.
    pub(crate) async fn readers(&self, lock: &Lock, n: u32) -> Result<Vec<Attempt>, Failure> {
        let mut all = Vec::new();
        for _ in 0..n {
            let session = self.session().await?;
            all.push(session.ask(lock).shared().acquired("S1").await?);
        }
        Ok(all)
    }

    /// Queues waiters, each in a new session: `r` reads, `w` writes.
    pub(crate) async fn queue(&self, lock: &Lock, modes: &str) -> Result<Vec<Attempt>, Failure> {
        let mut all = Vec::new();
        for mode in modes.chars() {
            let ask = self.session().await?.ask(lock).wait();
            let ask = if mode == 'r' { ask.shared() } else { ask };
            all.push(ask.queued("rule 7").await?.0);
        }
        Ok(all)
    }

    /// Returns `n` units of the harness's time.
    pub(crate) fn units(&self, n: u32) -> Duration {
        self.timing.unit * n
    }

    /// `units` units and a poll interval: the time limit of a waiter that may learn of a change only by
    /// its next poll.
    pub(crate) fn units_and_a_poll(&self, units: u32) -> Duration {
        self.units(units) + bounds::MAX_POLL_INTERVAL
    }

    /// The time limit of one call: the default call timeout, and more for a slow backend.
    pub(crate) fn call_limit(&self) -> Duration {
        self.units(5).max(bounds::CALL_TIMEOUT)
    }

    pub(crate) async fn pass(&self, units: u32) {
        self.environment.let_time_pass(self.units(units)).await;
    }

    pub(crate) async fn pass_for(&self, time: Duration) {
        self.environment.let_time_pass(time).await;
    }

    /// How far a time that a reply reports may be wrong.
    ///
    /// If several servers vote, the stamp of a reply is the moment of the call, and its times are those of the
    /// servers, which execute the call later. So an end looks early by up to the time of the call. The difference
    /// of two ends is at most the time of the slower of the two calls, and what one server may be wrong.
    fn tolerance(&self) -> Duration {
        let tolerance = self.timing.tolerance;
        if !self.several_servers() || tolerance.is_zero() {
            return tolerance;
        }
        tolerance.max(self.slowest.get() + Timing::real().tolerance)
    }

    /// Checks that the lease expires at `expiry`, within the tolerance.
    pub(crate) fn ends_at(
        &self,
        (stamp, remaining): (Stamp, Duration),
        expiry: ServerTime,
    ) -> Checked<()> {
        let actual = stamp.at.saturating_add(remaining).as_micros();
        let difference = Duration::from_micros(actual.abs_diff(expiry.as_micros()));
        let tolerance = self.tolerance();
        if difference <= tolerance {
            return Checked::passed(());
        }
        let left = expiry.saturating_since(stamp.at);
        let expected = format!("{left:?} left, plus or minus {tolerance:?}");
        Checked::failed(expected, remaining)
    }
}

/// Makes several of a kind, one after the other.
pub(crate) async fn several<T, F, const N: usize>(make: impl Fn() -> F) -> Result<[T; N], Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let mut all = Vec::with_capacity(N);
    for _ in 0..N {
        all.push(make().await?);
    }
    let array = <[T; N]>::try_from(all);
    Ok(array.unwrap_or_else(|_| unreachable!("there are {N}")))
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

    pub(crate) fn waiter_lease(mut self, lease: Duration) -> Self {
        let spec = self.spec.with_waiter_lease(lease);
        self.spec = spec.expect("scenario waiter leases are valid");
        self
    }
}

/// Two sessions, a lock, and the attempt by which the first session holds it.
pub(crate) type Held = Result<(Session, Session, Lock, Attempt), Failure>;

/// A session, which numbers its attempts.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) backend: Arc<dyn LockBackend>,
    pub(crate) id: SessionId,
    sequence: Arc<AtomicU64>,
    slowest: Slowest,
}

impl Session {
    /// Another session on a client that exists. Its calls don't count for the tolerance.
    pub(crate) fn on(backend: Arc<dyn LockBackend>) -> Self {
        let mut id = [0; 16];
        backend.runtime().fill_random(&mut id);
        Self {
            backend,
            id: SessionId::from_bytes(id),
            sequence: Arc::new(AtomicU64::new(0)),
            slowest: Slowest::default(),
        }
    }

    /// Waits for a call of this session.
    pub(crate) async fn timed<T>(&self, call: impl Future<Output = T>) -> T {
        self.slowest.time(&*self.backend.runtime(), call).await
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

    /// Sends a release of an attempt that holds nothing, and expects that it releases nothing.
    pub(crate) async fn releases_nothing(
        &self,
        lock: &Lock,
        operation: Operation,
        promise: &str,
    ) -> Verdict {
        let batch = [Release::new(lock.key.clone(), operation)];
        want!(
            one(self.backend.release(&batch).await)?.reply,
            ReleaseReply::NotHeld(_)
        )
        .promised(promise)
    }

    pub(crate) async fn inspect(&self, lock: &Lock) -> Result<Stamped<InspectReply>, Failure> {
        Ok(self.backend.inspect(&lock.key).await?)
    }

    /// Subscribes the session.
    pub(crate) async fn listen(&self) -> Result<Notifications, Failure> {
        Ok(self.backend.listen(self.id).await?)
    }

    /// Forces the release of the holders that have the token of `seen`.
    pub(crate) async fn force(
        &self,
        seen: &Attempt,
        how: ForceMode,
    ) -> Result<ForceReply, Failure> {
        let request = ForceRelease::new(seen.request.key.clone(), vec![seen.token()]);
        let request = request.with_how(how);
        Ok(self.backend.force_release(&request).await?.reply)
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

    /// Waits in the queue until then at most, without a subscription.
    pub(crate) fn wait_until(self, until: ServerTime) -> Self {
        self.wait_as(Wait::new(false).with_wait_until(until))
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
        self.build_from(self.session.now().await?)
    }

    /// Builds the request, deliverable from `now` on.
    pub(crate) fn build_from(&self, now: ServerTime) -> Result<Acquire, Failure> {
        self.build_until(now.saturating_add(DELIVERABLE))
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

    pub(crate) async fn send(self) -> Result<(Attempt, AcquireReply), Failure> {
        let request = self.build().await?;
        Attempt::send(self.session, request).await
    }

    /// Sends the attempt and expects that it is granted.
    pub(crate) async fn acquired(self, rule: &'static str) -> Result<Attempt, Failure> {
        let (attempt, reply) = self.send().await?;
        want!(reply, AcquireReply::Acquired(_))
            .promised(format!("{rule}: an attempt on a free key is granted"))?;
        Ok(attempt)
    }

    /// Sends the attempt and expects that it waits.
    pub(crate) async fn queued(self, rule: &'static str) -> Result<(Attempt, Queued), Failure> {
        let (attempt, reply) = self.send().await?;
        let queued = want!(reply, AcquireReply::Queued(queued) => queued).promised(format!(
            "{rule}: an attempt that may wait joins the queue while the key is held"
        ))?;
        Ok((attempt, queued))
    }

    /// Like [`acquired`](Self::acquired), for a case that no longer needs the attempt. The key stays held.
    pub(crate) async fn granted(self, rule: &'static str) -> Verdict {
        self.acquired(rule).await.map(drop)
    }

    /// Sends the attempt and expects `Contended`: somebody else holds the key, or it is a waiter's turn.
    pub(crate) async fn finds_contention(self, rule: &'static str) -> Verdict {
        self.contended(rule).await.map(drop)
    }

    /// Like [`finds_contention`](Self::finds_contention). Returns what the attempt is told.
    pub(crate) async fn contended(self, rule: &'static str) -> Result<Contended, Failure> {
        let (_, reply) = self.send().await?;
        want!(reply, AcquireReply::Contended(held) => held).promised(format!(
            "{rule}: an attempt that doesn't wait learns that it can't have the key"
        ))
    }

    /// Sends the attempt and expects that it is refused.
    pub(crate) async fn refused(self, rule: &'static str) -> Result<Refused, Failure> {
        let (_, reply) = self.send().await?;
        want!(reply, AcquireReply::Refused(refused) => refused)
            .promised(format!("{rule}: the attempt is refused"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families;

    #[test]
    fn every_namespace_fits_and_differs() {
        for case in families::all() {
            let (name, other) = (namespace(*case), namespace(*case));
            assert!(name.len() <= NAMESPACE_BYTES, "{name}");
            assert!(name.starts_with(case.family) && name != other, "{name}");
            let fits = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
            assert!(name.bytes().all(fits), "{name}");
        }
    }
}
