//! How a hold travels from one client to another, and is adopted by one only.
//!
//! A hand-off is a text, and a text can be copied. So the sender takes a second hold beside the
//! one that travels, in the same tenure: the *baton*. Who adopts ends the baton first. The
//! server answers `Released` to one end of an operation and `NotHeld` to every other, however
//! often and late it is delivered, so whoever is told `Released` is the only one that ever may
//! renew the hold and make a guard of it. If the answer is lost nobody can know who was first;
//! then nobody becomes the holder, and the hold ends with its lease.
//!
//! From the baton on the sender renews nothing. The adopter renews the hold once before its
//! guard is valid, and from then on as its own.

use std::time::Duration;

use crate::bounds::DEFAULT_HOLD_LIMIT;
use crate::client::core::{Anchor, Busy, Core};
use crate::client::error::{Error, Loss};
use crate::client::guard::Guard;
use crate::client::handle::client::LockClient;
use crate::client::handoff::kind::Travels;
use crate::client::handoff::text::{Claim, Handoff, HandoffFailed, name};
use crate::client::hold::{Hold, Origin};
use crate::client::state::answer::Answer;
use crate::client::state::backoff::Backoff;
use crate::client::state::clock::local_deadline;
use crate::client::state::hold_state::HoldState;
use crate::client::state::holder::Tenure;
use crate::client::state::lease_status::Standing;
use crate::client::state::session::Session;
use crate::client::task::{release, renew};
use crate::error::{BackendError, InvalidInput};
use crate::id::{Key, Operation};
use crate::mutants::mutant;
use crate::reply::{AcquireReply, EndReply, Refused, RenewReply, Why};
use crate::request::{Acquire, End, Kind, Limits, LockSpec, Mode, Renew};
use crate::runtime::Moment;
use crate::sync::Arc;
use crate::time::{ServerTime, Stamp};

/// How many call time-outs each step may take.
const CALLS: u32 = 3;
/// The hold that travels, and the baton.
const BOTH: u32 = 2;

impl<K: Travels> Guard<K> {
    /// Hands the lock to another function, client or process, which
    /// [adopts](LockClient::adopt) it, without letting it go in between.
    ///
    /// This client stops renewing, and nothing that it does afterwards ends the hold. The
    /// hand-off has one whole lease for its journey, counted from this call; nobody renews it on
    /// the way, so take a lease that is long enough, and if nobody adopts it the lock is free
    /// after that. The fencing token stays the same: sender and adopter are one period, so stop
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
    pub async fn adopt<K: Travels>(
        &self,
        handoff: Handoff,
    ) -> Result<Guard<K>, HandoffFailed<Handoff>> {
        let mut handoff = handoff;
        match adopt(&self.anchor, &mut handoff, K::KIND, K::MODE).await {
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
    let core = &hold.anchor;
    let spec = may_travel(hold)?;
    hold.check()?;
    let _busy = Busy::begin(core);
    let mut baton = Baton::draw(hold, spec, mode);
    let stamp = baton.place().await?;
    let now = core.now();
    hold.check()?;
    let Some((state, lost)) = hold.tenure.begin_end(now, hold.operation.sequence) else {
        return Err(hold.released_error());
    };
    if state.told {
        // Lost since the look before; perhaps that was told by others already.
        core.tell_ending(&hold.tenure, &state, lost, now);
        let reason = lost.or_else(|| hold.tenure.lost()).unwrap_or(Loss::Unknown);
        core.cleanup.push(core.release_of(&hold.tenure, state));
        return Err(hold.loss_error(reason));
    }
    baton.live = false;
    stop_keeping(hold);
    core.events.handed_off(&hold.tenure, &state, now);
    if mutant!(SenderEndsHandoff) {
        let job = core.release_of(&hold.tenure, state.clone());
        core.cleanup.push(job);
    }
    // The reply's stamp is in the past by now, so the end lies rather too early than too late.
    let until = |until: Moment| stamp.at.saturating_add(until.saturating_since(now));
    Ok(Handoff {
        key: hold.tenure.key.clone(),
        kind,
        mode,
        operation: hold.operation,
        baton: baton.operation.sequence,
        token: hold.fencing_token().ok(),
        lease: state.lease,
        waiter_lease: state.waiter_lease,
        fixed_lease: state.fixed_until.is_some(),
        until: state.max_until.map(until),
        claim: Claim::No,
    })
}

/// What the key is taken for, if the hold can be handed off.
fn may_travel(hold: &Hold) -> Result<LockSpec, Error> {
    let core = &hold.anchor;
    let what = match hold.origin {
        Origin::Reentrant if mutant!(ReentrantHandoff) => return Ok(LockSpec::mutex()),
        Origin::Reentrant => "handing off a guard of a reentrant handle",
        Origin::Adopted => "handing off a guard that was handed off before",
        Origin::Plain(_) if !core.capabilities.reentrancy => "handing off a guard",
        Origin::Plain(_) if hold.tenure.session.process != core.runtime.process_id() => {
            "handing off a guard that came through a fork"
        }
        Origin::Plain(spec) => return Ok(spec),
    };
    Err(Error::Unsupported { what })
}

/// The hold is not this client's any more.
fn stop_keeping(hold: &Hold) {
    let tenure = &hold.tenure;
    hold.anchor.renewals.remove(tenure.id);
    tenure.session.hub.remove(hold.operation.sequence);
}

/// The hold beside the one that travels; dropping it ends what may be there of it.
struct Baton<'a> {
    hold: &'a Hold,
    spec: LockSpec,
    mode: Mode,
    operation: Operation,
    live: bool,
}

impl<'a> Baton<'a> {
    fn draw(hold: &'a Hold, spec: LockSpec, mode: Mode) -> Self {
        let owner = hold.operation.owner;
        Self {
            hold,
            spec,
            mode,
            operation: hold.tenure.session.operation(Some(owner)),
            live: false,
        }
    }

    /// Takes it; the stamp of the reply. It gives the tenure a whole lease from then on.
    async fn place(&mut self) -> Result<Stamp, Error> {
        let core = &self.hold.anchor;
        let mut tries = Tries::new(core, &self.hold.tenure.key);
        loop {
            let left = self.hold.check()?;
            let again = match self.send(tries.limit().min(left)).await {
                Ok(Answer { stamp, reply, .. }) => match reply {
                    // More than both: the baton of an attempt that failed is not ended yet.
                    AcquireReply::Acquired(acquired) if acquired.holds >= BOTH => {
                        return Ok(stamp);
                    }
                    // The hold is gone: this one stands alone, or somebody else's does.
                    AcquireReply::Acquired(_) | AcquireReply::Held(_) | AcquireReply::Queued(_) => {
                        let (sequence, why) = (self.hold.operation.sequence, Why::Unknown);
                        self.hold.tenure.lose_through(sequence, why);
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
                            key: self.hold.tenure.key.clone(),
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
        let core = &self.hold.anchor;
        let (deliver_before, limit) = core.deliver_before(limit).await?;
        let request = Acquire {
            key: self.hold.tenure.key.clone(),
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

impl Drop for Baton<'_> {
    fn drop(&mut self) {
        if self.live {
            let hold = self.hold;
            let core = &hold.anchor;
            core.abandon(
                &hold.tenure.session,
                &hold.tenure.key,
                self.operation,
                hold.lease,
                self.spec.waiter_lease(),
            );
        }
    }
}

async fn adopt(
    anchor: &Arc<Anchor>,
    handoff: &mut Handoff,
    kind: Kind,
    mode: Mode,
) -> Result<Hold, Error> {
    if (handoff.kind, handoff.mode) != (kind, mode) && !mutant!(HandoffOfAnyKind) {
        let carries = name(handoff.kind, handoff.mode);
        let asked = name(kind, mode);
        return Err(InvalidInput::HandoffKind { carries, asked }.into());
    }
    release::start(anchor);
    let _busy = Busy::begin(anchor);
    // Only now: a shutdown that has not seen the call is seen here.
    anchor.ensure_open()?;
    let mut arrival = Arrival {
        anchor,
        handoff,
        left_midway: true,
    };
    let result = arrival.run().await;
    arrival.left_midway = false;
    // A hold made while the client was being shut down may have escaped its sweep.
    anchor.ensure_open()?;
    let hold = result?;
    hold.check()?;
    Ok(hold)
}

/// A hand-off being adopted; if that is dropped midway the hold is ended, provided that it is
/// surely nobody else's.
struct Arrival<'a> {
    anchor: &'a Arc<Anchor>,
    handoff: &'a mut Handoff,
    left_midway: bool,
}

impl Arrival<'_> {
    async fn run(&mut self) -> Result<Hold, Error> {
        match self.handoff.claim {
            Claim::Yes => {}
            Claim::Never(why) => return Err(self.spent(why)),
            Claim::No | Claim::InDoubt => self.take_baton().await?,
        }
        self.handoff.claim = Claim::Yes;
        let core = self.anchor;
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
                        let standing = answer.standing(token, remaining);
                        if core.now() < standing.deadline {
                            return Ok(self.hold(answer.sent, answer.stamp, standing));
                        }
                        BackendError::unavailable("the renewal was answered too late")
                    }
                    RenewReply::Lost(why) => return Err(self.spent(why)),
                },
                Err(error) => error,
            };
            tries.after(failed).await?;
        }
    }

    /// Ends the baton: whoever is told that it stood until then is the adopter.
    async fn take_baton(&mut self) -> Result<(), Error> {
        let core = self.anchor;
        let key = self.handoff.key.clone();
        let mut tries = Tries::new(core, &key);
        let baton = Operation {
            sequence: self.handoff.baton,
            ..self.handoff.operation
        };
        let request = [End::new(key.clone(), baton)];
        loop {
            // A call that is dropped before its answer leaves the same doubt as a lost one.
            let before = std::mem::replace(&mut self.handoff.claim, Claim::InDoubt);
            let call = core.backend.end(&request);
            let failed = match core.exchange_one(tries.limit(), call).await {
                Ok(answer) => return self.baton_taken(answer.reply, before),
                Err(error) => error,
            };
            if !matches!(failed, BackendError::OutcomeUnknown { .. }) {
                self.handoff.claim = before;
            }
            tries.after(failed).await?;
        }
    }

    fn spent(&self, reason: Why) -> Error {
        let key = self.handoff.key.clone();
        Error::HandoffSpent { key, reason }
    }

    /// What the end of the baton says; `before` is what was known before it was sent.
    fn baton_taken(&mut self, reply: EndReply, before: Claim) -> Result<(), Error> {
        match reply {
            EndReply::Released {
                tenure: Some(_), ..
            } => Ok(()),
            EndReply::NotHeld(_) if mutant!(HandoffAdoptedTwice) => Ok(()),
            EndReply::NotHeld(gone) if before == Claim::InDoubt => {
                // Whoever goes on asking must not ask for ever.
                self.handoff.claim = Claim::Never(gone);
                let why = "an earlier call may have adopted the hand-off, or another adopter has";
                Err(BackendError::outcome_unknown(why).on(&self.handoff.key))
            }
            EndReply::NotHeld(why) => {
                self.handoff.claim = Claim::No;
                Err(self.spent(why))
            }
            // The baton stood alone: what it was to pass on is gone.
            EndReply::Released { tenure: None, .. } | EndReply::Left => {
                self.handoff.claim = Claim::No;
                Err(self.spent(Why::Unknown))
            }
        }
    }

    /// The hold as this client keeps it from now on.
    fn hold(&self, sent: Moment, stamp: Stamp, standing: Standing) -> Hold {
        let (core, handoff) = (self.anchor, &*self.handoff);
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
        core.floors.saw(&handoff.key, standing.token);
        let tenure = Arc::new(Tenure::new(
            handoff.key.clone(),
            core.renewals.enrol(),
            self.session(),
            standing,
            state.clone(),
        ));
        core.events.adopted(&tenure, handoff.mode);
        renew::start(core);
        if state.renewed {
            let due = core.renewals.due_after(sent, state.lease);
            core.renewals.schedule(&tenure, core.now(), due);
        } else {
            core.renewals.watch(&tenure, core.now());
        }
        Hold::new(core, tenure, &state, Origin::Adopted)
    }

    fn session(&self) -> Arc<Session> {
        let process = self.anchor.runtime.process_id();
        Arc::new(Session::foreign(self.handoff.operation.session, process))
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        if self.left_midway && self.handoff.claim == Claim::Yes {
            let (core, handoff) = (self.anchor, &*self.handoff);
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
