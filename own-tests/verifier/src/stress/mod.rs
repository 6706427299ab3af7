//! Stress runs: several production lock clients under every kind of fault, checked by the
//! [checker](crate::checker).
//!
//! A seed draws a plan: the number of clients, the kind of lock, the leases, the
//! latency, and the kinds of faults. The run injects faults for some time and then heals
//! everything. After that, every client that is alive must get the lock once more.

mod chaos;
mod foreign;
mod handle;
mod healed;
mod machine;
mod monitor;
mod mutants;
mod outcome;
mod plan;
mod resource;
mod run;
mod scope;
mod simplest;
mod try_only;
mod worker;

pub use mutants::{
    ANSWERING_REPLICA, CARELESS_RESOURCE, IN_EVERY_BUILD, MutantInfo, OLDER_EPOCH,
    READ_WITHOUT_CLAIM,
};
pub use outcome::StressRun;
pub use plan::Assumption;
pub use run::Stress;
pub use scope::SmallScope;
pub use try_only::try_only;
