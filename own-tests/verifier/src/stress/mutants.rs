//! Within how many seeds stress runs must find a mutant.
//!
//! The mutants themselves are in the folder `mutants` of this package. Only a build of the copy that
//! `.ci/plant` makes contains them; those of the protected resource and of the servers are in every build.

/// The default budget of seeds.
const BUDGET: u32 = 5_000;

/// The budget of a mutant that needs a late message, a clock ahead, and a failover at the right time.
const RARE: u32 = 200_000;

/// A mutant that stress runs find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MutantInfo {
    /// The name of the mutant.
    pub name: &'static str,
    /// The number of seeds within which the mutant must be found.
    pub budget: u32,
    /// Whether only runs outside of the model can find it.
    pub out_of_model: bool,
    /// The promises that it must break to count as found; any, if there are none. Other checks find
    /// it too, but on a real server they don't exist.
    pub promises: &'static [&'static str],
}

/// A mutant of the protected resource: it accepts a token below the highest that it has accepted.
pub const CARELESS_RESOURCE: &str = "resource-takes-an-older-token";

/// A mutant of the users of the protected resource: they read it without claiming it first.
pub const READ_WITHOUT_CLAIM: &str = "resource-is-read-without-a-claim";

/// A mutant of the servers: a replica that lags answers commands that write nothing. It harms no
/// exclusion, because the client doesn't go on in an older epoch.
pub const ANSWERING_REPLICA: &str = "replica-answers-what-writes-nothing";

/// A mutant of the client that needs such a replica.
pub const OLDER_EPOCH: &str = "conversion-goes-on-in-an-older-epoch";

/// The mutants that every build contains.
pub const IN_EVERY_BUILD: &[&str] = &[CARELESS_RESOURCE, READ_WITHOUT_CLAIM, ANSWERING_REPLICA];

const fn within(name: &'static str, budget: u32) -> MutantInfo {
    MutantInfo {
        name,
        budget,
        out_of_model: false,
        promises: &[],
    }
}

/// A mutant that must break one of these promises.
const fn breaking(
    name: &'static str,
    budget: u32,
    promises: &'static [&'static str],
) -> MutantInfo {
    MutantInfo {
        promises,
        ..within(name, budget)
    }
}

const fn outside(name: &'static str) -> MutantInfo {
    MutantInfo {
        name,
        budget: BUDGET,
        out_of_model: true,
        promises: &[],
    }
}

/// The mutants with another budget than [`BUDGET`], another mode, or promises.
const UNUSUAL: &[MutantInfo] = &[
    within("lease-counted-from-the-reply", 300),
    outside("deadline-from-a-stepped-wall-clock"),
    within("lost-wake-up-without-poll", 50),
    breaking(OLDER_EPOCH, RARE, &["S1"]),
    within("light-waiters-pass-heavy-ones", 20),
    breaking(
        "grant-is-pushed-and-then-taken-back",
        BUDGET,
        &["S1", "S4", "S5"],
    ),
    breaking(
        "relayed-grant-is-read-with-the-replicas-clock",
        RARE,
        &["S1", "S2"],
    ),
    within("watchdog-renews-after-release", 200),
    within("cancelled-acquire-leaks", 50),
    outside("token-not-monotonic-after-a-restart"),
    outside("token-not-monotonic-after-failover-to-a-stale-replica"),
    within("check-then-act-release", 50),
];

/// Mutants that conformance cases or directed scenarios find. They need several keys held together, a count of subscriptions,
/// which stress runs don't have, or a task that stops at one place. Those of jobs and those that need threads are not listed here.
const ELSEWHERE: &[&str] = &[
    "hold-that-is-made-meanwhile-is-not-renewed",
    "keys-as-named",
    "loss-while-gathering",
    "repeated-key-is-taken-twice",
    "subscribes-for-each-waiter",
];

impl MutantInfo {
    /// Returns how stress runs find the mutant with this name, which isn't one of jobs and needs no threads; `None` if
    /// other tests find it.
    pub fn of(name: &'static str) -> Option<Self> {
        let unusual = UNUSUAL.iter().find(|mutant| mutant.name == name).copied();
        let elsewhere = ELSEWHERE.contains(&name);
        unusual.or_else(|| (!elsewhere).then_some(within(name, BUDGET)))
    }

    /// Whether the mutants that break this rule are those of jobs and elections. `tests/jobs` must find each of them.
    pub fn is_of_jobs(rule: &str) -> bool {
        ["once", "election"].contains(&rule)
    }

    /// Whether tests of their own explore the mutants that break this rule: those of jobs and elections, and those of stores
    /// without a clock (`tests/observed` of `backend-store`).
    pub fn has_own_exploration(rule: &str) -> bool {
        Self::is_of_jobs(rule) || rule == "observed"
    }

    /// The names that this file lists. Each must be the name of a mutant.
    pub fn listed() -> impl Iterator<Item = &'static str> {
        let unusual = UNUSUAL.iter().map(|mutant| mutant.name);
        unusual.chain(ELSEWHERE.iter().copied())
    }
}
