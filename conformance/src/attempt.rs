//! An attempt: how it is asked for, and the commands that follow it.

use std::slice::from_ref;
use std::time::Duration;

use leasehold_api::{
    Acquire, AcquireReply, Acquired, Contended, Convert, ConvertReply, FencingToken, ForceMode,
    ForceRelease, ForceReply, Label, Limits, Mode, Note, NoteReply, Operation, OwnerId, Poll,
    PollReply, Queued, Refused, Release, ReleaseReply, Renew, RenewReply, ServerTime, Stamp,
    Stamped, Wait,
};

use crate::failure::{Failure, Verdict, ensure, want};
use crate::session::{Lock, Session};

type Conversion = Result<Stamped<ConvertReply>, Failure>;

/// How long an acquire may be delivered, within the delivery window of 10 s.
pub(crate) const DELIVERABLE: Duration = Duration::from_secs(5);

impl Session {
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

/// An attempt that was sent. Dropping it sends nothing: its hold or waiter stays.
///
/// A method with a parameter `rule` has its own promise and takes only the rule (`"S3"`). One with `promise` takes
/// the rule and the promise (`"S3: the lease is over"`).
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
        let call = session.backend.acquire(from_ref(&request));
        let Stamped { stamp, reply } = one(session.timed(call).await)?;
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

    /// When the attempt was granted, and the time that was left then.
    pub(crate) fn left(&self) -> (Stamp, Duration) {
        (self.stamp, self.granted().remaining)
    }

    pub(crate) const fn operation(&self) -> Operation {
        self.request.operation
    }

    /// The key, and what it is used as.
    pub(crate) fn lock(&self) -> Lock {
        let (key, spec) = (self.request.key.clone(), self.request.spec);
        Lock { key, spec }
    }

    /// Prepares another attempt of the same owner.
    pub(crate) fn nested(&self) -> Ask {
        self.session.ask(&self.lock()).owner(self.operation().owner)
    }

    /// Delivers the same acquire again.
    pub(crate) async fn again(&self) -> Result<Stamped<AcquireReply>, Failure> {
        let call = self.session.backend.acquire(from_ref(&self.request));
        one(self.session.timed(call).await)
    }

    /// Sends the acquire again, deliverable from now on.
    pub(crate) async fn again_in_time(&self) -> Result<Stamped<AcquireReply>, Failure> {
        let mut request = self.request.clone();
        request.deliver_before = self.session.now().await?.saturating_add(DELIVERABLE);
        one(self.session.backend.acquire(&[request]).await)
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
    pub(crate) async fn poll_granted(&self, rule: &'static str) -> Verdict {
        self.poll_granted_at(rule).await.map(drop)
    }

    /// Polls and expects a grant. Returns it with its stamp.
    pub(crate) async fn poll_granted_at(
        &self,
        rule: &'static str,
    ) -> Result<Stamped<Acquired>, Failure> {
        let Stamped { stamp, reply } = self.poll().await?;
        let reply = want!(reply, PollReply::Acquired(acquired) => acquired)
            .promised(format!("{rule}: a waiter gets the key when it is its turn"))?;
        Ok(Stamped { stamp, reply })
    }

    /// Polls and expects that the attempt still waits.
    pub(crate) async fn poll_queued(&self, rule: &'static str) -> Result<Queued, Failure> {
        want!(self.poll().await?.reply, PollReply::Queued(queued) => queued)
            .promised(format!("{rule}: a waiter waits until its turn"))
    }

    /// Polls and expects that the attempt neither waits nor holds.
    pub(crate) async fn poll_gone(&self, promise: &str) -> Verdict {
        want!(self.poll().await?.reply, PollReply::Gone(_)).promised(promise)
    }

    pub(crate) fn renew_request(&self, lease: Duration) -> Result<Renew, Failure> {
        let key = self.request.key.clone();
        Ok(Renew::new(key, self.operation(), lease)?)
    }

    pub(crate) async fn renew(&self, lease: Duration) -> Result<Stamped<RenewReply>, Failure> {
        let batch = [self.renew_request(lease)?];
        let call = self.session.backend.renew(&batch);
        one(self.session.timed(call).await)
    }

    /// Renews and expects that the lock is lost.
    pub(crate) async fn renewal_lost(&self, lease: Duration, promise: &str) -> Verdict {
        let reply = self.renew(lease).await?.reply;
        want!(reply, RenewReply::Lost(_)).promised(promise)
    }

    /// Renews and expects that the lock is still held.
    pub(crate) async fn renewed(
        &self,
        lease: Duration,
        rule: &'static str,
    ) -> Result<(FencingToken, ServerTime), Failure> {
        let Stamped { stamp, reply } = self.renew(lease).await?;
        want!(
            reply,
            RenewReply::Renewed { token, remaining } => (token, stamp.at.saturating_add(remaining))
        )
        .promised(format!("{rule}: a valid lease is renewed"))
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
            }
        )
        .promised(format!("{rule}: a release of the only hold frees the key"))
    }

    /// Releases and expects that `left` holds of the owner remain.
    pub(crate) async fn release_leaves(&self, left: u32, promise: &str) -> Verdict {
        want!(
            self.release().await?,
            ReleaseReply::Released { holds_left, .. } if holds_left == left
        )
        .promised(promise)
    }

    /// Releases and expects that the attempt waits, and so leaves the queue.
    pub(crate) async fn leaves(&self, rule: &'static str) -> Verdict {
        want!(self.release().await?, ReleaseReply::Left).promised(format!(
            "{rule}: a release of a waiting attempt removes it from the queue"
        ))
    }

    /// Releases and expects that the attempt holds nothing.
    pub(crate) async fn not_held(&self, promise: &str) -> Verdict {
        want!(self.release().await?, ReleaseReply::NotHeld(_)).promised(promise)
    }

    pub(crate) async fn downgrade(&self, expected: FencingToken) -> Conversion {
        let request = Convert::to_shared(self.request.key.clone(), self.operation(), expected);
        Ok(self.session.backend.convert(&request).await?)
    }

    /// Downgrades, and returns the new token: a downgrade starts an epoch.
    pub(crate) async fn downgraded(&self, expected: FencingToken) -> Result<FencingToken, Failure> {
        let reply = self.downgrade(expected).await?.reply;
        want!(reply, ConvertReply::Converted { token, .. } => token)
            .promised("rule 6: a writer can downgrade at any time")
    }

    pub(crate) async fn upgrade(&self, expected: FencingToken) -> Conversion {
        let request = Convert::to_exclusive(self.request.key.clone(), self.operation(), expected);
        Ok(self.session.backend.convert(&request).await?)
    }

    /// Upgrades, and returns the token of the new epoch.
    pub(crate) async fn upgraded(&self, expected: FencingToken) -> Result<FencingToken, Failure> {
        let reply = self.upgrade(expected).await?.reply;
        want!(reply, ConvertReply::Converted { token, .. } => token)
            .promised("rule 6: the only reader can upgrade")
    }

    pub(crate) fn note_request(
        &self,
        version: u32,
        bytes: &[u8],
        keep: Duration,
    ) -> Result<Note, Failure> {
        let key = self.request.key.clone();
        Ok(Note::new(key, self.operation(), version, bytes, keep)?)
    }

    pub(crate) async fn note(
        &self,
        version: u32,
        bytes: &[u8],
        keep: Duration,
    ) -> Result<NoteReply, Failure> {
        let request = self.note_request(version, bytes, keep)?;
        Ok(self.session.backend.write_note(&request).await?.reply)
    }
}

/// Expects that `token` belongs to an epoch after that of `last`.
pub(crate) fn next_epoch(token: FencingToken, last: FencingToken) -> Verdict {
    ensure!(token > last, token).promised(format!(
        "S4: the token of an epoch after {last:?} is higher"
    ))
}

/// The only reply to a batch of one.
pub(crate) fn one<T: std::fmt::Debug>(
    mut answers: Vec<Result<Stamped<T>, leasehold_api::BackendError>>,
) -> Result<Stamped<T>, Failure> {
    let count = answers.len();
    ensure!(count == 1, count).promised("trait contract: a batch has one reply per request")?;
    Ok(answers.remove(0)?)
}
