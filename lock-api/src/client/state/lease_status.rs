//! The lease of a holder as one reply reports it: its token and its local deadline.
//!
//! The deadline comes from the moment when the request was sent (rule 2). It depends on one clock
//! of the server, so the holder is lost if that clock steps. Of two replies, the holder keeps the
//! later deadline and the higher token.

use crate::id::FencingToken;
use crate::runtime::Moment;
use crate::time::ClockId;

/// Token and deadline of a holder, and the server clock that they depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseStatus {
    pub(crate) token: FencingToken,
    pub(crate) deadline: Moment,
    pub(crate) clock: ClockId,
}
