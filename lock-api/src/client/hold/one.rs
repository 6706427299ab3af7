//! A hold: the part of a guard that all kinds share. Its drop queues its release.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::select;
use smallvec::smallvec;

use crate::bounds::MIN_LEASE;
use crate::client::core::{Busy, ClientHandle};
use crate::client::error::{Error, Loss};
use crate::client::state::answer::Answer;
use crate::client::state::hold_state::HoldState;
use crate::client::state::holder::{HolderCell, Validity};
use crate::client::state::release_outcome::ReleaseResult;
use crate::client::state::release_queue::PendingRelease;
use crate::client::task::release::{self, await_release};
use crate::error::BackendError;
use crate::id::{FencingToken, Operation};
use crate::reply::{EndReason, ReleaseReply, RenewReply};
use crate::request::Renew;
use crate::runtime::Moment;
use crate::sync::{Arc, AtomicBool, Ordering};

/// A hold. Its drop queues its release.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) client: Arc<ClientHandle>,
    pub(crate) holder: Arc<HolderCell>,
    pub(crate) operation: Operation,
    pub(crate) lease: Duration,
    pub(crate) class: &'static str,
    /// Whether it was not granted by the answer to the first call.
    pub(crate) waited: bool,
    fixed_lease: bool,
    /// Whether `begin_release` was called, so the drop has nothing to do.
    release_begun: AtomicBool,
    release_result: Arc<ReleaseResult>,
}

impl Hold {
    pub(crate) fn new(
        client: &Arc<ClientHandle>,
        holder: Arc<HolderCell>,
        state: &HoldState,
    ) -> Self {
        client.events.guard_made(state.mode, state.class);
        Self {
            client: Arc::clone(client),
            holder,
            operation: state.operation,
            lease: state.lease,
            class: state.class,
            waited: false,
            fixed_lease: state.fixed_until.is_some(),
            release_begun: AtomicBool::new(false),
            release_result: Arc::clone(&state.release_result),
        }
    }

    const fn sequence(&self) -> u64 {
        self.operation.sequence
    }

    pub(crate) fn token(&self) -> FencingToken {
        self.holder.token()
    }

    pub(crate) fn validity(&self) -> Validity {
        self.client.validity(&self.holder, self.sequence())
    }

    /// Completes when the hold is lost. Never completes if a release begins first.
    pub(crate) fn lost(&self) -> impl Future<Output = Loss> + Send + 'static + use<> {
        self.watch(|_now, validity| match validity {
            Validity::Valid(expiry) => ControlFlow::Continue(Some(expiry.end())),
            Validity::Lost(loss) => ControlFlow::Break(loss),
            Validity::Released => ControlFlow::Continue(None),
        })
    }

    /// Completes with the time left when that is at most `margin`, or zero when the hold is lost. Never
    /// completes if a release begins first.
    pub(crate) fn expiring(
        &self,
        margin: Duration,
    ) -> impl Future<Output = Duration> + Send + 'static + use<> {
        self.watch(move |now, validity| match ending(now, validity, margin) {
            ControlFlow::Break(Some(left)) => ControlFlow::Break(left),
            ControlFlow::Break(None) => ControlFlow::Continue(None),
            ControlFlow::Continue(at) => ControlFlow::Continue(at),
        })
    }

    /// Whether the hold is lost, is being released, or ends within `margin`.
    #[cfg(feature = "tokio-util")]
    pub(crate) fn is_ending(&self, margin: Duration) -> bool {
        ending(self.client.now(), self.validity(), margin).is_break()
    }

    /// Completes when the hold [is ending](Self::is_ending).
    #[cfg(feature = "tokio-util")]
    pub(crate) fn ending(
        &self,
        margin: Duration,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        self.watch(move |now, validity| ending(now, validity, margin).map_break(drop))
    }

    /// Calls `answer` with the time and the validity: at once, at each change of the holder, and at the moment that
    /// `answer` has returned in `Continue`, if any. Completes with the value of its `Break`.
    fn watch<T: 'static, F>(
        &self,
        answer: F,
    ) -> impl Future<Output = T> + Send + 'static + use<T, F>
    where
        F: Fn(Moment, Validity) -> ControlFlow<T, Option<Moment>> + Send + 'static,
    {
        // The future keeps the core but not the client handle: waiting for a loss doesn't keep the
        // client alive.
        let core = Arc::clone(&**self.client);
        let holder = Arc::clone(&self.holder);
        let sequence = self.sequence();
        async move {
            loop {
                let version = holder.changed.version();
                let now = core.now();
                let ask_again = match answer(now, core.validity(&holder, sequence)) {
                    ControlFlow::Break(value) => return value,
                    ControlFlow::Continue(at) => at,
                };
                let changed = holder.changed.changed(version);
                select(changed, pin!(core.sleep_until(ask_again))).await;
            }
        }
    }

    /// Renews the lease now, once.
    pub(crate) async fn renew(&self) -> Result<Duration, Error> {
        self.check()?;
        let renewed = self.renew_within(self.client.settings.call_timeout).await;
        renewed.map_err(|error| error.on(&self.holder.key))?;
        self.check()
    }

    async fn renew_within(&self, limit: Duration) -> Result<(), BackendError> {
        let core = &self.client;
        let request = [self.renew_request()];
        let call = core.backend.renew(&request);
        self.apply_renewal(core.exchange_one(limit, call).await)
    }

    pub(super) fn renew_request(&self) -> Renew {
        Renew::checked(&self.holder.key, self.operation, self.lease)
    }

    /// A renewal that asks whether the server still has the hold. It doesn't extend a fixed lease.
    pub(super) fn check_request(&self) -> Renew {
        let mut request = self.renew_request();
        if self.fixed_lease {
            request.lease = MIN_LEASE;
        }
        request
    }

    /// Applies the answer to a renewal that the user asked for.
    pub(super) fn apply_renewal(
        &self,
        answer: Result<Answer<RenewReply>, BackendError>,
    ) -> Result<(), BackendError> {
        let until = answer.as_ref().map(|answer| answer.deadline(self.lease));
        let until = until.ok();
        let is_renewed = self.apply_check(answer)?;
        if let Some(until) = until.filter(|_| is_renewed && self.fixed_lease) {
            self.holder.extend_fixed(self.client.now(), until);
        }
        Ok(())
    }

    /// Applies the answer to a renewal. Returns whether the hold is renewed.
    pub(super) fn apply_check(
        &self,
        answer: Result<Answer<RenewReply>, BackendError>,
    ) -> Result<bool, BackendError> {
        let core = &self.client;
        core.events.renewal(&self.holder.key, &answer);
        let answer = answer?;
        Ok(match answer.reply {
            RenewReply::Renewed { token, remaining } => {
                core.renewed(&self.holder, answer.status(token, remaining))
            }
            RenewReply::Lost(reason) => {
                self.holder.lose_through(self.sequence(), reason);
                false
            }
        })
    }

    /// Returns the time left, or why there is none.
    pub(crate) fn check(&self) -> Result<Duration, Error> {
        match self.validity() {
            Validity::Valid(expiry) => Ok(expiry.end().saturating_since(self.client.now())),
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

    /// Marks the holder as lost, with all its guards, unless this hold is being released; returns the error of this
    /// guard.
    pub(crate) fn lose(&self, reason: EndReason) -> Error {
        self.holder.lose_through(self.sequence(), reason);
        let lost = || self.loss_error(reason.into());
        self.check().err().unwrap_or_else(lost)
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        match self.validity() {
            Validity::Lost(loss) => Some(loss),
            Validity::Valid(_) | Validity::Released => None,
        }
    }

    pub(crate) fn check_lost(&self) -> Option<Error> {
        self.loss().map(|loss| self.loss_error(loss))
    }

    /// Begins the release, and leaves it to the background task.
    pub(crate) fn release_in_background(&self) {
        // The process comes before any lock: a thread that exists only in the parent may hold it.
        if !self.release_begun.load(Ordering::Relaxed) && self.client.owns(&self.holder.session) {
            let _busy = Busy::begin(&self.client);
            if let Some(job) = self.begin_release() {
                self.client.releases.push(job);
            }
        }
    }

    /// Begins the release. Only the first caller gets the pending release.
    pub(super) fn begin_release(&self) -> Option<PendingRelease> {
        if !self.client.owns(&self.holder.session) {
            return None;
        }
        self.release_begun.store(true, Ordering::Relaxed);
        let now = self.client.now();
        let (state, lost) = self.holder.begin_release(now, self.sequence())?;
        self.client
            .report_releasing(&self.holder, &state, lost, now);
        Some(self.client.release_of(&self.holder, state))
    }

    /// Releases the hold and waits for the result.
    pub(crate) async fn release(&self) -> Result<(), Error> {
        {
            let _busy = Busy::begin(&self.client);
            if let Some(job) = self.begin_release() {
                release::send(&self.client, smallvec![job]).await;
            }
        }
        self.wait_released().await
    }

    pub(super) async fn wait_released(&self) -> Result<(), Error> {
        if !self.release_begun.load(Ordering::Relaxed) {
            return Err(self.released_error());
        }
        let acknowledged = await_release(&self.client, &self.release_result).await;
        let acknowledged = acknowledged.map_err(|error| error.on(&self.holder.key))?;
        if let Some(loss) = acknowledged.loss() {
            return Err(self.loss_error(loss));
        }
        // A shutdown may have released it while the guard was in use.
        self.check_lost().map_or(Ok(()), Err)
    }

    /// How many holds of the owner are left, if the answer to the release said so.
    pub(crate) fn holds_left(&self) -> Option<u32> {
        match self.release_result.get()?.ok()?.reply {
            ReleaseReply::Released { holds_left, .. } => Some(holds_left),
            ReleaseReply::NotHeld(_) | ReleaseReply::Left => None,
        }
    }

    /// Runs `body`, and drops it when the hold is lost.
    pub(crate) async fn protect<F: Future>(&self, body: F) -> Result<F::Output, Error> {
        self.check()?;
        let lost = async { self.loss_error(self.lost().await) };
        run_until_lost(lost, || self.check_lost(), body).await
    }
}

/// Breaks with the time left if that is at most `margin`: zero after a loss, `None` once a release has begun. Else says
/// when it will be.
fn ending(
    now: Moment,
    validity: Validity,
    margin: Duration,
) -> ControlFlow<Option<Duration>, Option<Moment>> {
    match validity {
        Validity::Valid(expiry) => match expiry.margin_begins(margin) {
            begins if now < begins => ControlFlow::Continue(Some(begins)),
            _ => ControlFlow::Break(Some(expiry.end().saturating_since(now))),
        },
        Validity::Lost(_) => ControlFlow::Break(Some(Duration::ZERO)),
        Validity::Released => ControlFlow::Break(None),
    }
}

/// Runs `body`, and drops it when `lost` completes.
pub(crate) async fn run_until_lost<F: Future>(
    lost: impl Future<Output = Error>,
    check_lost: impl Fn() -> Option<Error>,
    body: F,
) -> Result<F::Output, Error> {
    let (mut lost, mut body) = (pin!(lost), pin!(body));
    poll_fn(|cx| {
        if let Poll::Ready(error) = lost.as_mut().poll(cx) {
            return Poll::Ready(Err(error));
        }
        // Timers may be late, for example after a suspend, and something else may wake the body.
        if let Some(error) = check_lost() {
            return Poll::Ready(Err(error));
        }
        body.as_mut().poll(cx).map(Ok)
    })
    .await
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release_in_background();
    }
}

/// Releases a hold when it is dropped, whoever still shares the guard. It is the one owner of a guard
/// that a body gets a share of, and so may leave to a task that goes on.
pub(crate) struct ReleaseOnDrop<'a>(pub(crate) &'a Hold);

impl Drop for ReleaseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.release_in_background();
    }
}
