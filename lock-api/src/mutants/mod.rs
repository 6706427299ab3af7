//! Mutants: each breaks one rule on purpose, to show that a test notices it.
//!
//! A mutant is a value of [`Mutant`]. Under `--cfg leasehold_mutants`, one build contains all of
//! them. Other builds contain none, and `mutant!` is the constant `false`.
//!
//! Client code asks for its mutants with `mutant!`. The mutants of the state machine are in [`step`],
//! which wraps [`machine::step`](crate::machine::step). The simulator calls it instead of the real
//! step.

#[cfg(leasehold_mutants)]
mod machine;

/// Whether the named mutant is active.
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

    /// 0, or the index in [`Mutant::ALL`] of the active mutant, plus 1.
    static PLANTED: AtomicUsize = AtomicUsize::new(0);

    macro_rules! mutants {
        ($($(#[$doc:meta])* $name:ident = $text:literal, $rule:literal;)+) => {
            /// A mutant. At most one is active in a process.
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum Mutant { $($(#[$doc])* $name),+ }

            impl Mutant {
                /// All mutants.
                pub const ALL: &[Self] = &[$(Self::$name),+];

                /// The name that tests and commands use.
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
        /// A holder or waiter is still live at the very instant of its end.
        ExpiryEdge = "expiry-edge-off-by-one", "rule 1";
        /// A deadline counts from the receipt of the reply, not from the sending of the request.
        LeaseFromTheReply = "lease-counted-from-the-reply", "rule 2";
        /// A deadline ignores the drift allowance.
        DriftAllowanceIgnored = "drift-allowance-ignored", "rule 2";
        /// A deadline leaves only the part of the drift allowance that grows with the duration.
        DriftFloorIgnored = "fixed-part-of-the-drift-allowance-ignored", "A3";
        /// A guard does not check the clock: it is valid until a task notices the deadline.
        ValidAfterAPause = "valid-after-a-pause", "rule 2";
        /// The client ignores a step of the server's clock, and deadlines move by it.
        SteppedWallClock = "deadline-from-a-stepped-wall-clock", "rule 2";
        /// A renewal soon after another gets the reply of that one and extends nothing.
        CachedRenewal = "cached-reply-to-a-redelivered-renew", "rule 2";
        /// The reply to a redelivered acquire reports twice the remaining time.
        RemainingTooLong = "remaining-too-long", "rule 2";
        /// A redelivered acquire extends the holder.
        RedeliveryExtends = "redelivery-extends", "rule 2";
        /// The reply to a release counts the released hold among the holds that are left.
        ReleaseCountsItself = "release-counts-the-hold-that-it-released", "rule 2";
        /// An acquire that asks to wait is answered `Contended`.
        WaiterTurnedDown = "waiter-is-turned-down", "rule 2";
        /// `Contended::retry_after` is the time to the last expiry of a holder, not the first.
        HeldForTheLongest = "held-key-changes-with-its-last-holder", "rule 3";
        /// `Contended::holder` is the holder that expires last, not first.
        HeldByTheLast = "held-key-names-who-ends-last", "rule 2";
        /// The first waiters poll after the poll interval, even if a holder expires sooner.
        HeadIgnoresExpiry = "first-in-line-comes-back-after-an-expiry", "rule 3";
        /// A waiter is told to poll only when its waiter lease ends.
        CheckTooLate = "check-too-late", "rule 3";
        /// A waiter relies on notifications and never polls.
        LostWakeUpWithoutPoll = "lost-wake-up-without-poll", "rule 3";
        /// When one holder expires, all holders are dropped.
        OneExpiryDropsAll = "one-readers-expiry-drops-all", "rule 4";
        /// A renewal of one holder extends all holders.
        RenewalExtendsAll = "renewal-of-one-reader-extends-a-dead-one", "rule 4";
        /// A release of one of several holds removes the holder.
        ReleaseAtTwoFrees = "release-at-count-2-frees", "rule 5";
        /// A nested hold with a shorter lease shortens the holder's lease.
        InnerLeaseShortens = "inner-lease-shortens", "rule 5";
        /// A reader that asks to write is queued behind itself.
        UpgradeSelfDeadlock = "upgrade-self-deadlock", "rule 5";
        /// The limit of the holds of one owner is ignored.
        HoldLimitIgnored = "hold-limit-is-ignored", "rule 5";
        /// Each nested hold schedules another renewal.
        RenewalLeakedPerReentry = "one-renewal-task-leaked-per-re-entry", "rule 5";
        /// A conversion acts whatever epoch it names.
        DuplicateConversionActs = "duplicate-downgrade-undoes-an-upgrade", "rule 6";
        /// A conversion goes on in an epoch that is older than the one that the client knows.
        OlderEpochGoesOn = "conversion-goes-on-in-an-older-epoch", "rule 6";
        /// An upgrade succeeds next to other holders.
        UpgradeNotSole = "upgrade-not-sole", "rule 6";
        /// An upgrade is refused even to the sole holder.
        UpgradeAlwaysRefused = "upgrade-is-always-refused", "rule 6";
        /// A holder upgrades more than once while others wait.
        UpgradesAgain = "upgrade-twice-while-others-wait", "rule 6";
        /// The reply to a release of a write hold has the token of the previous epoch.
        ReleaseTellsOldToken = "release-tells-the-previous-token", "rule 6";
        /// A guard keeps the token of its grant when a new epoch starts.
        GuardKeepsToken = "guard-keeps-the-token-of-its-grant", "rule 6";
        /// A downgrade grants to readers behind a writer at the head of the queue.
        DowngradeOvertakes = "downgrade-overtakes-a-queued-writer", "rule 6";
        /// An expired waiter blocks the waiters behind it.
        DeadWaiterBlocks = "dead-waiter-blocks-the-queue", "rule 7";
        /// Under the fair policy, a new acquire takes a free key past the queue.
        BargingUnderFair = "barging-past-the-bound", "rule 7";
        /// Under the fair policy, readers pass waiting writers.
        ReaderPreferenceUnderFair = "reader-preference-under-a-fair-policy", "rule 7";
        /// Under the barging policy, a release sends no wake-up.
        NoWakeUp = "no-wake-up-is-sent", "rule 7";
        /// No grant is notified.
        GrantUntold = "grant-is-not-pushed", "rule 8";
        /// A grant is notified to the next waiter in the queue.
        GrantToldToNext = "grant-is-pushed-to-the-next-in-line", "rule 8";
        /// The notification of a grant has the token before its own.
        GrantToldWithOldToken = "grant-is-pushed-with-an-older-token", "rule 8";
        /// The notification of a grant reports a full lease as remaining time.
        GrantToldWithFullLease = "grant-is-pushed-with-a-full-lease", "rule 8";
        /// A release does not grant to the queue.
        ReleaseGrantsNobody = "release-grants-nobody", "rule 8";
        /// A waiter counts as unreachable if the backend cannot tell who listens.
        UnknownIsUnreachable = "unknown-reachability-counts-as-unreachable", "rule 9";
        /// A grant is published before it is known whether somebody listens. If the primary counts
        /// nobody, the grant is taken back, and its token goes to the next waiter.
        GrantTakenBack = "grant-is-pushed-and-then-taken-back", "rule 9";
        /// The simulator reads a relayed grant with the clock of the replica that relays it, not with
        /// the clock that the grant names.
        RelayedWithOtherClock = "relayed-grant-is-read-with-the-replicas-clock", "S2";
        /// A waiter that is marked unreachable loses its ticket.
        UnreachableLosesTicket = "unreachable-waiter-loses-its-ticket", "rule 9";
        /// A grant to a waiter lasts a full lease without a confirmation.
        FullLeaseForOffer = "full-lease-instead-of-an-offer-for-a-pushed-grant", "rule 10";
        /// An offer lasts until its waiter would have expired, however short the lease is.
        OfferIgnoresLease = "offer-ignores-the-lease", "rule 10";
        /// A poll extends an offer.
        PollExtendsOffer = "poll-extends-offer", "rule 10";
        /// A poll refreshes all waiters of its key, also those of dead clients.
        PollKeepsAll = "poll-keeps-the-waiters-of-dead-clients", "rule 10";
        /// A poll does not refresh its waiter.
        PollKeepsNothing = "poll-does-not-refresh-its-waiter", "rule 10";
        /// A poll revives an expired waiter.
        PollRevives = "poll-revives-an-expired-waiter", "rule 10";
        /// Of the polls that share a batch, only the first is sent.
        PollsLeftOut = "polls-that-share-a-batch-are-left-out", "rule 3";
        /// The answers to polls go to the wrong waiters.
        PollsMixAnswers = "answers-to-polls-go-to-other-waiters", "rule 3";
        /// A release of an operation that has only an offer leaves the offer in place.
        ReleaseMissesOffer = "release-that-misses-an-offer", "rule 10";
        /// A dropped attempt is not released if a grant is in its inbox.
        CancelledWaiterKeepsGrant = "wake-up-sent-to-a-cancelled-waiter-is-swallowed", "rule 11";
        /// No waiter polls after the subscription was lost.
        ResubscribeWithoutRecheck = "re-subscribe-without-a-re-check", "rule 11";
        /// Each waiter opens another subscription.
        SubscribesForEachWaiter = "subscribes-for-each-waiter", "rule 8";
        /// A duplicate notification of a grant makes the hold count as lost.
        DuplicatePushEndsHold = "duplicate-push-ends-a-live-hold", "rule 11";
        /// An acquire whose reply was lost counts as not executed.
        LostReplyIsNotAcquired = "lost-reply-reported-as-not-acquired", "rule 11";
        /// A released hold is still renewed.
        RenewsAfterRelease = "watchdog-renews-after-release", "rule 11";
        /// A release is sent before the renewal is stopped.
        ReleaseBeforeRenewalStops = "release-acknowledged-before-the-renewal-is-stopped", "rule 11";
        /// A renewal in flight is scheduled again after its guard is gone.
        CancelBeforeSchedule = "cancel-before-schedule-race-of-the-watchdog", "rule 11";
        /// A waiter for a change misses a change that came just before it registered.
        ListenerChecksFirst = "listener-that-checks-before-it-registers", "rule 11";
        /// The router forgets a dropped attempt before its release is acknowledged.
        RouterForgetsTooSoon = "router-entry-removed-before-its-release", "rule 11";
        /// A grant stays in the inbox after it is taken.
        TwoTakersOfAGrant = "two-takers-of-one-pushed-grant", "rule 11";
        /// After one failed try, a lease is not renewed again.
        OneErrorEndsRenewal = "watchdog-not-restarted-after-reconnect", "rule 11";
        /// A dropped attempt is not released.
        DroppedAttemptLeaks = "cancelled-acquire-leaks", "rule 11";
        /// An acquire that skips a sequence is stale.
        StaleTooSoon = "acquire-that-skips-a-sequence-is-stale", "rule 12";
        /// The end reason of an expired operation is `Unknown`.
        ExpiryUntold = "expiry-is-told-as-unknown", "why";
        /// The end reason of a released operation is `Expired`.
        ReleaseToldAsExpiry = "release-is-told-as-expiry", "why";
        /// A revoked holder is renewed.
        RevokedIsRenewed = "revoked-holder-is-renewed", "forced release";
        /// No revocation is notified.
        RevocationUntold = "revocation-is-not-pushed", "forced release";
        /// The reply to a forced release counts all holders.
        ForceCountsAll = "forced-release-counts-all-who-hold", "forced release";
        /// An inspection shows expired holders.
        InspectionShowsExpired = "inspection-shows-what-has-expired", "inspection";
        /// A release leaves no watermark.
        NoWatermarkAfterRelease = "no-watermark-kept-after-a-release", "rule 12";
        /// A duplicate release removes the next holder.
        ReleaseAgainFreesNext = "duplicated-release-frees-the-next-holder", "rule 12";
        /// A redelivered acquire adds a second hold.
        RetryCountsTwice = "retried-acquire-counts-twice", "rule 12";
        /// An acquire outside its delivery window is executed.
        DeliverBeforeIgnored = "deliver-before-ignored", "rule 12";
        /// A nested hold that is refused extends the holder first.
        WriteBeforeRefusal = "write-before-refusal", "rule 13";
        /// The stored end does not cover the last token.
        StoredEndTooEarly = "stored-end-earlier-than-token-and-t", "rule 14";
        /// A new token is the previous token + 1, whatever the time.
        TokenCountsByOne = "token-not-monotonic-after-a-restart", "rule 15";
        /// A reader that joins other readers starts a new epoch.
        ReadersDistinctTokens = "readers-with-distinct-tokens", "rule 15";
        /// The floor of an acquire is ignored.
        FloorIgnored = "token-not-monotonic-after-failover-to-a-stale-replica", "rule 15";
        /// A note acts for a hold that is gone.
        NoteWithoutHold = "note-of-a-hold-that-is-gone", "rule 16";
        /// A note replaces a newer one.
        OldNoteReverts = "older-note-reverts-a-newer-one", "rule 16";
        /// A note ends with its epoch, however long it is to be kept.
        NoteEndsTooSoon = "note-ends-with-its-epoch", "rule 16";
        /// A job is decided without the record.
        DecidedBeforeTheLock = "job-is-decided-without-its-record", "once";
        /// The attempt of a job is not noted before the body runs.
        AttemptNotNoted = "attempt-of-a-job-is-not-noted", "once";
        /// A job whose body has failed is noted as done.
        FailureIsDone = "failed-job-is-noted-as-done", "once";
        /// A "done" far ahead of the server's clock silences the job until then.
        DoneAheadSilences = "done-ahead-of-the-clock-silences", "once";
        /// A leader trusts its memory, not the deadline.
        LeaderFromMemory = "leader-by-a-remembered-flag", "election";
        /// A release of an operation without a hold removes another holder.
        ReleaseIgnoresOwner = "check-then-act-release", "S3";
        /// Several keys are locked in the order in which they were named.
        KeysAsNamed = "keys-as-named", "L4";
        /// A key that is lost before the last one is locked goes unnoticed.
        LossWhileGathering = "loss-while-gathering", "S2";
        /// A hand-off can be adopted twice.
        HandoffAdoptedTwice = "handoff-adopted-twice", "S1";
        /// The client that hands off a hold releases it.
        SenderEndsHandoff = "sender-ends-handoff", "S3";
        /// A key may be named twice among the keys to lock at once.
        RepeatedKey = "repeated-key-is-taken-twice", "trait contract";
        /// A hand-off is adopted as any kind of guard that is asked for.
        HandoffOfAnyKind = "handoff-adopted-as-another-kind", "trait contract";
        /// The `Debug` output of a hand-off contains its text.
        HandoffShown = "handoff-shows-its-secret", "S3";
        /// A guard of a reentrant handle can be handed off.
        ReentrantHandoff = "reentrant-guard-is-handed-off", "trait contract";
        /// The answers to a batch go to the wrong callers.
        BatchMixesAnswers = "batch-mixes-answers", "S1";
        /// Two callers add to the batch at the same time, and neither spawns the flush task.
        BatchThatNobodySends = "batch-that-nobody-sends", "L4";
        /// If one element of a batch fails, all fail.
        BatchSharesFailure = "batch-shares-failure", "S3";
        /// A renewal revives a holder that is gone.
        RenewRevives = "renew-arriving-after-release-revives", "S3";
    }

    impl Mutant {
        /// The mutant with this name.
        pub fn from_name(name: &str) -> Option<Self> {
            Self::ALL
                .iter()
                .copied()
                .find(|mutant| mutant.name() == name)
        }

        /// Whether the mutant may show only with several threads. The loom models must find such a
        /// mutant; single-threaded runs need not.
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

        /// Activates this mutant and deactivates any other.
        pub fn plant(self) {
            PLANTED.store(self as usize + 1, Ordering::SeqCst);
        }

        /// The active mutant.
        pub fn planted() -> Option<Self> {
            let next = PLANTED.load(Ordering::Relaxed);
            next.checked_sub(1).map(|n| Self::ALL[n])
        }

        /// Deactivates the active mutant.
        pub fn clear() {
            PLANTED.store(0, Ordering::SeqCst);
        }

        /// Whether this mutant is active.
        pub fn is_planted(self) -> bool {
            PLANTED.load(Ordering::Relaxed) == self as usize + 1
        }
    }
}
