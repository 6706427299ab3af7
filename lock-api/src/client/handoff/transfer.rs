//! How a hold travels from one client to another, and is adopted by one only.
//!
//! A hand-off is a text, and a text can be copied. So the sender takes a second hold beside the
//! one that travels, in the same holder: the *transfer hold*. Who adopts ends the transfer hold first. The
//! server answers `Released` to one end of an operation and `NotHeld` to every other, however
//! often and late it is delivered, so whoever is told `Released` is the only one that ever may
//! renew the hold and make a guard of it. If the answer is lost nobody can know who was first;
//! then nobody becomes the holder, and the hold ends with its lease.
//!
//! From the transfer hold on the sender renews nothing. The adopter renews the hold once before its
//! guard is valid, and from then on as its own.

use std::time::Duration;

use crate::bounds::DEFAULT_HOLD_LIMIT;
use crate::client::core::{Busy, ClientHandle, Core};
use crate::client::error::{Error, Loss};
use crate::client::guard::Guard;
use crate::client::handle::client::LockClient;
use crate::client::handoff::kind::Transferable;
use crate::client::handoff::text::{Adoption, Handoff, HandoffFailed, name};
use crate::client::hold::{Hold, Origin};
use crate::client::state::answer::Answer;
use crate::client::state::backoff::Backoff;
use crate::client::state::clock::local_deadline;
use crate::client::state::hold_state::HoldState;
use crate::client::state::holder::HolderCell;
use crate::client::state::lease_status::LeaseStatus;
use crate::client::state::session::Session;
use crate::client::task::{release, renew};
use crate::error::{BackendError, InvalidInput};
use crate::id::{Key, Operation};
use crate::mutants::mutant;
use crate::reply::{AcquireReply, EndReason, Refused, ReleaseReply, RenewReply};
use crate::request::{Acquire, Kind, Limits, LockSpec, Mode, Release, Renew};
use crate::runtime::Moment;
use crate::sync::Arc;
use crate::time::{ServerTime, Stamp};

/// How many call time-outs each step may take.
const CALLS: u32 = 3;
/// The hold that travels, and the transfer hold.
const BOTH: u32 = 2;

impl<K: Transferable> Guard<K> {
    /// Hands the lock to another function, client or process, which
    /// [adopts](LockClient::adopt) it, without letting it go in between.
    ///
    /// This client stops renewing, and nothing that it does afterwards ends the hold. The
    /// hand-off has one whole lease for its journey, counted from this call; nobody renews it on
    /// the way, so take a lease that is long enough, and if nobody adopts it the lock is free
    /// after that. The fencing token stays the same: sender and adopter are one epoch, so stop
    /// writing before you hand off.
    ///
    /// The guard's lease, [`fixed_lease`](crate::Mutex::fixed_lease) and
    /// [`max_hold`](crate::Mutex::max_hold) travel with it; the latter goes on counting.
    ///
    /// A hold travels **once**: an adopted guard cannot be handed off again. Guards of a
    /// reentrant handle cannot be handed off, because their owner may hold the lock here and
    /// there; nor can permits of a semaphore, whose holds do not nest, and several keys that are
    /// held together.
    ///
    /// # Errors
    /// The guard is given back, and holds the lock as before, with
    /// - [`Error::Unsupported`] for what cannot be handed off, or on a backend without
    ///   reentrancy, before any I/O;
    /// - [`Error::Lost`], [`Error::Released`] if there is nothing left to hand off;
    /// - [`Error::Unavailable`], [`Error::OutcomeUnknown`] after at most three call time-outs
    ///   without an answer.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    pub async fn into_handoff(self) -> Result<Handoff, HandoffFailed<Self>> {
        match hand_off(&self.hold, K::KIND, K::MODE).await {
            Ok(handoff) => Ok(handoff),
            Err(error) => Err(HandoffFailed::new(error, self)),
        }
    }
}

impl LockClient {
    /// Makes a guard of a hold that another function, client or process has
    /// [handed off](Guard::into_handoff). The kind of guard follows from what it is used as:
    /// `let guard: MutexGuard = locks.adopt(handoff).await?`.
    ///
    /// The lease is renewed once before the guard is valid, and then in the background, unless
    /// it is fixed. Of all that adopt copies of one hand-off at most one gets a guard.
    ///
    /// The hold keeps the label of the client that took it. A forced release is noticed by the
    /// next renewal, not by a push.
    ///
    /// # Errors
    /// The hand-off is given back. What went wrong before it was taken over changes nothing; once
    /// it was taken over only this very value can be adopted, not its text.
    /// - [`Error::InvalidInput`] if it carries another kind of guard, before any I/O.
    /// - [`Error::HandoffSpent`] if it was adopted before, or its hold is over.
    /// - [`Error::Unavailable`] if nothing was changed: try again.
    /// - [`Error::OutcomeUnknown`] if the answer was lost that says whether this call was the
    ///   first to adopt it. Trying again gives a guard or, at the latest the next time that the
    ///   server answers, [`Error::HandoffSpent`]: nobody gets the lock then before its lease is
    ///   over.
    /// - [`Error::Lost`] if its longest hold was over.
    ///
    /// Ends after at most six call time-outs.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the hand-off as it was, or releases the lock in the background
    /// if it was taken over already; if that is not known the lease ends it.
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

/// The tries of one step: until when, and the pauses between them.
struct Tries<'a> {
    core: &'a Core,
    key: &'a Key,
    until: Moment,
    backoff: Backoff,
}

impl<'a> Tries<'a> {
    fn new(core: &'a Core, key: &'a Key) -> Self {
        let limit = core.settings.call_timeout * CALLS;
        Self {
            core,
            key,
            until: core.now().saturating_add(limit),
            backoff: Backoff::foreground(),
        }
    }

    fn limit(&self) -> Duration {
        let left = self.until.saturating_since(self.core.now());
        left.min(self.core.settings.call_timeout)
    }

    /// Pauses after a failed call; gives the error back if there is no use in another.
    async fn after(&mut self, error: BackendError) -> Result<(), Error> {
        let pause = self.core.jittered(self.backoff.next());
        let left = self.until.saturating_since(self.core.now());
        if !error.is_transient() || pause >= left {
            return Err(error.on(self.key));
        }
        self.core.runtime.sleep(pause).await;
        Ok(())
    }
}

async fn hand_off(hold: &Hold, kind: Kind, mode: Mode) -> Result<Handoff, Error> {
    let core = &hold.client;
    let spec = may_travel(hold)?;
    hold.check()?;
    let _busy = Busy::begin(core);
    let mut transfer_hold = TransferHold::draw(hold, spec, mode);
    let stamp = transfer_hold.waiter().await?;
    let now = core.now();
    hold.check()?;
    let Some((state, lost)) = hold.holder.begin_release(now, hold.operation.sequence) else {
        return Err(hold.released_error());
    };
    if state.told {
        // Lost since the look before; perhaps that was told by others already.
        core.tell_releasing(&hold.holder, &state, lost, now);
        let reason = lost.or_else(|| hold.holder.lost()).unwrap_or(Loss::Unknown);
        core.releases.push(core.release_of(&hold.holder, state));
        return Err(hold.loss_error(reason));
    }
    transfer_hold.live = false;
    stop_keeping(hold);
    core.events.handed_off(&hold.holder, &state, now);
    if mutant!(SenderEndsHandoff) {
        let job = core.release_of(&hold.holder, state.clone());
        core.releases.push(job);
    }
    // The reply's stamp is in the past by now, so the end lies rather too early than too late.
    let until = |until: Moment| stamp.at.saturating_add(until.saturating_since(now));
    Ok(Handoff {
        key: hold.holder.key.clone(),
        kind,
        mode,
        operation: hold.operation,
        transfer_hold: transfer_hold.operation.sequence,
        token: hold.fencing_token().ok(),
        lease: state.lease,
        waiter_lease: state.waiter_lease,
        fixed_lease: state.fixed_until.is_some(),
        until: state.max_until.map(until),
        adoption: Adoption::No,
    })
}

/// What the key is taken for, if the hold can be handed off.
fn may_travel(hold: &Hold) -> Result<LockSpec, Error> {
    let core = &hold.client;
    let what = match hold.origin {
        Origin::Reentrant if mutant!(ReentrantHandoff) => return Ok(LockSpec::mutex()),
        Origin::Reentrant => "handing off a guard of a reentrant handle",
        Origin::Adopted => "handing off a guard that was handed off before",
        Origin::Plain(_) if !core.capabilities.reentrancy => "handing off a guard",
        Origin::Plain(_) if hold.holder.session.process != core.runtime.process_id() => {
            "handing off a guard that came through a fork"
        }
        Origin::Plain(spec) => return Ok(spec),
    };
    Err(Error::Unsupported { what })
}

/// The hold is not this client's any more.
fn stop_keeping(hold: &Hold) {
    let holder = &hold.holder;
    hold.client.renewals.remove(holder.id);
    holder.session.router.remove(hold.operation.sequence);
}

/// The hold beside the one that travels; dropping it ends what may be there of it.
struct TransferHold<'a> {
    hold: &'a Hold,
    spec: LockSpec,
    mode: Mode,
    operation: Operation,
    live: bool,
}

impl<'a> TransferHold<'a> {
    fn draw(hold: &'a Hold, spec: LockSpec, mode: Mode) -> Self {
        let owner = hold.operation.owner;
        Self {
            hold,
            spec,
            mode,
            operation: hold.holder.session.operation(Some(owner)),
            live: false,
        }
    }

    /// Takes it; the stamp of the reply. It gives the holder a whole lease from then on.
    async fn waiter(&mut self) -> Result<Stamp, Error> {
        let core = &self.hold.client;
        let mut tries = Tries::new(core, &self.hold.holder.key);
        loop {
            let left = self.hold.check()?;
            let again = match self.send(tries.limit().min(left)).await {
                Ok(Answer { stamp, reply, .. }) => match reply {
                    // More than both: the transfer hold of an attempt that failed is not ended yet.
                    AcquireReply::Acquired(acquired) if acquired.holds >= BOTH => {
                        return Ok(stamp);
                    }
                    // The hold is gone: this one stands alone, or somebody else's does.
                    AcquireReply::Acquired(_)
                    | AcquireReply::Contended(_)
                    | AcquireReply::Queued(_) => {
                        let (sequence, reason) = (self.hold.operation.sequence, EndReason::Unknown);
                        self.hold.holder.lose_through(sequence, reason);
                        let lost = || self.hold.loss_error(Loss::Unknown);
                        return Err(self.hold.check().err().unwrap_or_else(lost));
                    }
                    AcquireReply::Refused(Refused::Stale) => {
                        *self = Self::draw(self.hold, self.spec, self.mode);
                        BackendError::unavailable("a later attempt came first")
                    }
                    AcquireReply::Refused(Refused::TooLate) => {
                        BackendError::unavailable("the call came too late")
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
            tries.after(again).await?;
        }
    }

    async fn send(&mut self, limit: Duration) -> Result<Answer<AcquireReply>, BackendError> {
        let core = &self.hold.client;
        let (deliver_before, limit) = core.deliver_before(limit).await?;
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
            limits: Limits {
                holds: DEFAULT_HOLD_LIMIT.max(BOTH),
                ..Limits::default()
            },
        };
        self.live = true;
        core.exchange(limit, core.backend.acquire(&request)).await
    }
}

impl Drop for TransferHold<'_> {
    fn drop(&mut self) {
        if self.live {
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
    if (handoff.kind, handoff.mode) != (kind, mode) && !mutant!(HandoffOfAnyKind) {
        let carries = name(handoff.kind, handoff.mode);
        let asked = name(kind, mode);
        return Err(InvalidInput::HandoffKind { carries, asked }.into());
    }
    release::start(client);
    let _busy = Busy::begin(client);
    // Only now: a shutdown that has not seen the call is seen here.
    client.ensure_open()?;
    let mut arrival = Arrival {
        client,
        handoff,
        left_midway: true,
    };
    let result = arrival.run().await;
    arrival.left_midway = false;
    // A hold made while the client was being shut down may have escaped its sweep.
    client.ensure_open()?;
    let hold = result?;
    hold.check()?;
    Ok(hold)
}

/// A hand-off being adopted; if that is dropped midway the hold is ended, provided that it is
/// surely nobody else's.
struct Arrival<'a> {
    client: &'a Arc<ClientHandle>,
    handoff: &'a mut Handoff,
    left_midway: bool,
}

impl Arrival<'_> {
    async fn run(&mut self) -> Result<Hold, Error> {
        match self.handoff.adoption {
            Adoption::Yes => {}
            Adoption::Never(reason) => return Err(self.spent(reason)),
            Adoption::No | Adoption::InDoubt => self.take_transfer_hold().await?,
        }
        self.handoff.adoption = Adoption::Yes;
        let core = self.client;
        let key = self.handoff.key.clone();
        let mut tries = Tries::new(core, &key);
        let request = [Renew {
            key: key.clone(),
            operation: self.handoff.operation,
            lease: self.handoff.lease,
        }];
        loop {
            let call = core.backend.renew(&request);
            let failed = match core.exchange_one(tries.limit(), call).await {
                Ok(answer) => match answer.reply {
                    RenewReply::Renewed { token, remaining } => {
                        let status = answer.status(token, remaining);
                        if core.now() < status.deadline {
                            return Ok(self.hold(answer.sent, answer.stamp, status));
                        }
                        BackendError::unavailable("the renewal was answered too late")
                    }
                    RenewReply::Lost(reason) => return Err(self.spent(reason)),
                },
                Err(error) => error,
            };
            tries.after(failed).await?;
        }
    }

    /// Ends the transfer hold: whoever is told that it stood until then is the adopter.
    async fn take_transfer_hold(&mut self) -> Result<(), Error> {
        let core = self.client;
        let key = self.handoff.key.clone();
        let mut tries = Tries::new(core, &key);
        let transfer_hold = Operation {
            sequence: self.handoff.transfer_hold,
            ..self.handoff.operation
        };
        let request = [Release::new(key.clone(), transfer_hold)];
        loop {
            // A call that is dropped before its answer leaves the same doubt as a lost one.
            let before = std::mem::replace(&mut self.handoff.adoption, Adoption::InDoubt);
            let call = core.backend.release(&request);
            let failed = match core.exchange_one(tries.limit(), call).await {
                Ok(answer) => return self.transfer_hold_taken(answer.reply, before),
                Err(error) => error,
            };
            if !matches!(failed, BackendError::OutcomeUnknown { .. }) {
                self.handoff.adoption = before;
            }
            tries.after(failed).await?;
        }
    }

    fn spent(&self, reason: EndReason) -> Error {
        let key = self.handoff.key.clone();
        Error::HandoffSpent { key, reason }
    }

    /// What the end of the transfer hold says; `before` is what was known before it was sent.
    fn transfer_hold_taken(&mut self, reply: ReleaseReply, before: Adoption) -> Result<(), Error> {
        match reply {
            ReleaseReply::Released {
                holder: Some(_), ..
            } => Ok(()),
            ReleaseReply::NotHeld(_) if mutant!(HandoffAdoptedTwice) => Ok(()),
            ReleaseReply::NotHeld(gone) if before == Adoption::InDoubt => {
                // Whoever goes on asking must not ask for ever.
                self.handoff.adoption = Adoption::Never(gone);
                let reason =
                    "an earlier call may have adopted the hand-off, or another adopter has";
                Err(BackendError::outcome_unknown(reason).on(&self.handoff.key))
            }
            ReleaseReply::NotHeld(reason) => {
                self.handoff.adoption = Adoption::No;
                Err(self.spent(reason))
            }
            // The transfer hold stood alone: what it was to pass on is gone.
            ReleaseReply::Released { holder: None, .. } | ReleaseReply::Left => {
                self.handoff.adoption = Adoption::No;
                Err(self.spent(EndReason::Unknown))
            }
        }
    }

    /// The hold as this client keeps it from now on.
    fn hold(&self, sent: Moment, stamp: Stamp, status: LeaseStatus) -> Hold {
        let (core, handoff) = (self.client, &*self.handoff);
        let until = |until: ServerTime| sent.saturating_add(until.saturating_since(stamp.at));
        let fixed = handoff.fixed_lease;
        let state = HoldState {
            operation: handoff.operation,
            mode: handoff.mode,
            lease: handoff.lease,
            renewed: !fixed,
            fixed_until: fixed.then(|| local_deadline(sent, handoff.lease)),
            max_until: handoff.until.map(until),
            waiter_lease: handoff.waiter_lease,
            since: core.now(),
            told: false,
            ended: Arc::default(),
        };
        core.floors.saw(&handoff.key, status.token);
        let holder = Arc::new(HolderCell::new(
            handoff.key.clone(),
            core.renewals.enrol(),
            self.session(),
            status,
            state.clone(),
        ));
        core.events.adopted(&holder, handoff.mode);
        renew::start(core);
        if state.renewed {
            let due = core.renewals.due_after(sent, state.lease);
            core.renewals.schedule(&holder, core.now(), due);
        } else {
            core.renewals.watch(&holder, core.now());
        }
        Hold::new(core, holder, &state, Origin::Adopted)
    }

    fn session(&self) -> Arc<Session> {
        let process = self.client.runtime.process_id();
        Arc::new(Session::foreign(self.handoff.operation.session, process))
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        if self.left_midway && self.handoff.adoption == Adoption::Yes {
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
