//! Faults that a test injects into messages.

use std::time::Duration;

/// Something that happens once, to the next call or push of a client that it fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The request never arrives: nothing is executed, and the call ends with its time-out.
    LoseRequest,
    /// The command **is executed**, but its reply never arrives: the call ends with its time-out.
    /// The fault that matters most for locks.
    LoseReply,
    /// The request arrives so much later than it would have; what the client sends meanwhile
    /// overtakes it. If that is later than the call's time-out, the call has ended by then.
    DelayRequest(Duration),
    /// The reply arrives so much later than it would have.
    DelayReply(Duration),
    /// The request arrives twice, the second time so much later than the first, as client
    /// libraries do that send again by themselves. Nobody reads the second reply.
    DuplicateRequest(Duration),
    /// A push to the client never arrives.
    LosePush,
    /// A push to the client arrives twice.
    DuplicatePush,
    /// A push to the client arrives so much later than it would have.
    DelayPush(Duration),
}

impl Fault {
    /// Whether it happens to a push, and not to a call.
    pub const fn is_for_push(self) -> bool {
        matches!(
            self,
            Self::LosePush | Self::DuplicatePush | Self::DelayPush(_)
        )
    }
}
