//! The state machine, rule by rule and at random.
//!
//! Each module tests one family of rules of `docs/semantics.md`. `random` plays random sequences of
//! commands and checks the invariants after every step.

mod bytes;
mod conversion;
mod delivery;
mod expiry;
mod forced;
mod kept;
mod ledger;
mod limits;
mod notes;
mod offers;
mod order;
mod parts;
mod random;
mod reentrancy;
mod scan;
mod support;
mod time;
mod tokens;
mod unreachable;
