//! Hands off a hold to another client, and lets only one client adopt it.
//!
//! A hand-off is a text, and a text can be copied. So the sender takes a second hold of the same
//! owner, the *transfer hold*. The adopter releases the transfer hold first. The server answers
//! `Released` to one release of an operation, and `NotHeld` to every other, however often and late
//! they are delivered. The client that gets `Released` is the only one that may renew the hold and
//! make a guard. If that answer is lost, nobody can tell which client was first. Then nobody
//! becomes the holder, and the hold expires with its lease.
//!
//! The sender renews nothing once it has the transfer hold. The adopter renews the hold once before
//! its guard is valid, and from then on like any other hold.

use std::time::Duration;

use crate::client::core::{Busy, ClientHandle, Core, Retries};
use crate::client::error::{Error, refusal};
use crate::client::guard::Guard;
use crate::client::handle::client::LockClient;
use crate::client::handoff::kind::Transferable;
use crate::client::handoff::text::{Adoption, Handoff, HandoffFailed, guard_name};
use crate::client::hold::{Hold, Origin};
use crate::client::state::answer::{Answer, LeaseStatus};
use crate::client::state::hold_state::HoldState;
use crate::client::state::holder::HolderCell;
use crate::client::state::session::Session;
use crate::client::task::{release, renew};
use crate::error::{BackendError, InvalidInput};
use crate::id::{Key, Operation};
use crate::reply::{AcquireReply, EndReason, Refused, ReleaseReply, RenewReply};
use crate::request::{Acquire, Kind, Limits, LockSpec, Mode, Release, Renew};
use crate::runtime::Moment;
use crate::sync::Arc;
use crate::time::{ServerTime, Stamp};

/// The number of call timeouts that each step may take.
const CALL_TIMEOUTS: u32 = 3;
/// The holds of the owner: the one that is handed off, and the transfer hold.
const BOTH_HOLDS: u32 = 2;

impl<K: Transferable> Guard<K> {
    /// Hands the lock to another function, client or process without releasing it in between. The
    /// receiver [adopts](LockClient::adopt) it.
    ///
    /// The hand-off is valid for one whole lease, counted from this call, or until the end of a
    /// [`fixed_lease`](crate::Mutex::fixed_lease). This client stops renewing the lease, and nobody
    /// renews it until the hand-off is adopted. Choose a lease that is long enough. If nobody
    /// adopts the hand-off, the lock is free one lease after this call.
    ///
    /// The fencing token stays the same, so the resource can't tell the sender from the adopter.
    /// Stop writing before you hand off the lock.
    ///
    /// The adopted guard has the same lease. A `fixed_lease` and a
    /// [`max_hold`](crate::Mutex::max_hold) end when they would have ended without the hand-off.
    ///
    /// You can't hand off
    /// - an adopted guard, because a hold can be handed off once;
    /// - a guard of a reentrant handle, because its owner may hold the lock on both sides;
    /// - a [`PermitGuard`](crate::PermitGuard), because the holds of a semaphore don't nest;
    /// - a [`MultiGuard`](crate::MultiGuard).
    ///
    /// # Errors
    /// [`HandoffFailed`] with the guard, which holds the lock as before, and one of these errors:
    /// - [`Error::InvalidInput`] before any I/O, if the guard cannot be handed off;
    /// - [`Error::Unsupported`] before any I/O, if the backend does not support reentrancy;
    /// - [`Error::Lost`] or [`Error::Released`] if the guard no longer holds the lock;
    /// - [`Error::Unavailable`] or [`Error::OutcomeUnknown`] after at most three call timeouts
    ///   without an answer.
    ///
    /// # Cancel safety
    /// If you drop the future, the client releases the lock in the background.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # fn send(secret: String) {}
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.mutex("report")?.lock().await?;
    /// let handoff = guard.into_handoff().await?;
    /// send(handoff.to_secret_text());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn into_handoff(self) -> Result<Handoff, HandoffFailed<Self>> {
        match hand_off(&self.hold, K::KIND, K::MODE).await {
            Ok(handoff) => Ok(handoff),
            Err(error) => Err(HandoffFailed::new(error, self)),
        }
    }
}

impl LockClient {
    /// Turns a [hand-off](Guard::into_handoff) into a guard.
    ///
    /// The type of the result names the kind of guard:
    /// `let guard: MutexGuard = locks.adopt(handoff).await?`.
    ///
    /// If several callers adopt copies of one hand-off, at most one gets a guard. The call renews
    /// the lease once before it returns the guard. After that the client renews it in the
    /// background, unless the lease is fixed.
    ///
    /// The holder keeps the label of the client that took the lock. The guard learns of a forced
    /// release from its next renewal, not from a notification.
    ///
    /// The call takes at most six call timeouts.
    ///
    /// # Errors
    /// [`HandoffFailed`] with the hand-off and one of these errors:
    /// - [`Error::InvalidInput`] before any I/O, if the hand-off has another kind of guard;
    /// - [`Error::HandoffSpent`] if the hand-off was already adopted, or its hold is gone;
    /// - [`Error::Unavailable`] if the server gave no answer and the call can be repeated;
    /// - [`Error::OutcomeUnknown`] if an answer was lost, so the call may have adopted the
    ///   hand-off. Try again with the returned hand-off. You get a guard, or
    ///   [`Error::HandoffSpent`] at the latest with the next answer of the server. In the latter
    ///   case, nobody gets the lock before its lease expires;
    /// - [`Error::Lost`] if the `fixed_lease` or the `max_hold` of the guard has ended.
    ///
    /// After an error, adopt the returned hand-off rather than a copy of its text: if the failed
    /// call has taken over the hold, only the returned hand-off can still be adopted.
    ///
    /// # Cancel safety
    /// If you drop the future before the client has taken over the hold, the hand-off can still be
    /// adopted. If you drop it later, the client releases the lock in the background. If the client
    /// can't tell which, the lock is free when its lease expires.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, Handoff, LockClient, MutexGuard};
    /// # async fn example(locks: LockClient, secret: String) -> Result<(), Error> {
    /// let handoff: Handoff = secret.parse()?;
    /// let guard: MutexGuard = locks.adopt(handoff).await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn adopt<K: Transferable>(
        &self,
        handoff: Handoff,
    ) -> Result<Guard<K>, HandoffFailed<Handoff>> {
        let mut handoff = handoff;
        match adopt(&self.client, &mut handoff, K::KIND, K::MODE).await {
            Ok(hold) => Ok(Guard::new(hold)),
            Err(error) => Err(HandoffFailed::new(error, handoff)),
        }
    }
}

/// The retries of one step.
fn begin_retries<'a>(core: &'a Core, key: &'a Key) -> Retries<'a> {
    let limit = core.settings.call_timeout * CALL_TIMEOUTS;
    Retries::new(core, key, core.now().saturating_add(limit))
}

async fn hand_off(hold: &Hold, kind: Kind, mode: Mode) -> Result<Handoff, Error> {
    let core = &hold.client;
    let spec = check_transferable(hold)?;
    hold.check()?;
    let _busy = Busy::begin(core);
    let mut transfer_hold = TransferHold::draw(hold, spec, mode);
    let stamp = transfer_hold.acquire().await?;
    let now = core.now();
    hold.check()?;
    let fixed_until = hold.holder.fixed_until();
    let state = hold.detach(now)?;
    transfer_hold.may_exist = false;
    core.events.handed_off(&hold.holder, &state, now);
    // The stamp of the reply is in the past, so the end is too early rather than too late.
    let server_time = |until: Moment| stamp.at.saturating_add(until.saturating_since(now));
    Ok(Handoff {
        key: hold.holder.key.clone(),
        kind,
        mode,
        operation: hold.operation,
        transfer_hold: transfer_hold.operation.sequence,
        token: hold.fencing_token(),
        lease: state.lease,
        waiter_lease: state.waiter_lease,
        fixed_until: fixed_until.map(server_time),
        max_until: state.max_until.map(server_time),
        adoption: Adoption::No,
    })
}

/// Returns the spec of the key if the hold can be handed off.
fn check_transferable(hold: &Hold) -> Result<LockSpec, Error> {
    let core = &hold.client;
    let guard = match hold.origin {
        Origin::Reentrant => "a guard of a reentrant handle",
        Origin::Adopted => "an adopted guard",
        Origin::Plain(_) if !core.capabilities.reentrancy => {
            let what = "handing off a guard";
            return Err(Error::Unsupported { what });
        }
        Origin::Plain(_) if hold.holder.session.process != core.runtime.process_id() => {
            "a guard that was taken before a fork"
        }
        Origin::Plain(spec) => return Ok(spec),
    };
    Err(InvalidInput::HandoffGuard { guard }.on(&hold.holder.key))
}

/// The transfer hold. Its drop releases it in the background if it may exist on the server.
struct TransferHold<'a> {
    hold: &'a Hold,
    spec: LockSpec,
    mode: Mode,
    operation: Operation,
    may_exist: bool,
}

impl<'a> TransferHold<'a> {
    fn draw(hold: &'a Hold, spec: LockSpec, mode: Mode) -> Self {
        let owner = hold.operation.owner;
        Self {
            hold,
            spec,
            mode,
            operation: hold.holder.session.operation(Some(owner)),
            may_exist: false,
        }
    }

    /// Acquires the transfer hold, which gives the holder a whole lease. Returns the stamp of the
    /// reply.
    async fn acquire(&mut self) -> Result<Stamp, Error> {
        let core = &self.hold.client;
        let mut retries = begin_retries(core, &self.hold.holder.key);
        loop {
            let left = self.hold.check()?;
            let failed = match self.send(retries.limit().min(left)).await {
                Ok(Answer { stamp, reply, .. }) => match reply {
                    // The server counts more holds if the transfer hold of a failed attempt isn't released yet.
                    AcquireReply::Acquired(acquired) if acquired.holds >= BOTH_HOLDS => {
                        return Ok(stamp);
                    }
                    // The hold is gone. The key has only the transfer hold, or another holder.
                    AcquireReply::Acquired(_)
                    | AcquireReply::Contended(_)
                    | AcquireReply::Queued(_) => return Err(self.hold.lose(EndReason::Unknown)),
                    AcquireReply::Refused(reason @ (Refused::Stale | Refused::TooLate)) => {
                        if reason == Refused::Stale {
                            *self = Self::draw(self.hold, self.spec, self.mode);
                        }
                        BackendError::unavailable(refusal(&self.spec, &reason))
                    }
                    AcquireReply::Refused(reason) => {
                        return Err(Error::Refused {
                            key: self.hold.holder.key.clone(),
                            asked: self.spec,
                            reason,
                        });
                    }
                },
                Err(error) => error,
            };
            retries.pause_after(failed).await?;
        }
    }

    async fn send(&mut self, limit: Duration) -> Result<Answer<AcquireReply>, BackendError> {
        let core = &self.hold.client;
        let (deliver_before, limit) = core.deliver_before(&self.hold.holder.key, limit).await?;
        let request = Acquire {
            key: self.hold.holder.key.clone(),
            spec: self.spec,
            mode: self.mode,
            operation: self.operation,
            label: core.settings.label.clone(),
            lease: self.hold.lease,
            wait: None,
            deliver_before,
            floor: None,
            limits: Limits::default(),
        };
        self.may_exist = true;
        let call = core.backend.acquire(std::slice::from_ref(&request));
        core.exchange_one(limit, call).await
    }
}

impl Drop for TransferHold<'_> {
    fn drop(&mut self) {
        if self.may_exist {
            let hold = self.hold;
            let core = &hold.client;
            core.abandon(
                &hold.holder.session,
                &hold.holder.key,
                self.operation,
                hold.lease,
                self.spec.waiter_lease(),
            );
        }
    }
}

async fn adopt(
    client: &Arc<ClientHandle>,
    handoff: &mut Handoff,
    kind: Kind,
    mode: Mode,
) -> Result<Hold, Error> {
    if (handoff.kind, handoff.mode) != (kind, mode) {
        let carries = guard_name(handoff.kind, handoff.mode);
        let asked = guard_name(kind, mode);
        return Err(InvalidInput::HandoffKind { carries, asked }.on(&handoff.key));
    }
    release::start(client);
    let _busy = Busy::begin(client);
    // Checked only now, so it sees every shutdown that did not count this call as busy.
    client.ensure_open()?;
    let mut adopter = Adopter {
        client,
        handoff,
        in_progress: true,
    };
    let result = adopter.run().await;
    adopter.in_progress = false;
    // A shutdown may have missed a hold that was made while it ran.
    client.ensure_open()?;
    let hold = result?;
    hold.check()?;
    Ok(hold)
}

/// A hand-off that is being adopted. Its drop releases the hold if the future is dropped midway and
/// the hold is certainly this client's.
struct Adopter<'a> {
    client: &'a Arc<ClientHandle>,
    handoff: &'a mut Handoff,
    in_progress: bool,
}

impl Adopter<'_> {
    async fn run(&mut self) -> Result<Hold, Error> {
        match self.handoff.adoption {
            Adoption::Yes => {}
            Adoption::Never(reason) => return Err(self.spent(reason)),
            Adoption::No | Adoption::InDoubt => self.release_transfer_hold().await?,
        }
        self.handoff.adoption = Adoption::Yes;
        let core = self.client;
        let key = self.handoff.key.clone();
        let mut retries = begin_retries(core, &key);
        let (operation, lease) = (self.handoff.operation, self.handoff.lease);
        let request = [Renew::checked(&key, operation, lease)];
        loop {
            let call = core.backend.renew(&request);
            let failed = match core.exchange_one(retries.limit(), call).await {
                Ok(answer) => match answer.reply {
                    RenewReply::Renewed { token, remaining } => {
                        let status = answer.status(token, remaining);
                        if core.now() < status.deadline {
                            return Ok(self.hold(answer.sent, answer.stamp, status));
                        }
                        BackendError::unavailable("the answer to the renewal came too late")
                    }
                    RenewReply::Lost(reason) => return Err(self.spent(reason)),
                },
                Err(error) => error,
            };
            retries.pause_after(failed).await?;
        }
    }

    /// Releases the transfer hold. The client that gets the answer `Released` is the adopter.
    async fn release_transfer_hold(&mut self) -> Result<(), Error> {
        let core = self.client;
        let key = self.handoff.key.clone();
        let mut retries = begin_retries(core, &key);
        let transfer_hold = Operation {
            sequence: self.handoff.transfer_hold,
            ..self.handoff.operation
        };
        let request = [Release::new(key.clone(), transfer_hold)];
        loop {
            // If the call is dropped before its answer, the adoption is in doubt too.
            let before = std::mem::replace(&mut self.handoff.adoption, Adoption::InDoubt);
            let call = core.backend.release(&request);
            let failed = match core.exchange_one(retries.limit(), call).await {
                Ok(answer) => return self.apply_transfer_release(answer.reply, before),
                Err(error) => error,
            };
            if !matches!(failed, BackendError::OutcomeUnknown { .. }) {
                self.handoff.adoption = before;
            }
            retries.pause_after(failed).await?;
        }
    }

    fn spent(&self, reason: EndReason) -> Error {
        let key = self.handoff.key.clone();
        let reason = reason.into();
        Error::HandoffSpent { key, reason }
    }

    /// Applies the answer to the release. `before` is the state before the release was sent.
    fn apply_transfer_release(
        &mut self,
        reply: ReleaseReply,
        before: Adoption,
    ) -> Result<(), Error> {
        match reply {
            ReleaseReply::Released {
                holder: Some(_), ..
            } => Ok(()),
            ReleaseReply::NotHeld(gone) if before == Adoption::InDoubt => {
                // Retries must end, so the next attempt fails with `HandoffSpent`.
                self.handoff.adoption = Adoption::Never(gone);
                let reason = "an earlier call or another client may have adopted the hand-off";
                Err(BackendError::outcome_unknown(reason).on(&self.handoff.key))
            }
            ReleaseReply::NotHeld(reason) => {
                self.handoff.adoption = Adoption::No;
                Err(self.spent(reason))
            }
            // Only the transfer hold was left. The hold that was handed off is gone.
            ReleaseReply::Released { holder: None, .. } | ReleaseReply::Left => {
                self.handoff.adoption = Adoption::No;
                Err(self.spent(EndReason::Unknown))
            }
        }
    }

    fn hold(&self, sent: Moment, stamp: Stamp, status: LeaseStatus) -> Hold {
        let (core, handoff) = (self.client, &*self.handoff);
        let local_time = |until: ServerTime| sent.saturating_add(until.saturating_since(stamp.at));
        let state = HoldState {
            operation: handoff.operation,
            mode: handoff.mode,
            lease: handoff.lease,
            fixed_until: handoff.fixed_until.map(local_time),
            max_until: handoff.max_until.map(local_time),
            waiter_lease: handoff.waiter_lease,
            may_be_offer: false,
            class: "",
            since: core.now(),
            loss_reported: false,
            release_result: Arc::default(),
        };
        core.floors.saw(&handoff.key, status.token);
        let (key, session) = (handoff.key.clone(), self.session());
        let holder = HolderCell::new(key, &core.renewals, session, status, state.clone());
        core.events.adopted(&holder, handoff.mode);
        renew::start(core);
        let due = core.renewals.due_after(sent, state.lease);
        core.schedule(&holder, status, state.is_renewed().then_some(due));
        Hold::new(core, holder, &state, Origin::Adopted)
    }

    fn session(&self) -> Arc<Session> {
        let process = self.client.runtime.process_id();
        Arc::new(Session::foreign(self.handoff.operation.session, process))
    }
}

impl Drop for Adopter<'_> {
    fn drop(&mut self) {
        if self.in_progress && self.handoff.adoption == Adoption::Yes {
            let (core, handoff) = (self.client, &*self.handoff);
            let session = self.session();
            core.abandon(
                &session,
                &handoff.key,
                handoff.operation,
                handoff.lease,
                handoff.waiter_lease,
            );
        }
    }
}
