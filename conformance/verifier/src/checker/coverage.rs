//! Rare situations, and how often a run has reached them: a promise that was never in danger was
//! not tested.

macro_rules! situations {
    ($($name:ident = $text:literal;)+) => {
        /// A rare situation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "each is described by its own text")]
        #[non_exhaustive]
        pub enum Situation { $($name),+ }

        impl Situation {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// What it is.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }
        }
    };
}

situations! {
    GrantedAtOnce = "granted at once";
    GrantedByAnother = "granted out of the queue by another's command";
    GrantedByOwnPoll = "granted out of the queue by the waiter's own poll";
    GroupGranted = "several waiters granted in one step";
    UnreachablePassedOver = "a waiter on whose channel nobody listens was passed over";
    NewcomerPastTheUnreachable = "a newcomer took a key past waiters that were all unreachable";
    OfferExpired = "a offer that nobody confirmed expired";
    WaiterExpired = "a waiter expired";
    LeaseExpired = "a lease expired";
    AtTheVeryEnd = "a command came at the very instant of an end";
    RenewedLate = "a renewal came after the end of its holder";
    Together = "an acquire travelled with others in one call";
    StaleAcquire = "an acquire came after its own end, or out of order";
    LateAcquire = "an acquire came after its delivery window";
    AcquireTwice = "an acquire of a live operation came again";
    ReleasedTwice = "an end came again";
    OfferReleased = "a offer was ended by a waiter that had given up";
    Nested = "an owner held twice";
    NestedPastWaiter = "an owner took another hold past a waiter";
    NestedShorter = "a nested hold had a shorter lease";
    WouldDeadlock = "a reader asked to write and was told of the deadlock";
    Upgraded = "a reader upgraded";
    UpgradedPastWaiter = "a reader upgraded past a waiter";
    UpgradeRefused = "an upgrade was refused";
    Downgraded = "a writer downgraded";
    DowngradeLetsIn = "a downgrade let readers in";
    ConversionTwice = "a conversion named a epoch that was over";
    WriterWaits = "a writer waited for several readers";
    ReaderBehindWriter = "a reader waited behind a writer while others read";
    BigHeadBlocks = "a large weight at the head blocked smaller ones";
    Revoked = "a holder was revoked";
    RevokedRenewal = "a revoked holder asked to be renewed";
    LostByDeadline = "a guard passed its deadline";
    LostByWord = "the server told a guard that it was lost";
    StaleWrite = "a late write was refused by the resource";
    UsedAfterPause = "a paused holder came back after its lease";
    Cancelled = "a future was dropped while it waited";
    TimedOut = "a wait ended at its own deadline";
    ReplyLost = "a command was executed and its reply lost";
    GrantReplyLost = "a hold was granted and the reply lost";
    RequestLost = "a request was lost";
    RequestDoubled = "a request arrived twice";
    MessageLate = "a message was late";
    PushLost = "a push was lost";
    PushDoubled = "a push arrived twice";
    Gap = "a subscription was lost and stood again";
    Paused = "a client was paused";
    KilledHolder = "a holder was killed";
    KilledWaiter = "a waiter was killed";
    Mute = "the server could not tell who listens";
    Restarted = "the server restarted with its data";
    Outage = "the server was down for a while";
    ClockRates = "a client's clock ran at another rate";
    ClockJumped = "a client's clock jumped ahead";
    DataLost = "the server restarted without all its data";
    Evicted = "a key was removed";
    FailedOver = "a replica that lagged took over";
    Split = "there were two primaries";
    OlderToken = "a state with an older token than the highest granted a epoch";
    FloorRaised = "a client's floor raised a token";
    ClockStepped = "the server's clock was stepped";
    Overlap = "two holders were valid at once, out of model";
}

impl Situation {
    /// Whether it is reached only by runs outside of the model.
    pub const fn out_of_model(self) -> bool {
        matches!(
            self,
            Self::DataLost
                | Self::Evicted
                | Self::FailedOver
                | Self::Split
                | Self::OlderToken
                | Self::FloorRaised
                | Self::ClockStepped
                | Self::Overlap
        )
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
    /// How often a situation was reached.
    pub const fn of(&self, situation: Situation) -> u64 {
        self.0[situation as usize]
    }

    /// Adds what another run reached.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum += more;
        }
    }

    /// What was never reached of what runs of this mode can reach.
    pub fn missing(&self, out_of_model: bool) -> impl Iterator<Item = Situation> {
        let reachable = move |s: &Situation| out_of_model || !s.out_of_model();
        Situation::ALL
            .iter()
            .copied()
            .filter(reachable)
            .filter(|situation| self.of(*situation) == 0)
    }

    pub(crate) fn reached(&mut self, situation: Situation) {
        self.0[situation as usize] += 1;
    }
}
