//! What a test can make go wrong once, for the next message that it fits.

use std::collections::VecDeque;
use std::time::Duration;

use crate::log::Call;

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

/// Faults of one client that wait for their message, in the order in which they were injected.
#[derive(Debug, Default)]
pub(crate) struct Faults(VecDeque<(Option<Call>, Fault)>);

impl Faults {
    pub(crate) fn inject(&mut self, call: Option<Call>, fault: Fault) {
        self.0.push_back((call, fault));
    }

    pub(crate) fn pending(&self) -> usize {
        self.0.len()
    }

    /// Takes the first fault that fits a call; one call has at most one fault.
    pub(crate) fn for_call(&mut self, call: Call) -> Option<Fault> {
        self.take(|wanted, fault| !fault.is_for_push() && wanted.is_none_or(|w| w == call))
    }

    /// Takes the first fault of a push.
    pub(crate) fn for_push(&mut self) -> Option<Fault> {
        self.take(|_, fault| fault.is_for_push())
    }

    fn take(&mut self, fits: impl Fn(Option<Call>, Fault) -> bool) -> Option<Fault> {
        let at = self.0.iter().position(|&(call, fault)| fits(call, fault))?;
        self.0.remove(at).map(|(_, fault)| fault)
    }
}
