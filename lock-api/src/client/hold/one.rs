//! One hold: what every guard wraps. Dropping it queues its release.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::select;
use smallvec::smallvec;

use crate::client::core::{Anchor, Busy};
use crate::client::error::{Error, Loss, NO_TOKENS, Release};
use crate::client::state::answer::{Answer, reply_of};
use crate::client::state::clock::local_deadline;
use crate::client::state::hold_state::HoldState;
use crate::client::state::holder::{Tenure, Validity};
use crate::client::state::release_outcome::{EndResult, Ended};
use crate::client::state::release_queue::EndJob;
use crate::client::task::release::{self, await_end};
use crate::error::BackendError;
use crate::id::{FencingToken, Operation};
use crate::mutants::mutant;
use crate::reply::{EndReply, RenewReply, Why};
use crate::request::{End, LockSpec, Renew};
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
    pub(crate) anchor: Arc<Anchor>,
    pub(crate) tenure: Arc<Tenure>,
    pub(crate) operation: Operation,
    pub(crate) lease: Duration,
    pub(crate) origin: Origin,
    fixed_lease: bool,
    /// Whether its end was begun through it, so that its drop has nothing to do.
    is_spent: AtomicBool,
    ended: Arc<EndResult>,
}

impl Hold {
    pub(crate) fn new(
        anchor: &Arc<Anchor>,
        tenure: Arc<Tenure>,
        state: &HoldState,
        origin: Origin,
    ) -> Self {
        anchor.events.guard_made(state.mode);
        Self {
            origin,
            anchor: Arc::clone(anchor),
            tenure,
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
        self.tenure.token()
    }

    /// The token, if it fences anybody off.
    pub(crate) fn fencing_token(&self) -> Result<FencingToken, Error> {
        if self.anchor.capabilities.fencing_tokens {
            Ok(self.token())
        } else {
            Err(NO_TOKENS)
        }
    }

    pub(crate) fn validity(&self) -> Validity {
        if mutant!(ValidAfterAPause) {
            return self.tenure.validity(Moment::default(), self.sequence());
        }
        self.tenure.validity(self.anchor.now(), self.sequence())
    }

    /// Ends when the hold is lost; never if its end begins first.
    pub(crate) fn lost(&self) -> impl Future<Output = Loss> + Send + 'static + use<> {
        // It keeps the core but not the anchor: waiting for a loss is no use of the client.
        let core = Arc::clone(&**self.anchor);
        let tenure = Arc::clone(&self.tenure);
        let sequence = self.sequence();
        async move {
            loop {
                let version = tenure.changed.version();
                let until = match tenure.validity(core.now(), sequence) {
                    Validity::ValidUntil(until) => until,
                    Validity::Lost(loss) => return loss,
                    Validity::Ended => return std::future::pending().await,
                };
                let changed = tenure.changed.changed(version);
                select(changed, pin!(core.sleep_until(Some(until)))).await;
            }
        }
    }

    /// One renewal, now.
    pub(crate) async fn renew(&self) -> Result<Duration, Error> {
        self.check()?;
        let core = &self.anchor;
        let request = [self.renew_request()];
        let limit = core.settings.call_timeout;
        let call = core.backend.renew(&request);
        let taken = self.take_renewal(core.exchange_one(limit, call).await);
        taken.map_err(|error| error.on(&self.tenure.key))?;
        self.check()
    }

    pub(super) fn renew_request(&self) -> Renew {
        Renew {
            key: self.tenure.key.clone(),
            operation: self.operation,
            lease: self.lease,
        }
    }

    /// Takes the answer to a renewal that was asked for by hand.
    pub(super) fn take_renewal(
        &self,
        answer: Result<Answer<RenewReply>, BackendError>,
    ) -> Result<(), BackendError> {
        let core = &self.anchor;
        core.events.renewal(&self.tenure.key, reply_of(&answer));
        let answer = answer?;
        match answer.reply {
            RenewReply::Renewed { token, remaining } => {
                let standing = answer.standing(token, remaining);
                if core.extend(&self.tenure, standing) && self.fixed_lease {
                    let until = local_deadline(answer.sent, self.lease);
                    self.tenure.extend_fixed(core.now(), self.sequence(), until);
                }
            }
            RenewReply::Lost(why) => {
                self.tenure.lose_through(self.sequence(), why);
            }
        }
        Ok(())
    }

    /// Time left, or why there is none.
    pub(crate) fn check(&self) -> Result<Duration, Error> {
        match self.validity() {
            Validity::ValidUntil(until) => Ok(until.saturating_since(self.anchor.now())),
            Validity::Lost(loss) => Err(self.loss_error(loss)),
            Validity::Ended => Err(self.released_error()),
        }
    }

    pub(crate) fn loss_error(&self, reason: Loss) -> Error {
        let key = self.tenure.key.clone();
        Error::Lost { key, reason }
    }

    pub(crate) fn released_error(&self) -> Error {
        let key = self.tenure.key.clone();
        Error::Released { key }
    }

    /// The error of a hold that is lost.
    pub(crate) fn lost_by_now(&self) -> Option<Error> {
        match self.validity() {
            Validity::Lost(loss) => Some(self.loss_error(loss)),
            Validity::ValidUntil(_) | Validity::Ended => None,
        }
    }

    /// Begins the end; gives the job to whoever comes first.
    pub(super) fn begin_end(&self) -> Option<EndJob> {
        self.is_spent.store(true, Ordering::Relaxed);
        let now = self.anchor.now();
        let (state, lost) = self.tenure.begin_end(now, self.sequence())?;
        self.anchor.tell_ending(&self.tenure, &state, lost, now);
        Some(self.anchor.release_of(&self.tenure, state))
    }

    /// Ends the hold and says what that came to.
    pub(crate) async fn release(&self) -> Result<Release, Error> {
        {
            let _busy = Busy::begin(&self.anchor);
            if mutant!(EndBeforeRenewalStops) {
                let end = End::new(self.tenure.key.clone(), self.operation);
                self.anchor.backend.end(&[end]).await;
            }
            if let Some(mut job) = self.begin_end() {
                job.in_doubt |= mutant!(EndBeforeRenewalStops);
                release::send(&self.anchor, smallvec![job]).await;
            }
        }
        self.end_result().await
    }

    /// What the end came to, once it has begun.
    pub(super) async fn end_result(&self) -> Result<Release, Error> {
        let Ended {
            reply,
            in_doubt,
            was_lost,
        } = await_end(&self.anchor, &self.ended)
            .await
            .map_err(|error| error.on(&self.tenure.key))?;
        Ok(match reply {
            EndReply::Released { holds_left, .. } => Release::Released { holds_left },
            EndReply::Left => Release::Released { holds_left: 0 },
            // An attempt that got no answer has ended it. Of a guard that was lost before nobody
            // knows what that attempt has found.
            EndReply::NotHeld(Why::Ended) if in_doubt && !was_lost => {
                Release::Released { holds_left: 0 }
            }
            EndReply::NotHeld(why) => Release::NotHeld(why),
        })
    }

    /// Queues the end without waiting for it.
    pub(crate) fn end_in_background(&self) {
        let _busy = Busy::begin(&self.anchor);
        if let Some(job) = self.begin_end() {
            self.anchor.cleanup.push(job);
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
        let is_ours = || self.tenure.session.process == self.anchor.runtime.process_id();
        if !self.is_spent.load(Ordering::Relaxed) && is_ours() {
            self.end_in_background();
        }
    }
}
