//! Faults that a test injects into messages.

use std::time::Duration;

/// A fault that happens once, to the next call or push of a client that it fits.
///
/// [`SimBackend::inject`](crate::SimBackend::inject) and
/// [`inject_into`](crate::SimBackend::inject_into) inject it. A call returns
/// [`OutcomeUnknown`](leasehold_api::BackendError::OutcomeUnknown) if its reply doesn't arrive
/// within [`CALL_TIMEOUT`](leasehold_api::bounds::CALL_TIMEOUT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The request never arrives. The command is not executed, and the call times out.
    LoseRequest,
    /// The command **is executed**, but its reply never arrives, and the call times out. This is
    /// the most important fault for locks.
    LoseReply,
    /// The request arrives this much later. Later requests of the client overtake it. It is
    /// executed even if the call has timed out by then.
    DelayRequest(Duration),
    /// The reply arrives this much later. Later replies and pushes overtake it.
    DelayReply(Duration),
    /// The request arrives twice, the second time this much after the first. Client libraries that
    /// resend requests cause this. The second reply is discarded.
    DuplicateRequest(Duration),
    /// A push to the client never arrives.
    LosePush,
    /// A push to the client arrives twice.
    DuplicatePush,
    /// A push to the client arrives this much later.
    DelayPush(Duration),
}

impl Fault {
    /// Returns whether the fault affects pushes, not calls.
    pub const fn is_for_push(self) -> bool {
        matches!(
            self,
            Self::LosePush | Self::DuplicatePush | Self::DelayPush(_)
        )
    }
}
