//! The state of one hold, as a part of its `HolderCell`: its lease, its limits, and whether its loss was reported.
//!
//! A hold is lost with its holder, or when its maximum hold time is over, whichever comes first.
//! `take_loss` returns the loss once, so the event, the metric and the hook see each lost guard once.

use std::time::Duration;

use crate::client::error::Loss;
use crate::client::state::release_outcome::ReleaseResult;
use crate::id::Operation;
use crate::request::Mode;
use crate::runtime::Moment;
use crate::sync::Arc;

/// When a valid hold ends without another renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expiry {
    deadline: Moment,
    max_until: Option<Moment>,
    confirm_by: Option<Moment>,
}

impl Expiry {
    pub(crate) fn end(self) -> Moment {
        self.max_until
            .map_or(self.deadline, |max| max.min(self.deadline))
    }

    /// When a caller that wants to know `margin` before the end is told. An offer lasts for seconds, whatever the
    /// lease: its deadline says nothing before the first renewal had its chance.
    pub(crate) fn margin_begins(self, margin: Duration) -> Moment {
        let begins = self.deadline.saturating_sub(margin);
        let begins = self.confirm_by.map_or(begins, |by| by.max(begins));
        self.max_until
            .map_or(begins, |max| max.saturating_sub(margin).min(begins))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct HoldState {
    pub(crate) operation: Operation,
    pub(crate) mode: Mode,
    pub(crate) lease: Duration,
    /// The end of a fixed lease, as it was when the hold was granted. The renewal task renews all other holds.
    pub(crate) fixed_until: Option<Moment>,
    /// The end of the maximum hold time. It never moves.
    pub(crate) max_until: Option<Moment>,
    /// If it may be an offer that no renewal has confirmed yet (rule 10): until when its first renewal has a chance.
    pub(crate) confirm_by: Option<Moment>,
    pub(crate) class: &'static str,
    /// When the caller got the guard.
    pub(crate) since: Moment,
    pub(crate) loss_reported: bool,
    pub(crate) release_result: Arc<ReleaseResult>,
}

impl HoldState {
    /// Whether the renewal task renews it.
    pub(crate) const fn is_renewed(&self) -> bool {
        self.fixed_until.is_none()
    }

    /// When its guard becomes invalid, if the holder is valid until `deadline`.
    pub(super) fn until(&self, deadline: Moment) -> Moment {
        self.expiry(deadline).end()
    }

    /// The same, with what else a margin before that depends on.
    pub(super) const fn expiry(&self, deadline: Moment) -> Expiry {
        Expiry {
            deadline,
            max_until: self.max_until,
            confirm_by: self.confirm_by,
        }
    }

    /// The reason why its guard is lost, if it is. `holder` is the loss of the whole holder.
    pub(super) fn loss(&self, now: Moment, holder: Option<Loss>) -> Option<Loss> {
        let passed = self.max_until.is_some_and(|until| now >= until);
        holder.or(passed.then_some(Loss::MaxHold))
    }

    /// Of a hold whose release has begun: whether it was lost before that.
    pub(crate) const fn was_lost(&self) -> bool {
        // The beginning of the release takes the loss.
        self.loss_reported
    }

    /// Returns the loss once and marks it as reported.
    pub(super) fn take_loss(&mut self, now: Moment, holder: Option<Loss>) -> Option<Loss> {
        if self.loss_reported {
            return None;
        }
        let loss = self.loss(now, holder);
        self.loss_reported = loss.is_some();
        loss
    }
}
