//! The conformance suite that every leasehold backend passes.
//!
//! A backend's `tests/conformance.rs` (with `harness = false`) implements [`Harness`] and passes
//! it to [`run`]:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use leasehold_api::{Capabilities, LockBackend};
//! # use leasehold_conformance::{Environment, Harness, SetupError};
//! # #[derive(Debug)]
//! # struct MyHarness;
//! # #[async_trait::async_trait]
//! # impl Harness for MyHarness {
//! #     fn name(&self) -> &str { "mine" }
//! #     fn capabilities(&self) -> Capabilities { Capabilities::minimal() }
//! #     async fn environment(&self, _: &str) -> Result<Arc<dyn Environment>, SetupError> {
//! #         Err("an example".into())
//! #     }
//! # }
//! fn main() -> std::process::ExitCode {
//!     leasehold_conformance::run(MyHarness, &[])
//! }
//! ```
//!
//! Every case is named `family::case` and lists the rules of the semantics that it covers; see
//! [`cases`]. A case is reported as *ignored* if the backend's
//! [`Capabilities`](leasehold_api::Capabilities) rule it out, and the suite compares the ignored
//! cases with a list that you pass. Cases without needs (exclusion, expiry, owner-checked release,
//! redelivery, stalls, closing, and more) can't be ignored. A server that can't be reached is a failure.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod attempt;
mod case;
#[cfg(feature = "differential")]
pub mod differential;
mod failure;
mod families;
mod harness;
mod holding;
mod network;
mod proxy;
#[cfg(test)]
mod rules;
mod runner;
mod session;
mod without_a_clock;
mod world;

pub use case::{Case, Need};
pub use failure::Failure;
pub use families::all as cases;
pub use harness::{Abilities, Environment, Harness, SetupError, Timing};
pub use network::TcpProxy;
pub use runner::{run, run_case};
pub use without_a_clock::WITHOUT_A_CLOCK;
