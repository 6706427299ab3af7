//! The result of a release, which any number of callers can wait for.
//!
//! The first result stays. A guard's `release` waits here whether it sent the release itself or the
//! background task did, so a cancelled call can be repeated.

use crate::client::state::signal::Watched;
use crate::error::BackendError;
use crate::reply::ReleaseReply;

/// The result of a release, empty until it is known.
pub(crate) type ReleaseResult = Watched<Option<Result<Acknowledged, BackendError>>>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    pub(crate) reply: ReleaseReply,
    /// Whether an earlier attempt got no answer and may have been executed.
    pub(crate) in_doubt: bool,
    /// Whether the guard was lost before its release began.
    pub(crate) was_lost: bool,
}
