//! What a reply says about a holder's lease.

use crate::id::FencingToken;
use crate::runtime::Moment;
use crate::time::ClockId;

/// What a reply says about a tenure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) token: FencingToken,
    pub(crate) deadline: Moment,
    pub(crate) clock: ClockId,
}
