//! What a reply says about a holder's lease.

use crate::id::FencingToken;
use crate::runtime::Moment;
use crate::time::ClockId;

/// What a reply says about a holder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseStatus {
    pub(crate) token: FencingToken,
    pub(crate) deadline: Moment,
    pub(crate) clock: ClockId,
}
