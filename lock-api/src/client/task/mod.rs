//! The background tasks of a client, and the calls that foreground code shares with them.
//!
//! Each task owns its calls in flight and drives them itself; it spawns nothing. It reads the
//! version of its signal, takes out the work that is due, and sleeps until the signal changes, a
//! timer fires or a call completes.

pub(crate) mod batch;
pub(crate) mod listen;
pub(crate) mod poll;
pub(crate) mod probe;
pub(crate) mod release;
pub(crate) mod renew;
