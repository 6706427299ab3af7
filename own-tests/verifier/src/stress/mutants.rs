//! The mutants that stress runs find, each with its budget of seeds.
//!
//! The mutants of the client and of the state machine are in `leasehold_api::mutants`, compiled only
//! under `--cfg leasehold_mutants`. The mutants of the protected resource are here.

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

/// The mutants that stress runs find, in the order of the rules that they break.
pub const MUTANTS: &[MutantInfo] = &[
    within("expiry-edge-off-by-one", BUDGET),
    within("lease-counted-from-the-reply", 300),
    within("drift-allowance-ignored", BUDGET),
    within("fixed-part-of-the-drift-allowance-ignored", BUDGET),
    within("valid-after-a-pause", BUDGET),
    outside("deadline-from-a-stepped-wall-clock"),
    within("cached-reply-to-a-redelivered-renew", BUDGET),
    within("remaining-too-long", BUDGET),
    within("redelivery-extends", BUDGET),
    within("release-counts-the-hold-that-it-released", BUDGET),
    within("waiter-is-turned-down", BUDGET),
    within("held-key-changes-with-its-last-holder", BUDGET),
    within("held-key-names-who-ends-last", BUDGET),
    within("first-in-line-comes-back-after-an-expiry", BUDGET),
    within("check-too-late", BUDGET),
    within("lost-wake-up-without-poll", 50),
    within("one-readers-expiry-drops-all", BUDGET),
    within("renewal-of-one-reader-extends-a-dead-one", BUDGET),
    within("release-at-count-2-frees", BUDGET),
    within("inner-lease-shortens", BUDGET),
    within("upgrade-self-deadlock", BUDGET),
    within("hold-limit-is-ignored", BUDGET),
    within("one-renewal-task-leaked-per-re-entry", BUDGET),
    within("duplicate-downgrade-undoes-an-upgrade", BUDGET),
    within(ANSWERING_REPLICA, BUDGET),
    breaking(OLDER_EPOCH, RARE, &["S1"]),
    within("upgrade-not-sole", BUDGET),
    within("upgrade-is-always-refused", BUDGET),
    within("upgrade-twice-while-others-wait", BUDGET),
    within("release-tells-the-previous-token", BUDGET),
    within("guard-keeps-the-token-of-its-grant", BUDGET),
    within("downgrade-overtakes-a-queued-writer", BUDGET),
    within("dead-waiter-blocks-the-queue", BUDGET),
    within("barging-past-the-bound", BUDGET),
    within("reader-preference-under-a-fair-policy", 20),
    within("no-wake-up-is-sent", BUDGET),
    within("grant-is-not-pushed", BUDGET),
    within("grant-is-pushed-to-the-next-in-line", BUDGET),
    within("grant-is-pushed-with-an-older-token", BUDGET),
    within("grant-is-pushed-with-a-full-lease", BUDGET),
    within("release-grants-nobody", BUDGET),
    within("unknown-reachability-counts-as-unreachable", BUDGET),
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
    within("unreachable-waiter-loses-its-ticket", BUDGET),
    within("full-lease-instead-of-an-offer-for-a-pushed-grant", BUDGET),
    within("offer-ignores-the-lease", BUDGET),
    within("poll-extends-offer", BUDGET),
    within("poll-keeps-the-waiters-of-dead-clients", BUDGET),
    within("poll-does-not-refresh-its-waiter", BUDGET),
    within("poll-revives-an-expired-waiter", BUDGET),
    within("polls-that-share-a-batch-are-left-out", BUDGET),
    within("answers-to-polls-go-to-other-waiters", BUDGET),
    within("release-that-misses-an-offer", BUDGET),
    within("wake-up-sent-to-a-cancelled-waiter-is-swallowed", BUDGET),
    within("re-subscribe-without-a-re-check", BUDGET),
    within("duplicate-push-ends-a-live-hold", BUDGET),
    within("lost-reply-reported-as-not-acquired", BUDGET),
    within("watchdog-renews-after-release", 200),
    within("watchdog-not-restarted-after-reconnect", BUDGET),
    within("cancelled-acquire-leaks", 50),
    within("no-watermark-kept-after-a-release", BUDGET),
    within("duplicated-release-frees-the-next-holder", BUDGET),
    within("acquire-that-skips-a-sequence-is-stale", BUDGET),
    within("expiry-is-told-as-unknown", BUDGET),
    within("release-is-told-as-expiry", BUDGET),
    within("revoked-holder-is-renewed", BUDGET),
    within("revocation-is-not-pushed", BUDGET),
    within("forced-release-counts-all-who-hold", BUDGET),
    within("inspection-shows-what-has-expired", BUDGET),
    within("retried-acquire-counts-twice", 200),
    within("deliver-before-ignored", BUDGET),
    within("write-before-refusal", BUDGET),
    within("stored-end-earlier-than-token-and-t", BUDGET),
    outside("token-not-monotonic-after-a-restart"),
    within("readers-with-distinct-tokens", BUDGET),
    outside("token-not-monotonic-after-failover-to-a-stale-replica"),
    within("note-of-a-hold-that-is-gone", BUDGET),
    within("older-note-reverts-a-newer-one", BUDGET),
    within("note-ends-with-its-epoch", BUDGET),
    within("check-then-act-release", 50),
    within("renew-arriving-after-release-revives", BUDGET),
    within("batch-mixes-answers", BUDGET),
    within("batch-shares-failure", BUDGET),
    within(CARELESS_RESOURCE, BUDGET),
    within(READ_WITHOUT_CLAIM, BUDGET),
];

impl MutantInfo {
    /// Returns the mutant with this name.
    pub fn named(name: &str) -> Option<Self> {
        MUTANTS.iter().copied().find(|mutant| mutant.name == name)
    }
}

#[cfg(all(test, leasehold_mutants))]
mod tests {
    use leasehold_api::mutants::Mutant;

    use super::*;

    /// The mutants that other tests find. They need threads (loom), several keys held together, a
    /// count of subscriptions, a hand-off, a job or an election, which stress runs don't have.
    /// `tests/jobs` explores the last two.
    const ELSEWHERE: &[&str] = &[
        "cancel-before-schedule-race-of-the-watchdog",
        "batch-that-nobody-sends",
        "release-acknowledged-before-the-renewal-is-stopped",
        "handoff-adopted-as-another-kind",
        "handoff-adopted-twice",
        "handoff-shows-its-secret",
        "router-entry-removed-before-its-release",
        "keys-as-named",
        "listener-that-checks-before-it-registers",
        "loss-while-gathering",
        "reentrant-guard-is-handed-off",
        "repeated-key-is-taken-twice",
        "sender-ends-handoff",
        "subscribes-for-each-waiter",
        "two-takers-of-one-pushed-grant",
        "job-is-decided-without-its-record",
        "attempt-of-a-job-is-not-noted",
        "failed-job-is-noted-as-done",
        "done-ahead-of-the-clock-silences",
        "leader-by-a-remembered-flag",
    ];

    #[test]
    fn every_mutant_is_found_here_or_elsewhere() {
        for mutant in Mutant::ALL {
            let (here, elsewhere) = (
                MutantInfo::named(mutant.name()).is_some(),
                ELSEWHERE.contains(&mutant.name()),
            );
            assert!(here != elsewhere, "{mutant:?}");
        }
        assert_eq!(
            MUTANTS.len() + ELSEWHERE.len(),
            Mutant::ALL.len() + IN_EVERY_BUILD.len()
        );
    }
}
