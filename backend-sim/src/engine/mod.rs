//! The parts of any deterministic simulation: choices from a tape, a queue of events in virtual
//! time, and a ready queue of tasks. Nothing here depends on locks.

pub(crate) mod choices;
pub(crate) mod event_queue;
pub(crate) mod gate;
pub(crate) mod local_clock;
pub(crate) mod ready;
pub(crate) mod tape;
