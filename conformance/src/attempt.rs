//! An attempt that was sent, and the commands that follow it.

use std::slice::from_ref;
use std::time::Duration;

use leasehold_api::{
    Acquire, AcquireReply, Acquired, Convert, ConvertReply, FencingToken, Note, NoteReply,
    Operation, Poll, PollReply, Queued, Release, ReleaseReply, Renew, RenewReply, ServerTime,
    Stamp, Stamped,
};

use crate::failure::{Failure, Verdict, ensure, want};
use crate::world::{Ask, DELIVERABLE, Lock, Session};

type Conversion = Result<Stamped<ConvertReply>, Failure>;

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
