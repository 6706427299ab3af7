//! One operation on its way to a hold.

use std::time::Duration;

use crate::client::acquire::request::{Ask, Owner};
use crate::client::core::Busy;
use crate::client::hold::{Hold, Origin};
use crate::client::state::answer::{Answer, reply_of};
use crate::client::state::clock::local_deadline;
use crate::client::state::hold_state::HoldState;
use crate::client::state::holder::HolderCell;
use crate::client::state::lease_status::LeaseStatus;
use crate::client::state::polls::Polled;
use crate::client::state::router::{Inbox, InboxEvent, PushedGrant};
use crate::client::state::session::Session;
use crate::client::task::batch::send_batched;
use crate::client::task::{listen, poll, release, renew};
use crate::error::BackendError;
use crate::id::Operation;
use crate::mutants::mutant;
use crate::reply::{AcquireReply, Acquired, RenewReply};
use crate::request::{Acquire, Renew, Wait};
use crate::runtime::Moment;
use crate::sync::{Arc, Weak};
use crate::time::{ServerTime, Stamp};

/// How long after it was taken an offer is confirmed.
const CONFIRM_AFTER: Duration = Duration::from_millis(50);
/// An offer with less left than this is confirmed before it is handed out: it ends with the
/// waiter's own patience, and the renewal might come too late for the guard.
const SHORT_OFFER: Duration = Duration::from_millis(100);
/// In place of a number of holds that the server has not told.
const HOLDS_UNKNOWN: u32 = 0;

/// An operation; dropping it ends whatever it may have left on the server.
#[derive(Debug)]
pub(crate) struct Attempt<'a> {
    ask: Ask<'a>,
    session: Arc<Session>,
    operation: Operation,
    inbox: Option<Arc<Inbox>>,
    /// Version of the shared owner's grants before this attempt was sent.
    owner_version: u64,
    /// Whether the server may have something of this operation.
    live: bool,
    /// Whether a sending got no answer, so that it may still be executed.
    in_doubt: bool,
    /// Whether a grant may be an offer, which only a renewal confirms.
    may_be_offer: bool,
    too_late: u32,
    /// When the place ends in any case, on the server's clock.
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
            .push
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
            too_late: 0,
            wait_until: None,
            _busy: busy,
        }
    }

    /// Sends the acquire, once more if it was sent before.
    pub(crate) async fn acquire(
        &mut self,
        wait: bool,
        deadline: Option<Moment>,
        limit: Duration,
    ) -> Result<Answer<AcquireReply>, BackendError> {
        let core = self.ask.client;
        let (deliver_before, limit) = core.deliver_before(limit).await?;
        let request = Acquire {
            key: self.ask.key.clone(),
            spec: self.ask.spec,
            mode: self.ask.mode,
            operation: self.operation,
            label: core.settings.label.clone(),
            lease: self.ask.options.lease,
            wait: wait.then(|| self.waiter(deadline)),
            deliver_before,
            floor: core.floors.get(self.ask.key),
            limits: self.ask.options.limits,
        };
        // The first sending is the only one whose grant is surely no offer out of the queue.
        self.may_be_offer = self.may_be_offer || (wait && self.live);
        let was_live = std::mem::replace(&mut self.live, true);
        let result = match core.batcher.alone() {
            Some(_call) => core.exchange(limit, core.backend.acquire(&request)).await,
            None => send_batched(core, limit, request).await,
        };
        match &result {
            Ok(answer) => match answer.reply {
                AcquireReply::Acquired(_) => {}
                AcquireReply::Queued(_) => self.may_be_offer = true,
                AcquireReply::Contended(_) | AcquireReply::Refused(_) => self.live = self.in_doubt,
            },
            Err(BackendError::OutcomeUnknown { .. }) if !mutant!(LostReplyIsNotAcquired) => {
                self.in_doubt = true;
            }
            Err(_) => self.live = was_live,
        }
        result
    }

    fn waiter(&mut self, deadline: Option<Moment>) -> Wait {
        let core = self.ask.client;
        listen::start(core, &self.session);
        let wait = Wait::new(self.session.router.is_listening());
        let now = core.now();
        match deadline.zip(core.clock.server_now(now)) {
            Some((deadline, server)) => {
                let until = server.saturating_add(deadline.saturating_since(now));
                // Any sending may be the one that made the place.
                self.wait_until = Some(self.wait_until.map_or(until, |it| it.min(until)));
                wait.with_wait_until(until)
            }
            None => wait,
        }
    }

    /// Notes a `TooLate`; whether it is the first.
    pub(crate) const fn too_late(&mut self) -> bool {
        self.too_late += 1;
        self.too_late == 1
    }

    /// Has the place in the queue polled from now on.
    pub(crate) fn polled(&self) -> Polled {
        let core = self.ask.client;
        poll::begin(core, &self.session, self.ask.key, self.operation)
    }

    /// A poll has told that nothing is left of it.
    pub(crate) const fn gone(&mut self) {
        self.live = self.in_doubt;
    }

    /// Whether polls prolong a place that has `remaining` at `stamp`: not if it ends with the
    /// waiter's own patience.
    pub(crate) fn can_be_prolonged(&self, stamp: Stamp, remaining: Duration) -> bool {
        let end = stamp.at.saturating_add(remaining);
        self.wait_until.is_none_or(|until| end < until)
    }

    /// Renews a grant before it is handed out; `None` if it is gone.
    pub(crate) async fn renew(
        &mut self,
        limit: Duration,
    ) -> Result<Option<Answer<Acquired>>, BackendError> {
        let core = self.ask.client;
        let request = [Renew {
            key: self.ask.key.clone(),
            operation: self.operation,
            lease: self.ask.options.lease,
        }];
        let call = core.backend.renew(&request);
        let answer = core.exchange_one(limit, call).await;
        core.events.renewal(self.ask.key, reply_of(&answer));
        let answer = answer?;
        self.may_be_offer = false;
        Ok(match answer.reply {
            RenewReply::Renewed { token, remaining } => Some(answer.with(Acquired {
                token,
                holds: HOLDS_UNKNOWN,
                remaining,
            })),
            RenewReply::Lost(_) => None,
        })
    }

    /// Computes how long a pushed grant may be used; `None` if that cannot be known.
    pub(crate) fn pushed(&self, grant: PushedGrant) -> Option<Answer<Acquired>> {
        let core = self.ask.client;
        // The push is put as an answer to something sent when the grant was made.
        let sent = core.clock.granted_at(grant.stamp, grant.received)?;
        let PushedGrant {
            token,
            remaining,
            stamp,
            ..
        } = grant;
        Some(Answer {
            sent,
            stamp,
            reply: Acquired {
                token,
                holds: HOLDS_UNKNOWN,
                remaining,
            },
        })
    }

    /// Whether a grant must be renewed before it is handed out: because nothing is left of it,
    /// or, of an offer, too little, or because nobody would confirm it later.
    pub(crate) fn must_confirm(&self, answer: &Answer<Acquired>) -> bool {
        let left = self.usable_for(answer);
        let confirmed_first = self.ask.options.fixed_lease || left < SHORT_OFFER;
        left.is_zero() || (self.may_be_offer && confirmed_first)
    }

    pub(crate) fn is_usable(&self, answer: &Answer<Acquired>) -> bool {
        !self.usable_for(answer).is_zero()
    }

    fn usable_for(&self, answer: &Answer<Acquired>) -> Duration {
        let until = local_deadline(answer.sent, answer.reply.remaining);
        until.saturating_since(self.ask.client.now())
    }

    /// The next thing that is pushed for this attempt.
    pub(crate) async fn event(&self) -> InboxEvent {
        match &self.inbox {
            Some(inbox) => inbox.next().await,
            None => std::future::pending().await,
        }
    }

    /// Ends when another attempt of the same owner was granted after this one began.
    pub(crate) async fn owner_granted(&self) {
        match self.ask.owner {
            Owner::Fresh => std::future::pending().await,
            Owner::Reentrant(shared) => shared.granted.changed(self.owner_version).await,
        }
    }

    /// Turns a grant into a hold.
    pub(crate) fn into_hold(mut self, answer: &Answer<Acquired>) -> Hold {
        self.live = false;
        let core = self.ask.client;
        let now = core.now();
        let options = self.ask.options;
        let Answer { sent, reply, .. } = *answer;
        let Acquired {
            token,
            remaining,
            holds,
        } = reply;
        let status = answer.status(token, remaining);
        let state = HoldState {
            operation: self.operation,
            mode: self.ask.mode,
            lease: options.lease,
            renewed: !options.fixed_lease,
            fixed_until: options
                .fixed_lease
                .then(|| local_deadline(sent, options.lease)),
            max_until: options.max_hold.map(|most| sent.saturating_add(most)),
            waiter_lease: options.waiter_lease,
            since: now,
            told: false,
            ended: Arc::default(),
        };
        core.floors.saw(self.ask.key, token);
        let holder = self.join_or_begin(status, &state, holds);
        renew::start(core);
        if state.renewed {
            let due = if self.may_be_offer {
                // A hold that is over before that needs no renewal.
                let left = status.deadline.saturating_since(now);
                now.saturating_add(CONFIRM_AFTER.min(left / 10))
            } else {
                // Of a grant that was made a while ago, and is only told now, little may be left.
                core.renewals.due_after(sent, options.lease.min(remaining))
            };
            core.renewals.schedule(&holder, now, due);
        } else {
            core.renewals.watch(&holder, now);
        }
        if self.inbox.is_some() {
            let revocable: Weak<HolderCell> = Arc::downgrade(&holder);
            self.session.router.held(self.operation.sequence, revocable);
        }
        self.inbox = None;
        let origin = match self.ask.owner {
            Owner::Fresh => Origin::Plain(self.ask.spec),
            Owner::Reentrant(_) => Origin::Reentrant,
        };
        Hold::new(core, holder, &state, origin)
    }

    /// A nested hold joins the cell of its owner's holder.
    fn join_or_begin(&self, status: LeaseStatus, state: &HoldState, holds: u32) -> Arc<HolderCell> {
        let core = self.ask.client;
        let begin = || {
            let watched = core.renewals.enrol();
            let session = Arc::clone(&self.session);
            Arc::new(HolderCell::new(
                self.ask.key.clone(),
                watched,
                session,
                status,
                state.clone(),
            ))
        };
        let Owner::Reentrant(shared) = self.ask.owner else {
            return begin();
        };
        let mut current = shared.holder.lock();
        let before = current.upgrade();
        let joins = |it: &&Arc<HolderCell>| it.join(core.now(), status, state, holds);
        let holder = match before.as_ref().filter(joins) {
            Some(joined) => {
                if mutant!(RenewalLeakedPerReentry) {
                    let due = core.now().saturating_add(state.lease / 3);
                    core.renewals.schedule(&begin(), core.now(), due);
                }
                Arc::clone(joined)
            }
            None => {
                let begun = begin();
                *current = Arc::downgrade(&begun);
                begun
            }
        };
        drop(current);
        // Waking runs code of others: not under the lock.
        if let Some(before) = before {
            before.wake();
        }
        shared.granted.notify();
        holder
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if mutant!(DroppedAttemptLeaks) {
            return;
        }
        if mutant!(CancelledWaiterKeepsGrant) {
            let inbox = self.inbox.as_ref();
            self.live &= !inbox.is_some_and(|inbox| inbox.has_grant());
        }
        let router = &self.session.router;
        let core = self.ask.client;
        if !self.live {
            if self.inbox.is_some() {
                router.remove(self.operation.sequence);
            }
            return;
        }
        if mutant!(RouterForgetsTooSoon) {
            router.remove(self.operation.sequence);
        }
        router.ending(self.operation.sequence);
        let Ask { key, options, .. } = self.ask;
        let (lease, waiter_lease) = (options.lease, options.waiter_lease);
        core.abandon(&self.session, key, self.operation, lease, waiter_lease);
    }
}
