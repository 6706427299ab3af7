//! A case, and what it needs.

use std::fmt;

use leasehold_api::{BoxFuture, Capabilities};

use crate::failure::Verdict;
use crate::harness::{Abilities, Harness};
use crate::world::World;

/// A capability of a backend, or an ability of its harness, that a case needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "each variant is named after its capability or ability"
)]
pub enum Need {
    Queue,
    Push,
    Reachability,
    RwLocks,
    Semaphores,
    Reentrancy,
    Convert,
    Inspect,
    ForceRelease,
    List,
    Notes,
    TimeOfDay,
    PlantForeign,
    Cut,
    Freeze,
    VirtualTime,
    FencingTokens,
    Clock,
    WaiterLease,
}

impl Need {
    /// Whether the backend or the harness has it.
    pub const fn is_met(self, capabilities: Capabilities, abilities: Abilities) -> bool {
        match self {
            Self::Queue => capabilities.queue,
            Self::Push => capabilities.push,
            Self::Reachability => capabilities.reachability,
            Self::RwLocks => capabilities.rw_locks,
            Self::Semaphores => capabilities.semaphores,
            Self::Reentrancy => capabilities.reentrancy,
            Self::Convert => capabilities.convert,
            Self::Inspect => capabilities.inspect,
            Self::ForceRelease => capabilities.force_release,
            Self::List => capabilities.list,
            Self::Notes => capabilities.notes,
            Self::TimeOfDay => capabilities.time_of_day,
            Self::PlantForeign => abilities.plant_foreign,
            Self::Cut => abilities.cut,
            Self::Freeze => abilities.freeze,
            Self::VirtualTime => abilities.virtual_time,
            Self::FencingTokens => abilities.fencing_tokens,
            Self::Clock => abilities.clock,
            Self::WaiterLease => abilities.waiter_lease,
        }
    }

    /// Its name in the reason for ignoring a case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Push => "push",
            Self::Reachability => "reachability",
            Self::RwLocks => "rw_locks",
            Self::Semaphores => "semaphores",
            Self::Reentrancy => "reentrancy",
            Self::Convert => "convert",
            Self::Inspect => "inspect",
            Self::ForceRelease => "force_release",
            Self::List => "list",
            Self::Notes => "notes",
            Self::TimeOfDay => "time_of_day",
            Self::PlantForeign => "plant_foreign (harness)",
            Self::Cut => "cut (harness)",
            Self::Freeze => "freeze (harness)",
            Self::VirtualTime => "virtual_time (harness)",
            Self::FencingTokens => "fencing_tokens (harness)",
            Self::Clock => "clock (harness)",
            Self::WaiterLease => "waiter lease (harness)",
        }
    }
}

/// One case of the suite.
#[derive(Clone, Copy)]
pub struct Case {
    pub(crate) family: &'static str,
    pub(crate) name: &'static str,
    pub(crate) rules: &'static [&'static str],
    pub(crate) needs: &'static [Need],
    pub(crate) run: for<'a> fn(&'a World) -> BoxFuture<'a, Verdict>,
}

impl Case {
    /// The full name, `family::case`.
    pub fn name(&self) -> String {
        format!("{}::{}", self.family, self.name)
    }

    /// The rules that the case covers, such as `rule 4`, `S3` or `L1`.
    pub const fn rules(&self) -> &'static [&'static str] {
        self.rules
    }

    /// What the backend must support for the case to run. A case without needs can't be ignored.
    pub const fn needs(&self) -> &'static [Need] {
        self.needs
    }

    /// Why the case can't run with this harness; `None` if it can.
    pub fn ignored_because(&self, harness: &dyn Harness) -> Option<String> {
        let (capabilities, abilities) = (harness.capabilities(), harness.abilities());
        let missing: Vec<_> = self
            .needs
            .iter()
            .filter(|need| !need.is_met(capabilities, abilities))
            .map(|need| need.name())
            .collect();
        (!missing.is_empty()).then(|| format!("without {}", missing.join(", ")))
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case")
            .field("name", &self.name())
            .field("rules", &self.rules)
            .field("needs", &self.needs)
            .finish_non_exhaustive()
    }
}

/// Defines the cases of a family: `cases!("family"; case: [rules], [needs]; …)`.
macro_rules! cases {
    ($family:literal; $($name:ident: [$($rule:literal),*], [$($need:ident),*];)+) => {
        &[$($crate::case::Case {
            family: $family,
            name: stringify!($name),
            rules: &[$($rule),*],
            needs: &[$($crate::case::Need::$need),*],
            run: |world| Box::pin($name(world)),
        }),+]
    };
}

pub(crate) use cases;
