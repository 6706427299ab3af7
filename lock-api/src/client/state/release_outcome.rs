//! The result of a release, which any number of callers can wait for.
//!
//! A guard's `release` waits here whether it sent the release itself or the
//! background task did, so a cancelled call can be repeated. An error that may pass is told at once, and replaced by
//! the result of the retries. The first acknowledgement stays.

use crate::client::error::Loss;
use crate::client::state::signal::Watched;
use crate::error::BackendError;
use crate::reply::{EndReason, ReleaseReply};

/// The result of a release so far, empty until there is one.
pub(crate) type ReleaseResult = Watched<Option<Result<Acknowledged, BackendError>>>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    pub(crate) reply: ReleaseReply,
    /// Whether an earlier attempt got no answer and may have been executed.
    pub(crate) in_doubt: bool,
    /// Whether the guard was lost before its release began.
    pub(crate) was_lost: bool,
}

impl Acknowledged {
    /// The loss that the answer tells of: nothing was left to release, and no earlier attempt explains that.
    pub(crate) fn loss(&self) -> Option<Loss> {
        let (in_doubt, was_lost) = (self.in_doubt, self.was_lost);
        match self.reply {
            ReleaseReply::Released { .. } => None,
            ReleaseReply::NotHeld(reason) => {
                let released_before = match reason {
                    // Only a copy of this release, or an earlier attempt, can have released the hold.
                    EndReason::Released => true,
                    // An earlier attempt was sent while the guard was valid, and may have been executed. The server
                    // may have forgotten it by now, if another task of this client asked for the key.
                    EndReason::Unknown | EndReason::Expired => in_doubt,
                    EndReason::Forced => false,
                };
                // If the guard was lost before, that attempt may have found nothing to release.
                (was_lost || !released_before).then(|| reason.into())
            }
            // Only a waiter was left: the server had lost the grant.
            ReleaseReply::Left => Some(Loss::Unknown),
        }
    }
}
