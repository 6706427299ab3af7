//! The pending faults of one client.

use std::collections::VecDeque;

use crate::record::{Call, Fault};

/// The pending faults of one client, in the order in which they were injected.
#[derive(Debug, Default)]
pub(crate) struct Faults(pub(crate) VecDeque<(Option<Call>, Fault)>);

impl Faults {
    /// Takes the first fault that fits a call; one call has at most one fault.
    pub(crate) fn for_call(&mut self, call: Call) -> Option<Fault> {
        self.take(|wanted, fault| !fault.is_for_push() && wanted.is_none_or(|w| w == call))
    }

    pub(crate) fn for_push(&mut self) -> Option<Fault> {
        self.take(|_, fault| fault.is_for_push())
    }

    fn take(&mut self, fits: impl Fn(Option<Call>, Fault) -> bool) -> Option<Fault> {
        let at = self.0.iter().position(|&(call, fault)| fits(call, fault))?;
        self.0.remove(at).map(|(_, fault)| fault)
    }
}
