//! One guard's part in the record of a holder.

use std::time::Duration;

use crate::client::error::Loss;
use crate::client::state::release_outcome::ReleaseResult;
use crate::id::Operation;
use crate::request::Mode;
use crate::runtime::Moment;
use crate::sync::Arc;

/// One guard's part in a holder.
#[derive(Clone, Debug)]
pub(crate) struct HoldState {
    pub(crate) operation: Operation,
    pub(crate) mode: Mode,
    pub(crate) lease: Duration,
    /// Whether it is renewed without being asked.
    pub(crate) renewed: bool,
    /// Release of a fixed lease; an explicit renewal moves it.
    pub(crate) fixed_until: Option<Moment>,
    /// Release of the longest hold; nothing moves it.
    pub(crate) max_until: Option<Moment>,
    pub(crate) waiter_lease: Duration,
    /// When its guard was handed out.
    pub(crate) since: Moment,
    /// Whether its loss was told. Of a hold whose end has begun: whether it was lost before.
    pub(crate) told: bool,
    /// Where the outcome of its end will be.
    pub(crate) ended: Arc<ReleaseResult>,
}

impl HoldState {
    pub(super) fn until(&self, deadline: Moment) -> Moment {
        let caps = [self.fixed_until, self.max_until];
        caps.into_iter().flatten().fold(deadline, Moment::min)
    }

    /// Why its guard is lost, if it is.
    pub(super) fn loss(&self, now: Moment, holder: Option<Loss>) -> Option<Loss> {
        let over = |until: Option<Moment>| until.is_some_and(|until| now >= until);
        holder
            .or(over(self.max_until).then_some(Loss::MaxHold))
            .or(over(self.fixed_until).then_some(Loss::Deadline))
    }

    /// Returns the loss once, and watermarks it as told.
    pub(super) fn untold_loss(&mut self, now: Moment, holder: Option<Loss>) -> Option<Loss> {
        if self.told {
            return None;
        }
        let loss = self.loss(now, holder);
        self.told = loss.is_some();
        loss
    }
}
