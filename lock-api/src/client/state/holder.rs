//! The state that all guards of one holder share: token, deadline, holds and loss.
//!
//! A [`HolderCell`] has one entry for each hold, by the sequence number of its operation. A hold is
//! in the cell from its grant until its release *begins*; the first caller of `begin_release` takes
//! it out. From then on the hold is neither renewed nor lost.
//!
//! Replies may arrive in any order. The cell keeps the highest token and the latest deadline that a
//! reply has reported. If every hold so far has a fixed lease, the holder ends with the last of
//! them, whatever the server reports. A renewed hold lifts that limit for all guards of the holder.
//! Each function that depends on validity checks the deadline first. Once the deadline has passed, or
//! the holder is lost for another reason, the loss is final. It is reported once for each hold. A change
//! of validity notifies `changed`; after [`join`](HolderCell::join) the caller does. A loss before the
//! deadline also wakes the renewal task, which reports it.

use std::fmt;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use crate::client::error::Loss;
use crate::client::state::answer::LeaseStatus;
use crate::client::state::hold_state::{Expiry, HoldState};
use crate::client::state::router::Revocable;
use crate::client::state::session::Session;
use crate::client::state::signal::Signal;
use crate::id::{FencingToken, Key, Operation};
use crate::reply::EndReason;
use crate::request::Mode;
use crate::runtime::Moment;
use crate::sync::{Arc, Mutex, Weak};
use crate::time::ClockId;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) operation: Operation,
    pub(crate) lease: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Validity {
    Valid(Expiry),
    Lost(Loss),
    /// Its release has begun.
    Released,
}

/// Whether a nested hold belongs to the holder of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    Yes,
    /// No: that holder has ended, and the hold has a later one.
    Later,
    /// No: the holder that the hold had has ended, and the cell has a later one.
    Earlier,
}

/// The schedule of the client, which owns the holders and checks each at its time.
pub(crate) trait Alarm: fmt::Debug + Send + Sync {
    /// The id of a new holder. The holder is scheduled later.
    fn new_id(&self) -> u64;

    /// Checks a holder as soon as possible, because it is lost.
    fn check_now(&self, id: u64);
}

#[derive(Debug)]
pub(crate) struct HolderCell {
    pub(crate) key: Key,
    pub(crate) id: u64,
    pub(crate) session: Arc<Session>,
    alarm: Weak<dyn Alarm>,
    state: Mutex<State>,
    pub(crate) changed: Signal,
}

#[derive(Debug)]
struct State {
    status: LeaseStatus,
    /// Whether a conversion was sent, which gives a living holder another token.
    converts: bool,
    /// The end of the last fixed lease, if no hold so far was renewed automatically. An explicit
    /// renewal extends it.
    fixed_until: Option<Moment>,
    lost: Option<Loss>,
    /// More than one only if the owner is reentrant.
    holds: SmallVec<[HoldState; 1]>,
    /// Holds that the client's shutdown released. Their guards report `ClientClosed`.
    shut_down: Vec<u64>,
}

impl State {
    /// When all guards of the holder become invalid.
    fn deadline(&self) -> Moment {
        let reported = self.status.deadline;
        self.fixed_until
            .map_or(reported, |until| until.min(reported))
    }

    /// Marks the holder as lost if its deadline has passed.
    fn check_deadline(&mut self, now: Moment) {
        if self.lost.is_none() && now >= self.deadline() {
            self.lost = Some(Loss::Deadline);
        }
    }

    fn hold(&self, sequence: u64) -> Option<&HoldState> {
        let mut holds = self.holds.iter();
        holds.find(|hold| hold.operation.sequence == sequence)
    }

    fn merge(&mut self, new: LeaseStatus) {
        // The server never shortens a holder and its tokens only grow, so the greater values are
        // the current ones, in whatever order the replies arrive.
        let old = self.status;
        // The clock is that of the server that was asked last, even if another one, which had the key before,
        // promised the deadline: the server that has the key ends the lease (decision 0076).
        let latest = if new.sent < old.sent { old } else { new };
        self.status = LeaseStatus {
            token: old.token.max(new.token),
            deadline: old.deadline.max(new.deadline),
            ..latest
        };
    }
}

impl HolderCell {
    pub(crate) fn new(
        key: Key,
        alarm: &Arc<impl Alarm + 'static>,
        session: Arc<Session>,
        status: LeaseStatus,
        hold: HoldState,
    ) -> Arc<Self> {
        let id = alarm.new_id();
        let alarm = Arc::downgrade(alarm);
        Arc::new(Self {
            key,
            id,
            session,
            alarm,
            state: Mutex::new(State {
                status,
                converts: false,
                fixed_until: hold.fixed_until,
                lost: None,
                holds: smallvec![hold],
                shut_down: Vec::new(),
            }),
            changed: Signal::default(),
        })
    }

    /// Adds a nested hold, if it belongs to this cell's holder at the server.
    ///
    /// An owner has one holder at a time. So a writer with another token has another holder, and the older of the two
    /// has ended and is lost: another client may have had the key in between, and the older guards would show a token
    /// under which they have read nothing (decision 0076). The token of readers grows while their holder lives: when a
    /// hold is converted, when the last write hold beside them is released, and with another reader's floor. So for a
    /// reader, or once a conversion was sent, a greater token means another holder only if the server counts no hold
    /// beside the new one, or sent no count, as with a pushed grant.
    ///
    /// A cell whose holds are all being released takes none: its deadline may be that of a holder that has ended.
    ///
    /// This function wakes nobody, so you can call it under a lock. Call [`wake`](Self::wake)
    /// afterwards.
    pub(crate) fn join(
        &self,
        now: Moment,
        status: LeaseStatus,
        hold: &HoldState,
        holds: Option<u32>,
    ) -> Joined {
        let mut state = self.state.lock();
        state.check_deadline(now);
        let known = state.status.token;
        let may_grow = state.converts || hold.mode == Mode::Shared;
        if status.token < known && !may_grow {
            return Joined::Earlier;
        }
        if state.lost.is_some() || state.holds.is_empty() {
            return Joined::Later;
        }
        let is_sole = holds.is_none_or(|holds| holds < 2);
        if status.token > known && (is_sole || !may_grow) {
            state.lost = Some(Loss::Unknown);
            return Joined::Later;
        }
        state.merge(status);
        let both = state.fixed_until.zip(hold.fixed_until);
        state.fixed_until = both.map(|(before, new)| before.max(new));
        state.holds.push(hold.clone());
        Joined::Yes
    }

    /// Notes that a conversion is about to be sent.
    pub(crate) fn converts(&self) {
        self.state.lock().converts = true;
    }

    /// Applies the answer to a release that was `sent` then, after which the server has no hold of the owner. The holds
    /// that were granted before that are gone too, without a loss that anybody tells (decision 0076).
    pub(crate) fn ended(&self, sent: Moment) {
        let state = self.state.lock();
        let is_left = state.holds.iter().any(|hold| hold.since <= sent);
        drop(state);
        if is_left {
            self.lose(Loss::Unknown);
        }
    }

    /// Wakes the tasks that wait for a change of this holder. Call it after [`join`](Self::join), without a
    /// lock.
    pub(crate) fn wake(&self) {
        self.changed.notify();
        if self.state.lock().lost.is_some() {
            self.alarm();
        }
    }

    /// Makes the schedule check the holder as soon as possible, because it is lost.
    fn alarm(&self) {
        if let Some(alarm) = self.alarm.upgrade() {
            alarm.check_now(self.id);
        }
    }

    /// Applies the lease that a reply reports. Returns `false` if the holder is lost.
    pub(crate) fn extend(&self, now: Moment, status: LeaseStatus) -> bool {
        let mut state = self.state.lock();
        state.check_deadline(now);
        let extended = state.lost.is_none();
        if extended {
            state.merge(status);
        }
        drop(state);
        self.changed.notify();
        extended
    }

    /// Handles an answer to a request that was `sent` before a known step of the server's clock. The holder is
    /// lost, unless a later request has set its status. Returns whether it is still valid.
    pub(crate) fn lose_unless_later(&self, sent: Moment) -> bool {
        if self.state.lock().status.sent <= sent {
            self.lose(Loss::ClockStepped);
        }
        self.lost().is_none()
    }

    /// Notes that a renewal has succeeded, and has extended the lease. It confirms an offer, a grant to a waiter that was
    /// not confirmed yet.
    pub(crate) fn confirm(&self) {
        let mut state = self.state.lock();
        let offers = state
            .holds
            .iter_mut()
            .filter_map(|hold| hold.confirm_by.take());
        let confirmed = offers.count();
        drop(state);
        if confirmed > 0 {
            self.changed.notify();
        }
    }

    /// Extends a fixed lease to `until`, after an explicit renewal.
    pub(crate) fn extend_fixed(&self, now: Moment, until: Moment) {
        let mut state = self.state.lock();
        state.check_deadline(now);
        if state.lost.is_none() {
            state.fixed_until = state.fixed_until.map(|fixed| fixed.max(until));
        }
        drop(state);
        self.changed.notify();
    }

    /// Changes the mode of a hold, after a conversion. Returns its old mode, or `None` if the hold
    /// is released or its loss was reported.
    pub(crate) fn set_mode(&self, sequence: u64, mode: Mode) -> Option<Mode> {
        let mut state = self.state.lock();
        let hold = state
            .holds
            .iter_mut()
            .find(|hold| hold.operation.sequence == sequence)?;
        let before = std::mem::replace(&mut hold.mode, mode);
        (!hold.loss_reported).then_some(before)
    }

    /// Marks the holder as lost for all its guards. The first reason stays.
    pub(crate) fn lose(&self, loss: Loss) {
        let mut state = self.state.lock();
        state.lost.get_or_insert(loss);
        drop(state);
        self.changed.notify();
        self.alarm();
    }

    /// Marks the holder as lost if the hold `sequence` is live, and returns whether it is. An
    /// answer about a hold that is being released says nothing about the other holds.
    pub(crate) fn lose_through(&self, sequence: u64, reason: EndReason) -> bool {
        let live = self.is_unreleased(sequence);
        if live {
            self.lose(reason.into());
        }
        live
    }

    pub(crate) fn lost(&self) -> Option<Loss> {
        self.state.lock().lost
    }

    pub(crate) fn clock_stepped(&self, clock: ClockId) {
        let affected = self.state.lock().status.clock == clock;
        if affected {
            self.lose(Loss::ClockStepped);
        }
    }

    /// Begins the release of a hold. Only the first caller gets the hold, with its loss if that was
    /// not reported before.
    pub(crate) fn begin_release(
        &self,
        now: Moment,
        sequence: u64,
    ) -> Option<(HoldState, Option<Loss>)> {
        let mut state = self.state.lock();
        state.check_deadline(now);
        let index = state
            .holds
            .iter()
            .position(|hold| hold.operation.sequence == sequence)?;
        let mut hold = state.holds.remove(index);
        let loss = hold.take_loss(now, state.lost);
        drop(state);
        self.changed.notify();
        Some((hold, loss))
    }

    /// Begins the release of all holds, for a shutdown. Returns each hold with the loss to report.
    pub(crate) fn shut_down(&self, now: Moment) -> Vec<(HoldState, Option<Loss>)> {
        let mut state = self.state.lock();
        state.check_deadline(now);
        let holds = std::mem::take(&mut state.holds);
        state
            .shut_down
            .extend(holds.iter().map(|hold| hold.operation.sequence));
        let lost = state.lost;
        drop(state);
        self.changed.notify();
        let reports = holds.into_iter().map(|mut hold| {
            let loss = hold.take_loss(now, lost);
            let closed = (!hold.loss_reported).then_some(Loss::ClientClosed);
            (hold, loss.or(closed))
        });
        reports.collect()
    }

    /// Returns the holds that are lost by now, with the reasons. Each loss is returned once.
    pub(crate) fn take_losses(&self, now: Moment) -> Vec<(HoldState, Loss)> {
        let mut state = self.state.lock();
        let was_lost = state.lost.is_some();
        state.check_deadline(now);
        let lost = state.lost;
        let losses = state.holds.iter_mut().filter_map(|hold| {
            let loss = hold.take_loss(now, lost)?;
            Some((hold.clone(), loss))
        });
        let losses: Vec<_> = losses.collect();
        drop(state);
        if !was_lost && lost.is_some() {
            self.changed.notify();
        }
        losses
    }

    /// When the next loss is due for a report, if no renewal succeeds before.
    pub(crate) fn next_loss(&self) -> Option<Moment> {
        let state = self.state.lock();
        let deadline = match state.lost {
            Some(_) => Moment::default(),
            None => state.deadline(),
        };
        let unreported = state.holds.iter().filter(|hold| !hold.loss_reported);
        unreported.map(|hold| hold.until(deadline)).min()
    }

    pub(crate) fn validity(&self, now: Moment, sequence: u64) -> Validity {
        let mut state = self.state.lock();
        state.check_deadline(now);
        match state.hold(sequence) {
            Some(hold) => match hold.loss(now, state.lost) {
                Some(loss) => Validity::Lost(loss),
                None => Validity::Valid(hold.expiry(state.deadline())),
            },
            None if state.shut_down.contains(&sequence) => Validity::Lost(Loss::ClientClosed),
            None => Validity::Released,
        }
    }

    /// Whether the hold is in the cell: granted, and its release has not begun.
    pub(crate) fn is_unreleased(&self, sequence: u64) -> bool {
        self.state.lock().hold(sequence).is_some()
    }

    /// The number of holds whose release has not begun.
    pub(crate) fn holds(&self) -> usize {
        self.state.lock().holds.len()
    }

    /// Whether the release of its last hold has begun.
    pub(crate) fn is_released(&self) -> bool {
        self.state.lock().holds.is_empty()
    }

    /// The server that was asked last, as in [`ClockId::server`].
    pub(crate) fn server(&self) -> u64 {
        self.state.lock().status.clock.server()
    }

    /// How long the server keeps the holder at least.
    pub(crate) fn time_left(&self, now: Moment) -> Duration {
        self.state.lock().status.deadline.saturating_since(now)
    }

    pub(crate) fn token(&self) -> FencingToken {
        self.state.lock().status.token
    }

    /// The renewal that the holder needs. `None` if it is lost or released, or if no hold is
    /// renewed automatically.
    pub(crate) fn plan(&self, now: Moment) -> Option<Plan> {
        let mut state = self.state.lock();
        let was_lost = state.lost.is_some();
        state.check_deadline(now);
        if state.lost.is_some() {
            drop(state);
            if !was_lost {
                self.changed.notify();
            }
            return None;
        }
        let renewed = state
            .holds
            .iter()
            .filter(|hold| hold.is_renewed() && hold.max_until.is_none_or(|until| now < until));
        let longest = renewed.max_by_key(|hold| hold.lease)?;
        Some(Plan {
            operation: longest.operation,
            lease: longest.lease,
        })
    }
}

impl Revocable for HolderCell {
    fn revoke(&self, sequence: u64) {
        self.lose_through(sequence, EndReason::Forced);
    }
}

#[cfg(test)]
pub(crate) mod tests;
