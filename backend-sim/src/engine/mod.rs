//! What every deterministic simulation needs: choices from a tape, a queue of events in virtual
//! time, a ready queue of tasks. It knows nothing of locks.

pub(crate) mod choices;
pub(crate) mod event_queue;
pub(crate) mod gate;
pub(crate) mod local_clock;
pub(crate) mod ready;
pub(crate) mod tape;
