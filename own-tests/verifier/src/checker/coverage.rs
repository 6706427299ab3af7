//! Rare situations, and how often the runs reach them: a promise that was never in danger was not
//! tested.

macro_rules! situations {
    ($($name:ident = $text:literal;)+) => {
        /// A rare situation that the checker counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "each is described by its own text")]
        #[non_exhaustive]
        pub enum Situation { $($name),+ }

        impl Situation {
            /// All situations.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// A description in plain words.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }
        }
    };
}

situations! {
    GrantedAtOnce = "granted at once";
    GrantedByAnother = "a waiter was granted by another client's command";
    GrantedByOwnPoll = "a waiter was granted by its own poll";
    GroupGranted = "several waiters were granted in one step";
    UnreachablePassedOver = "a waiter without a listener was marked unreachable";
    NewcomerPastTheUnreachable = "a newcomer overtook waiters that were all unreachable";
    OfferExpired = "an unconfirmed offer expired";
    WaiterExpired = "a waiter expired";
    LeaseExpired = "a lease expired";
    AtExpiry = "a command arrived at the instant of an expiry";
    RenewedLate = "a renewal arrived after its holder was gone";
    Batched = "an acquire was batched with others";
    StaleAcquire = "an acquire arrived after its own release, or out of order";
    LateAcquire = "an acquire arrived outside of its delivery window";
    AcquireTwice = "an acquire of a live operation arrived again";
    ReleasedTwice = "a release arrived again";
    OfferReleased = "a waiter that had given up released its offer";
    Nested = "an owner re-entered";
    NestedPastWaiter = "an owner re-entered past a waiter";
    NestedShorter = "a nested hold had a shorter lease";
    WouldDeadlock = "a reader was refused to write, because it would deadlock";
    Upgraded = "a reader upgraded";
    UpgradedPastWaiter = "a reader upgraded past a waiter";
    UpgradeRefused = "an upgrade was refused";
    Downgraded = "a writer downgraded";
    DowngradeLetsIn = "a downgrade granted to waiting readers";
    ConversionTwice = "a conversion named an earlier epoch";
    WriterWaits = "a writer waited for several readers";
    ReaderBehindWriter = "a reader waited behind a writer while others read";
    BigHeadBlocks = "a large weight at the head of the queue blocked smaller ones";
    Revoked = "a holder was revoked";
    RevokedRenewal = "a revoked holder tried to renew";
    LostByDeadline = "a guard passed its deadline";
    LostByReply = "a reply told a guard that it was lost";
    NoteWritten = "a holder left a note";
    NoteStands = "a note was not newer than the one that stands";
    NoteLate = "a note arrived after its holder was gone";
    NoteOutlivesItsEpoch = "a note outlived its epoch";
    NoteEnds = "a note ended with its epoch";
    StaleWrite = "the resource refused a late write";
    StaleAddition = "an addition was refused, because a later holder had claimed the resource";
    UsedAfterPause = "a paused holder resumed after its lease";
    Cancelled = "a future was dropped while it waited";
    TimedOut = "a wait timed out";
    ReplyLost = "the reply to an executed command was lost";
    GrantReplyLost = "the reply to a grant was lost";
    RequestLost = "a request was lost";
    RequestDoubled = "a request arrived twice";
    MessageLate = "a message was late";
    PushLost = "a push was lost";
    PushDoubled = "a push arrived twice";
    Resubscribed = "a subscription was lost and renewed";
    Paused = "a client was paused";
    Denied = "the server refused every call of a client";
    DeniedHolder = "the server refused every call of a holder";
    KilledHolder = "a holder was killed";
    KilledWaiter = "a waiter was killed";
    PublishRefused = "the server published nothing";
    CountRefused = "the server could not tell who listens";
    Restarted = "the server restarted with its data";
    Outage = "the server was down for some time";
    Loading = "the server loaded its data, and refused every call";
    ShutDown = "a client was shut down while it was used";
    ShutDownHolder = "a client was shut down while it held a lock";
    ClockRates = "a client's clock ran at another rate";
    ClockJumped = "a client's clock jumped forward";
    SwitchedOver = "a replica with all data took over";
    VisitedReplica = "a client's requests went to a replica that lags";
    OtherNodesClock = "the lock moved to a server whose clock was ahead or behind";
    RelayedGrant = "a grant reached a client whose subscription was at a replica";
    DataLost = "the server restarted without all its data";
    Evicted = "a key was removed";
    FailedOver = "a lagging replica took over";
    Split = "there were two primaries";
    OlderToken = "an epoch began on a server that had lost the highest token";
    FloorRaised = "a client's floor raised a token";
    ClockStepped = "the server's clock was stepped";
    Overlap = "two conflicting guards were valid at once, out of the model";
}

impl Situation {
    /// Whether runs can reach it, if they may break the assumptions (`out_of_model`).
    pub const fn is_reachable(self, out_of_model: bool) -> bool {
        match self {
            Self::DataLost
            | Self::Evicted
            | Self::FailedOver
            | Self::Split
            | Self::OlderToken
            | Self::FloorRaised
            | Self::ClockStepped
            | Self::Overlap => out_of_model,
            _ => true,
        }
    }
}

/// How often each situation was reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage([u64; Situation::ALL.len()]);

impl Default for Coverage {
    fn default() -> Self {
        Self([0; Situation::ALL.len()])
    }
}

impl Coverage {
    /// Returns how often a situation was reached.
    pub const fn of(&self, situation: Situation) -> u64 {
        self.0[situation as usize]
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum += more;
        }
    }

    /// Returns the situations that were never reached, of those that runs of this mode can reach.
    pub fn missing(&self, out_of_model: bool) -> impl Iterator<Item = Situation> {
        Situation::ALL
            .iter()
            .copied()
            .filter(move |situation| situation.is_reachable(out_of_model))
            .filter(|situation| self.of(*situation) == 0)
    }

    pub(crate) fn reached(&mut self, situation: Situation) {
        self.0[situation as usize] += 1;
    }
}
