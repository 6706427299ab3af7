//! Planted faults: each breaks one rule on purpose, so that tests can show that they would
//! notification.
//!
//! A mutant is a value of [`Mutant`], compiled only under `--cfg leasehold_mutants`. Those of the
//! client are asked for in its code, by `mutant!`. Those of the state machine are wrapped around
//! [`machine::step`](crate::machine::step) by [`step`], which the simulator calls in its place.
//! One such build holds them all; a product build holds none, and `mutant!` is the constant
//! `false` there.

#[cfg(leasehold_mutants)]
mod machine;

/// Whether the named fault is planted.
macro_rules! mutant {
    ($name:ident) => {{
        #[cfg(leasehold_mutants)]
        {
            $crate::mutants::Mutant::$name.is_planted()
        }
        #[cfg(not(leasehold_mutants))]
        {
            false
        }
    }};
}
pub(crate) use mutant;

#[cfg(leasehold_mutants)]
pub use {machine::step, planted::Mutant};

#[cfg(leasehold_mutants)]
mod planted {
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// 0, or one more than the place in [`Mutant::ALL`] of the one that is planted.
    static PLANTED: AtomicUsize = AtomicUsize::new(0);

    macro_rules! mutants {
        ($($(#[$doc:meta])* $name:ident = $text:literal, $rule:literal;)+) => {
            /// A fault that can be planted, one at a time in a process.
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum Mutant { $($(#[$doc])* $name),+ }

            impl Mutant {
                /// All of them.
                pub const ALL: &[Self] = &[$(Self::$name),+];

                /// The name by which tests and commands call it.
                pub const fn name(self) -> &'static str {
                    match self { $(Self::$name => $text),+ }
                }

                /// The rule that it breaks.
                pub const fn rule(self) -> &'static str {
                    match self { $(Self::$name => $rule),+ }
                }
            }
        };
    }

    mutants! {
        /// A holder still counts at the very instant of its end.
        ExpiryEdge = "expiry-edge-off-by-one", "rule 1";
        /// A lease counts from the moment when its reply came.
        LeaseFromTheReply = "lease-counted-from-the-reply", "rule 2";
        /// A guard is thought valid for all of what the server says is left.
        DriftAllowanceIgnored = "drift-allowance-ignored", "rule 2";
        /// Only a task that runs notifications that a deadline has passed, nobody looks at the clock.
        ValidAfterAPause = "valid-after-a-pause", "rule 2";
        /// A step of the server's clock is not noticed, and deadlines move by it.
        SteppedWallClock = "deadline-from-a-stepped-wall-clock", "rule 2";
        /// A renewal that follows closely on another is answered as that one was.
        CachedRenewal = "cached-reply-to-a-redelivered-renew", "rule 2";
        /// A redelivered acquire is answered with more time than the holder has.
        RemainingTooLong = "remaining-too-long", "rule 2";
        /// A redelivered acquire extends the holder.
        RedeliveryExtends = "redelivery-extends", "rule 2";
        /// An end counts the hold that it ended among those that are left.
        ReleaseCountsItself = "release-counts-the-hold-that-it-released", "rule 2";
        /// Who would wait is told that somebody else has it.
        WaiterTurnedDown = "waiter-is-turned-down", "rule 2";
        /// A key that is held is said to change when its last holder ends, not its first.
        HeldForTheLongest = "held-key-changes-with-its-last-holder", "rule 3";
        /// A key that is held is said to be held by whose holder ends last.
        HeldByTheLast = "held-key-names-who-ends-last", "rule 2";
        /// The first in line is told to come back after the poll interval, whatever ends before.
        HeadIgnoresExpiry = "first-in-line-comes-back-after-an-expiry", "rule 3";
        /// A waiter is told to come back only when its place has ended.
        CheckTooLate = "check-too-late", "rule 3";
        /// A waiter relies on the push, and never polls.
        LostWakeUpWithoutPoll = "lost-wake-up-without-poll", "rule 3";
        /// When one holder expires, all are dropped.
        OneExpiryDropsAll = "one-readers-expiry-drops-all", "rule 4";
        /// A renewal of one reader extends them all.
        RenewalExtendsAll = "renewal-of-one-reader-extends-a-dead-one", "rule 4";
        /// Ending one of two holds frees the key.
        ReleaseAtTwoFrees = "release-at-count-2-frees", "rule 5";
        /// A nested hold with a shorter lease shortens the holder.
        InnerLeaseShortens = "inner-lease-shortens", "rule 5";
        /// A reader that asks to write waits for itself.
        UpgradeSelfDeadlock = "upgrade-self-deadlock", "rule 5";
        /// Nobody looks how often an owner may hold.
        HoldLimitIgnored = "hold-limit-is-ignored", "rule 5";
        /// Each nested hold adds a renewal of its own.
        RenewalLeakedPerReentry = "one-renewal-task-leaked-per-re-entry", "rule 5";
        /// A conversion acts whatever epoch it names.
        DuplicateConversionActs = "duplicate-downgrade-undoes-an-upgrade", "rule 6";
        /// An upgrade does not look for other holders.
        UpgradeNotSole = "upgrade-not-sole", "rule 6";
        /// An upgrade is refused to the only holder too.
        UpgradeAlwaysRefused = "upgrade-is-always-refused", "rule 6";
        /// A holder may upgrade again and again while others wait.
        UpgradesAgain = "upgrade-twice-while-others-wait", "rule 6";
        /// The end of a write hold tells those that are left the token of the epoch that is over.
        ReleaseTellsOldToken = "release-tells-the-previous-token", "rule 6";
        /// A guard goes on with the token of its grant.
        GuardKeepsToken = "guard-keeps-the-token-of-its-grant", "rule 6";
        /// A downgrade lets readers pass a writer at the head.
        DowngradeOvertakes = "downgrade-overtakes-a-queued-writer", "rule 6";
        /// A place whose waiter is dead blocks those behind it.
        DeadWaiterBlocks = "dead-waiter-blocks-the-queue", "rule 7";
        /// A newcomer takes a free key past the queue.
        BargingUnderFair = "barging-past-the-bound", "rule 7";
        /// Readers pass waiting writers though the policy is fair.
        ReaderPreferenceUnderFair = "reader-preference-under-a-fair-policy", "rule 7";
        /// A barging key that is released tells nobody.
        NoWakeUp = "no-wake-up-is-sent", "rule 7";
        /// A grant is told to nobody.
        GrantUntold = "grant-is-not-pushed", "rule 8";
        /// A grant is told to the next in line.
        GrantToldToNext = "grant-is-pushed-to-the-next-in-line", "rule 8";
        /// A grant is told with the token before its own.
        GrantToldWithOldToken = "grant-is-pushed-with-an-older-token", "rule 8";
        /// A grant is told with a full lease.
        GrantToldWithFullLease = "grant-is-pushed-with-a-full-lease", "rule 8";
        /// Ending a hold grants to nobody.
        ReleaseGrantsNobody = "release-grants-nobody", "rule 8";
        /// Who may or may not listen counts as away.
        UnknownIsUnreachable = "unknown-reachability-counts-as-unreachable", "rule 9";
        /// A waiter that nobody can reach loses its ticket.
        UnreachableLosesTicket = "unreachable-waiter-loses-its-ticket", "rule 9";
        /// A grant out of the queue gets a full lease at once.
        FullLeaseForOffer = "full-lease-instead-of-an-offer-for-a-pushed-grant", "rule 10";
        /// A poll extends an offer.
        PollExtendsOffer = "poll-extends-offer", "rule 10";
        /// An end finds a place or a confirmed hold, but not an offer.
        ReleaseMissesOffer = "release-that-misses-an-offer", "rule 10";
        /// A waiter that goes away with a grant in its mailbox is not ended.
        CancelledWaiterKeepsGrant = "wake-up-sent-to-a-cancelled-waiter-is-swallowed", "rule 11";
        /// A subscription that was lost makes nobody poll.
        ResubscribeWithoutRecheck = "re-subscribe-without-a-re-check", "rule 11";
        /// Each waiter has a subscription of its own.
        SubscribesForEachWaiter = "subscribes-for-each-waiter", "rule 8";
        /// A grant that is pushed to a holder takes its hold away.
        DuplicatePushEndsHold = "duplicate-push-ends-a-live-hold", "rule 11";
        /// An acquire whose reply was lost counts as not executed.
        LostReplyIsNotAcquired = "lost-reply-reported-as-not-acquired", "rule 11";
        /// A release leaves the renewal running.
        RenewsAfterRelease = "watchdog-renews-after-release", "rule 11";
        /// A release is acknowledged before the renewal is stopped.
        ReleaseBeforeRenewalStops = "release-acknowledged-before-the-renewal-is-stopped", "rule 11";
        /// A renewal under way is scheduled again after its guard has gone.
        CancelBeforeSchedule = "cancel-before-schedule-race-of-the-watchdog", "rule 11";
        /// Who waits for a change does not see one that came just before.
        ListenerChecksFirst = "listener-that-checks-before-it-registers", "rule 11";
        /// The hub forgets an attempt that was given up before its end is acknowledged.
        RouterForgetsTooSoon = "router-entry-removed-before-its-release", "rule 11";
        /// A pushed grant stays in the mailbox when it is taken.
        TwoTakersOfAGrant = "two-takers-of-one-pushed-grant", "rule 11";
        /// A renewal that fails once is not tried again.
        OneErrorEndsRenewal = "watchdog-not-restarted-after-reconnect", "rule 11";
        /// An attempt that is dropped is not ended.
        DroppedAttemptLeaks = "cancelled-acquire-leaks", "rule 11";
        /// An acquire is called stale that does not follow on the last one seen.
        StaleTooSoon = "acquire-that-skips-a-sequence-is-stale", "rule 12";
        /// What has expired is said to be gone for no reason.
        ExpiryUntold = "expiry-is-told-as-unknown", "why";
        /// What was ended is said to have expired.
        ReleaseToldAsExpiry = "release-is-told-as-expiry", "why";
        /// A holder that was revoked is renewed.
        RevokedIsRenewed = "revoked-holder-is-renewed", "forced release";
        /// A holder is not told that it was revoked.
        RevocationUntold = "revocation-is-not-pushed", "forced release";
        /// A forced release counts all who hold.
        ForceCountsAll = "forced-release-counts-all-who-hold", "forced release";
        /// An inspection shows what has expired too.
        InspectionShowsExpired = "inspection-shows-what-has-expired", "inspection";
        /// No watermark is kept after an end.
        NoWatermarkAfterRelease = "no-watermark-kept-after-a-release", "rule 12";
        /// An end that comes again ends whoever holds by then.
        ReleaseAgainFreesNext = "duplicated-release-frees-the-next-holder", "rule 12";
        /// A retried acquire counts twice.
        RetryCountsTwice = "retried-acquire-counts-twice", "rule 12";
        /// An acquire is executed however late it comes.
        DeliverBeforeIgnored = "deliver-before-ignored", "rule 12";
        /// A refused nested hold is written before it is refused.
        WriteBeforeRefusal = "write-before-refusal", "rule 13";
        /// The stored end does not cover the last token.
        StoredEndTooEarly = "stored-end-earlier-than-token-and-t", "rule 14";
        /// Tokens count by one from zero.
        TokenCountsByOne = "token-not-monotonic-after-a-restart", "rule 15";
        /// Each reader of an epoch gets a token of its own.
        ReadersDistinctTokens = "readers-with-distinct-tokens", "rule 15";
        /// The floor that a client brings is not looked at.
        FloorIgnored = "token-not-monotonic-after-failover-to-a-stale-replica", "rule 15";
        /// An end does not look at the owner.
        ReleaseIgnoresOwner = "check-then-act-release", "S3";
        /// Several keys are taken in the order in which they were named.
        KeysAsNamed = "keys-as-named", "L4";
        /// A key lost while another is waited for is not noticed.
        LossWhileGathering = "loss-while-gathering", "S2";
        /// Whoever adopts a hand-off gets it.
        HandoffAdoptedTwice = "handoff-adopted-twice", "S1";
        /// The client that hands a hold off ends it.
        SenderEndsHandoff = "sender-ends-handoff", "S3";
        /// A key may be named twice in a set of keys.
        RepeatedKey = "repeated-key-is-taken-twice", "trait contract";
        /// A hand-off is adopted as whatever is asked for.
        HandoffOfAnyKind = "handoff-adopted-as-another-kind", "trait contract";
        /// `Debug` of a hand-off shows its text.
        HandoffShown = "handoff-shows-its-secret", "S3";
        /// A guard of a reentrant handle is handed off.
        ReentrantHandoff = "reentrant-guard-is-handed-off", "trait contract";
        /// Of calls that travel together, one gets the answer to another.
        BatchMixesAnswers = "batch-mixes-answers", "S1";
        /// Of two that come together, each takes the other for the first, who has them sent.
        BatchThatNobodySends = "batch-that-nobody-sends", "L4";
        /// Of calls that travel together, all fail when one does.
        BatchSharesFailure = "batch-shares-failure", "S3";
        /// A renewal revives what has ended.
        RenewRevives = "renew-arriving-after-release-revives", "S3";
    }

    impl Mutant {
        /// The mutant of that name.
        pub fn from_name(name: &str) -> Option<Self> {
            Self::ALL
                .iter()
                .copied()
                .find(|mutant| mutant.name() == name)
        }

        /// Whether it shows only among threads: the models of what they share must find it, for
        /// a run of one thread need not.
        pub const fn needs_threads(self) -> bool {
            matches!(
                self,
                Self::ReleaseBeforeRenewalStops
                    | Self::CancelBeforeSchedule
                    | Self::ListenerChecksFirst
                    | Self::RouterForgetsTooSoon
                    | Self::BatchThatNobodySends
                    | Self::TwoTakersOfAGrant
            )
        }

        /// Plants this one, instead of any other.
        pub fn plant(self) {
            PLANTED.store(self as usize + 1, Ordering::SeqCst);
        }

        /// The one that is planted.
        pub fn planted() -> Option<Self> {
            let next = PLANTED.load(Ordering::Relaxed);
            next.checked_sub(1).map(|n| Self::ALL[n])
        }

        /// Takes out whichever is planted.
        pub fn clear() {
            PLANTED.store(0, Ordering::SeqCst);
        }

        /// Whether this is the one that is planted.
        pub fn is_planted(self) -> bool {
            PLANTED.load(Ordering::Relaxed) == self as usize + 1
        }
    }
}
