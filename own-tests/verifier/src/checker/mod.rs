//! Checks the promises of docs/semantics.md during a run, on the true timeline.
//!
//! The checker needs no search, because the simulation knows the truth. It compares the states
//! before and after each step of a server ([`holders`], [`order`], [`history`]), and the clients'
//! guards with the servers and with each other ([`guards`]). It also watches what healthy clients
//! must do ([`duties`]). It shares no code with the state machine.
//!
//! It checks what users rely on: every finding names S1 to S5, L1 to L4, or the rule behind one of them.
//! It doesn't check every field of a reply or of a notification. The machine's own tests and the
//! conformance suite do that (docs/decisions/0071).

mod coverage;
mod duties;
mod events;
mod findings;
mod guards;
mod history;
mod holders;
mod order;
mod rare;
mod run;
mod step;
#[cfg(test)]
mod tests;

pub use coverage::{Coverage, Situation};
pub use findings::Violation;
pub(crate) use findings::{Model, client_name};
pub(crate) use guards::{GuardId, GuardReading, Holding, TrackableGuard};
pub(crate) use run::Checker;
pub(crate) use step::{Step, operation as operation_of};
