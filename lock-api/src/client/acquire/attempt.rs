//! One operation, from its first acquire to a hold or its release.
//!
//! An [`Attempt`] registers with the notification router, sends its acquire at least once, and
//! turns the grant into a hold. A nested hold joins the holder of its owner.
//!
//! An attempt is live while the server may have a hold, an offer (see below) or a waiter of its operation. If a
//! live attempt is dropped, the operation is released in the background. After an acquire without
//! an answer, the attempt stays live whatever later replies say, because the server may still
//! execute that acquire.
//!
//! A grant from the queue is an offer, which only a renewal confirms (rule 10). The first renewal
//! is scheduled shortly after the grant is taken, or sent before that if the offer is too short.

use std::time::Duration;

use crate::client::acquire::request::{Ask, Owner};
use crate::client::core::Busy;
use crate::client::error::Loss;
use crate::client::hold::Hold;
use crate::client::state::answer::{Answer, GrantReply, LeaseStatus};
use crate::client::state::hold_state::HoldState;
use crate::client::state::holder::{HolderCell, Joined};
use crate::client::state::polls::PollHandle;
use crate::client::state::router::{Inbox, InboxEvent, PushedGrant};
use crate::client::state::session::Session;
use crate::client::task::batch::send_batched;
use crate::client::task::{listen, poll, release, renew};
use crate::error::BackendError;
use crate::id::Operation;
use crate::reply::{AcquireReply, RenewReply};
use crate::request::{Acquire, Renew, Wait};
use crate::runtime::Moment;
use crate::sync::Arc;
use crate::time::{ServerTime, Stamp};

/// An offer is confirmed this long after the attempt takes it (rule 10). At once, a lock that is held for milliseconds
/// would take three calls in place of two (decision 0010).
const CONFIRM_AFTER: Duration = Duration::from_millis(50);
/// An offer with less time left is confirmed before the caller gets its guard: a later renewal may be
/// too late.
const SHORT_OFFER: Duration = Duration::from_millis(100);

/// An operation. Dropping it releases what it may have left on the server.
#[derive(Debug)]
pub(crate) struct Attempt<'a> {
    ask: Ask<'a>,
    session: Arc<Session>,
    operation: Operation,
    inbox: Option<Arc<Inbox>>,
    /// The version of the shared owner's grants before this attempt was sent.
    owner_version: u64,
    /// Whether the server may have a hold, an offer or a waiter of this operation.
    live: bool,
    /// Whether an acquire got no answer and may still be executed.
    in_doubt: bool,
    /// Whether a grant may be an offer that needs a renewal.
    may_be_offer: bool,
    /// The waiter's own deadline, on the server's clock.
    wait_until: Option<ServerTime>,
    _busy: Busy<'a>,
}

impl<'a> Attempt<'a> {
    pub(crate) fn begin(ask: Ask<'a>) -> Self {
        let core = ask.client;
        release::start(core);
        let busy = Busy::begin(core);
        let session = core.session();
        let (owner, owner_version) = match ask.owner {
            Owner::Fresh => (None, 0),
            Owner::Reentrant(shared) => (Some(shared.id), shared.granted.version()),
        };
        let operation = session.operation(owner);
        let inbox = core
            .capabilities
            .queue
            .then(|| session.router.register(operation.sequence));
        Self {
            ask,
            session,
            operation,
            inbox,
            owner_version,
            live: false,
            in_doubt: false,
            may_be_offer: false,
            wait_until: None,
            _busy: busy,
        }
    }

    /// Sends the acquire, for the first time or again.
    pub(crate) async fn acquire(
        &mut self,
        wait: bool,
        deadline: Option<Moment>,
        limit: Duration,
    ) -> Result<Answer<AcquireReply>, BackendError> {
        let core = self.ask.client;
        let (deliver_before, limit) = core.deliver_before(self.ask.key, limit).await?;
        let request = Acquire {
            key: self.ask.key.clone(),
            spec: self.ask.spec,
            mode: self.ask.mode,
            operation: self.operation,
            label: core.settings.label.clone(),
            lease: self.ask.options.lease,
            wait: wait.then(|| self.wait_options(deadline)),
            deliver_before,
            floor: core.floors.get(self.ask.key),
            limits: self.ask.options.limits,
        };
        // An acquire that is sent again may be answered by a grant from the queue, if its first copy was queued.
        self.may_be_offer = self.may_be_offer || (wait && self.live);
        // Before the call: a future that is dropped within it may leave a hold behind.
        let was_live = std::mem::replace(&mut self.live, true);
        let result = match core.batcher.begin_unbatched() {
            Some(_call) => {
                let call = core.backend.acquire(std::slice::from_ref(&request));
                core.exchange_one(limit, call).await
            }
            None => send_batched(core, limit, request).await,
        };
        match &result {
            Ok(answer) => match answer.reply {
                AcquireReply::Acquired(_) => {}
                AcquireReply::Queued(_) => self.may_be_offer = true,
                // Not `false`: an earlier copy without an answer may still be granted. `TooLate` sets no watermark
                // that stops it (rule 12).
                AcquireReply::Contended(_)
                | AcquireReply::Stale
                | AcquireReply::TooLate
                | AcquireReply::Refused(_) => self.live = self.in_doubt,
            },
            Err(BackendError::OutcomeUnknown { .. }) => {
                self.in_doubt = true;
            }
            Err(_) => self.live = was_live,
        }
        result
    }

    fn wait_options(&mut self, deadline: Option<Moment>) -> Wait {
        let core = self.ask.client;
        listen::start(core, &self.session);
        let wait = Wait::new(self.session.router.is_listening());
        let now = core.now();
        match deadline.zip(core.server_now(self.ask.key)) {
            Some((deadline, server)) => {
                // By no reading does the waiter end before the caller's wait.
                let until = server.saturating_add(deadline.saturating_since(now));
                let until = until.saturating_add(core.capabilities.clock_error);
                // Any of the acquires may be the one that created the waiter.
                let earliest = self.wait_until.map_or(until, |other| other.min(until));
                self.wait_until = Some(earliest);
                wait.with_wait_until(until)
            }
            None => wait,
        }
    }

    pub(crate) fn register_polls(&self) -> PollHandle {
        let core = self.ask.client;
        poll::start(core, &self.session);
        PollHandle::register(&self.session.polls, self.ask.key, self.operation)
    }

    /// Notes that a poll found neither a waiter nor a grant.
    pub(crate) const fn set_gone(&mut self) {
        self.live = self.in_doubt;
    }

    /// Whether a poll extends a waiter that has `remaining` at `stamp`. It does not if the waiter
    /// lasts until wait-until already.
    pub(crate) fn polls_extend(&self, stamp: Stamp, remaining: Duration) -> bool {
        let expiry = stamp.at.saturating_add(remaining);
        self.wait_until.is_none_or(|until| expiry < until)
    }

    /// Renews a grant before the caller gets its guard. `None` if the grant is gone.
    pub(crate) async fn renew(
        &mut self,
        limit: Duration,
    ) -> Result<Option<Answer<GrantReply>>, BackendError> {
        let core = self.ask.client;
        let lease = self.ask.options.lease;
        let request = [Renew::checked(self.ask.key, self.operation, lease)];
        let call = core.backend.renew(&request);
        let answer = core.exchange_one(limit, call).await;
        core.events.renewal(self.ask.key, &answer);
        let answer = answer?;
        self.may_be_offer = false;
        Ok(match answer.reply {
            RenewReply::Renewed { token, remaining } => Some(answer.with(GrantReply {
                token,
                holds: None,
                remaining,
            })),
            RenewReply::Lost(_) => None,
        })
    }

    /// Turns a pushed grant into an answer. `None` if its deadline cannot be computed.
    pub(crate) fn pushed_answer(&self, grant: PushedGrant) -> Option<Answer<GrantReply>> {
        let (stamp, reply) = (grant.stamp, grant.reply);
        // The grant counts as the answer to a request that was sent when the grant was made.
        let core = self.ask.client;
        let sent = core.clock.granted_at(stamp, grant.received)?;
        Some(core.answer_of(sent, stamp, reply))
    }

    /// Whether a grant must be renewed before the caller gets its guard: if no time is left, or if
    /// it may be an offer that is short or that no later renewal would confirm.
    pub(crate) fn must_confirm(&self, answer: &Answer<GrantReply>) -> bool {
        let left = self.time_left(answer);
        let confirm_first = self.ask.options.fixed_lease || left < SHORT_OFFER;
        left.is_zero() || (self.may_be_offer && confirm_first)
    }

    pub(crate) fn is_usable(&self, answer: &Answer<GrantReply>) -> bool {
        !self.time_left(answer).is_zero()
    }

    fn time_left(&self, answer: &Answer<GrantReply>) -> Duration {
        let deadline = answer.deadline(answer.reply.remaining);
        deadline.saturating_since(self.ask.client.now())
    }

    pub(crate) async fn notification(&self) -> InboxEvent {
        match &self.inbox {
            Some(inbox) => inbox.next().await,
            None => std::future::pending().await,
        }
    }

    /// Waits until another attempt of the same owner is granted.
    pub(crate) async fn owner_granted(&self) {
        match self.ask.owner {
            Owner::Fresh => std::future::pending().await,
            Owner::Reentrant(shared) => shared.granted.changed(self.owner_version).await,
        }
    }

    pub(crate) fn into_hold(mut self, answer: &Answer<GrantReply>) -> Hold {
        self.live = false;
        let core = self.ask.client;
        let now = core.now();
        let options = self.ask.options;
        let Answer { sent, reply, .. } = *answer;
        let status = answer.status(reply.token, reply.remaining);
        // A hold that is released before it is confirmed needs no renewal.
        let left = status.deadline.saturating_since(now);
        let confirm_after = CONFIRM_AFTER.min(left / 10);
        // By then, it is confirmed, or a try had no answer in its time.
        let confirm_within = (confirm_after + renew::try_time(options.lease)).min(left / 2);
        let state = HoldState {
            operation: self.operation,
            mode: self.ask.mode,
            lease: options.lease,
            fixed_until: options.fixed_lease.then(|| answer.deadline(options.lease)),
            max_until: options.max_hold.map(|max| sent.saturating_add(max)),
            confirm_by: self
                .may_be_offer
                .then(|| now.saturating_add(confirm_within)),
            class: options.class,
            since: now,
            loss_reported: false,
            release_result: Arc::default(),
        };
        core.floors.saw(self.ask.key, reply.token);
        let holder = self.join_or_create(status, &state, reply.holds);
        renew::start(core);
        let due = if self.may_be_offer {
            now.saturating_add(confirm_after)
        } else {
            // A grant that was made a while ago may have less than its lease left.
            core.renewals
                .due_after(sent, options.lease.min(answer.lasts(reply.remaining)))
        };
        core.schedule(&holder, status, state.is_renewed().then_some(due));
        if self.inbox.is_some() {
            let sequence = self.operation.sequence;
            self.session.router.set_held(sequence, &holder);
        }
        self.inbox = None;
        Hold::new(core, holder, &state)
    }

    /// Adds a nested hold to its owner's holder, or creates a holder.
    fn join_or_create(
        &self,
        status: LeaseStatus,
        state: &HoldState,
        holds: Option<u32>,
    ) -> Arc<HolderCell> {
        let core = self.ask.client;
        let create = || {
            let (key, session) = (self.ask.key.clone(), Arc::clone(&self.session));
            HolderCell::new(key, &core.renewals, session, status, state.clone())
        };
        let Owner::Reentrant(shared) = self.ask.owner else {
            return create();
        };
        let mut current = shared.holder.lock();
        let before = current.upgrade();
        let join = |cell: &Arc<HolderCell>| cell.join(core.now(), status, state, holds);
        let joined = before.as_ref().map_or(Joined::Later, join);
        let holder = match &before {
            Some(cell) if joined == Joined::Yes => Arc::clone(cell),
            _ => create(),
        };
        if joined == Joined::Later {
            *current = Arc::downgrade(&holder);
        }
        drop(current);
        // Waking may run any code, so it happens outside the lock.
        if joined == Joined::Earlier {
            holder.lose(Loss::Unknown);
        }
        if let Some(before) = before {
            before.wake();
        }
        shared.granted.notify();
        holder
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.ask.client.owns(&self.session) {
            return;
        }
        let router = &self.session.router;
        let core = self.ask.client;
        if !self.live {
            if self.inbox.is_some() {
                router.remove(self.operation.sequence);
            }
            return;
        }
        router.set_releasing(self.operation.sequence);
        let Ask { key, options, .. } = self.ask;
        core.abandon(&self.session, key, self.operation, options.lease);
    }
}
