//! One hold: what every guard wraps. Dropping it queues its release.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::select;
use smallvec::smallvec;

use crate::client::core::{Busy, ClientHandle};
use crate::client::error::{Error, Loss, NO_TOKENS, ReleaseOutcome};
use crate::client::state::answer::{Answer, reply_of};
use crate::client::state::clock::local_deadline;
use crate::client::state::hold_state::HoldState;
use crate::client::state::holder::{HolderCell, Validity};
use crate::client::state::release_outcome::{Acknowledged, ReleaseResult};
use crate::client::state::release_queue::PendingRelease;
use crate::client::task::release::{self, await_release};
use crate::error::BackendError;
use crate::id::{FencingToken, Operation};
use crate::mutants::mutant;
use crate::reply::{EndReason, ReleaseReply, RenewReply};
use crate::request::{LockSpec, Release, Renew};
use crate::runtime::Moment;
use crate::sync::{Arc, AtomicBool, Ordering};

/// Where a hold comes from, which decides whether it can be handed off.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    /// Its owner holds nothing else.
    Plain(LockSpec),
    /// Its owner may hold more, or come to.
    Reentrant,
    /// It was handed off before.
    Adopted,
}

/// A hold; dropping it queues its end.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) client: Arc<ClientHandle>,
    pub(crate) holder: Arc<HolderCell>,
    pub(crate) operation: Operation,
    pub(crate) lease: Duration,
    pub(crate) origin: Origin,
    fixed_lease: bool,
    /// Whether its end was begun through it, so that its drop has nothing to do.
    is_spent: AtomicBool,
    ended: Arc<ReleaseResult>,
}

impl Hold {
    pub(crate) fn new(
        client: &Arc<ClientHandle>,
        holder: Arc<HolderCell>,
        state: &HoldState,
        origin: Origin,
    ) -> Self {
        client.events.guard_made(state.mode);
        Self {
            origin,
            client: Arc::clone(client),
            holder,
            operation: state.operation,
            lease: state.lease,
            fixed_lease: state.fixed_until.is_some(),
            is_spent: AtomicBool::new(false),
            ended: Arc::clone(&state.ended),
        }
    }

    const fn sequence(&self) -> u64 {
        self.operation.sequence
    }

    /// What the backend calls it, be it a fencing token or not.
    pub(crate) fn token(&self) -> FencingToken {
        self.holder.token()
    }

    /// The token, if it fences anybody off.
    pub(crate) fn fencing_token(&self) -> Result<FencingToken, Error> {
        if self.client.capabilities.fencing_tokens {
            Ok(self.token())
        } else {
            Err(NO_TOKENS)
        }
    }

    pub(crate) fn validity(&self) -> Validity {
        if mutant!(ValidAfterAPause) {
            return self.holder.validity(Moment::default(), self.sequence());
        }
        self.holder.validity(self.client.now(), self.sequence())
    }

    /// Ends when the hold is lost; never if its end begins first.
    pub(crate) fn lost(&self) -> impl Future<Output = Loss> + Send + 'static + use<> {
        // It keeps the core but not the anchor: waiting for a loss is no use of the client.
        let core = Arc::clone(&**self.client);
        let holder = Arc::clone(&self.holder);
        let sequence = self.sequence();
        async move {
            loop {
                let version = holder.changed.version();
                let until = match holder.validity(core.now(), sequence) {
                    Validity::ValidUntil(until) => until,
                    Validity::Lost(loss) => return loss,
                    Validity::Released => return std::future::pending().await,
                };
                let changed = holder.changed.changed(version);
                select(changed, pin!(core.sleep_until(Some(until)))).await;
            }
        }
    }

    /// One renewal, now.
    pub(crate) async fn renew(&self) -> Result<Duration, Error> {
        self.check()?;
        let core = &self.client;
        let request = [self.renew_request()];
        let limit = core.settings.call_timeout;
        let call = core.backend.renew(&request);
        let taken = self.take_renewal(core.exchange_one(limit, call).await);
        taken.map_err(|error| error.on(&self.holder.key))?;
        self.check()
    }

    pub(super) fn renew_request(&self) -> Renew {
        Renew {
            key: self.holder.key.clone(),
            operation: self.operation,
            lease: self.lease,
        }
    }

    /// Takes the answer to a renewal that was asked for by hand.
    pub(super) fn take_renewal(
        &self,
        answer: Result<Answer<RenewReply>, BackendError>,
    ) -> Result<(), BackendError> {
        let core = &self.client;
        core.events.renewal(&self.holder.key, reply_of(&answer));
        let answer = answer?;
        match answer.reply {
            RenewReply::Renewed { token, remaining } => {
                let status = answer.status(token, remaining);
                if core.extend(&self.holder, status) && self.fixed_lease {
                    let until = local_deadline(answer.sent, self.lease);
                    self.holder.extend_fixed(core.now(), self.sequence(), until);
                }
            }
            RenewReply::Lost(reason) => {
                self.holder.lose_through(self.sequence(), reason);
            }
        }
        Ok(())
    }

    /// Time left, or why there is none.
    pub(crate) fn check(&self) -> Result<Duration, Error> {
        match self.validity() {
            Validity::ValidUntil(until) => Ok(until.saturating_since(self.client.now())),
            Validity::Lost(loss) => Err(self.loss_error(loss)),
            Validity::Released => Err(self.released_error()),
        }
    }

    pub(crate) fn loss_error(&self, reason: Loss) -> Error {
        let key = self.holder.key.clone();
        Error::Lost { key, reason }
    }

    pub(crate) fn released_error(&self) -> Error {
        let key = self.holder.key.clone();
        Error::Released { key }
    }

    /// The error of a hold that is lost.
    pub(crate) fn lost_by_now(&self) -> Option<Error> {
        match self.validity() {
            Validity::Lost(loss) => Some(self.loss_error(loss)),
            Validity::ValidUntil(_) | Validity::Released => None,
        }
    }

    /// Begins the end; gives the job to whoever comes first.
    pub(super) fn begin_release(&self) -> Option<PendingRelease> {
        self.is_spent.store(true, Ordering::Relaxed);
        let now = self.client.now();
        let (state, lost) = self.holder.begin_release(now, self.sequence())?;
        self.client.tell_releasing(&self.holder, &state, lost, now);
        Some(self.client.release_of(&self.holder, state))
    }

    /// Ends the hold and says what that came to.
    pub(crate) async fn release(&self) -> Result<ReleaseOutcome, Error> {
        {
            let _busy = Busy::begin(&self.client);
            if mutant!(ReleaseBeforeRenewalStops) {
                let end = Release::new(self.holder.key.clone(), self.operation);
                self.client.backend.release(&[end]).await;
            }
            if let Some(mut job) = self.begin_release() {
                job.in_doubt |= mutant!(ReleaseBeforeRenewalStops);
                release::send(&self.client, smallvec![job]).await;
            }
        }
        self.release_result().await
    }

    /// What the end came to, once it has begun.
    pub(super) async fn release_result(&self) -> Result<ReleaseOutcome, Error> {
        let Acknowledged {
            reply,
            in_doubt,
            was_lost,
        } = await_release(&self.client, &self.ended)
            .await
            .map_err(|error| error.on(&self.holder.key))?;
        Ok(match reply {
            ReleaseReply::Released { holds_left, .. } => ReleaseOutcome::Released { holds_left },
            ReleaseReply::Left => ReleaseOutcome::Released { holds_left: 0 },
            // An attempt that got no answer has ended it. Of a guard that was lost before nobody
            // knows what that attempt has found.
            ReleaseReply::NotHeld(EndReason::Released) if in_doubt && !was_lost => {
                ReleaseOutcome::Released { holds_left: 0 }
            }
            ReleaseReply::NotHeld(reason) => ReleaseOutcome::NotHeld(reason),
        })
    }

    /// Queues the end without waiting for it.
    pub(crate) fn release_in_background(&self) {
        let _busy = Busy::begin(&self.client);
        if let Some(job) = self.begin_release() {
            self.client.releases.push(job);
        }
    }

    /// Runs `body`, and drops it as soon as the hold is lost.
    pub(crate) async fn protect<F: Future>(&self, body: F) -> Result<F::Output, Error> {
        self.check()?;
        let lost = async { self.loss_error(self.lost().await) };
        run_until_lost(lost, || self.lost_by_now(), body).await
    }
}

/// Runs `body`, and drops it as soon as `lost` ends.
pub(crate) async fn run_until_lost<F: Future>(
    lost: impl Future<Output = Error>,
    lost_by_now: impl Fn() -> Option<Error>,
    body: F,
) -> Result<F::Output, Error> {
    let (mut lost, mut body) = (pin!(lost), pin!(body));
    poll_fn(|cx| {
        if let Poll::Ready(error) = lost.as_mut().poll(cx) {
            return Poll::Ready(Err(error));
        }
        // Timers may be late, after a suspend above all: something else may wake the body.
        if let Some(error) = lost_by_now() {
            return Poll::Ready(Err(error));
        }
        body.as_mut().poll(cx).map(Ok)
    })
    .await
}

impl Drop for Hold {
    fn drop(&mut self) {
        // A guard that came through a fork is a copy: the parent still uses the hold. That is asked
        // before any lock is taken, which a thread that did not come along may have kept.
        let is_ours = || self.holder.session.process == self.client.runtime.process_id();
        if !self.is_spent.load(Ordering::Relaxed) && is_ours() {
            self.release_in_background();
        }
    }
}
