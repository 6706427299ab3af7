//! The faults of the store in memory.

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A write is not applied, although the version is right.
    Conflict,
    /// A write is applied and its reply is lost.
    LostReply,
    /// A write arrives up to 20 s later. Its caller gets no answer.
    Late,
    /// A write arrives twice. Its caller gets the second reply.
    Doubled,
    /// A write arrives twice, the second copy up to 20 s later.
    Copied,
    /// A call is not executed.
    Unavailable,
    /// A call takes longer than its caller waits. A write is applied.
    Hangs,
}

impl Fault {
    pub(super) const ALL: [Self; 7] = [
        Self::Conflict,
        Self::LostReply,
        Self::Late,
        Self::Doubled,
        Self::Copied,
        Self::Unavailable,
        Self::Hangs,
    ];
}

/// How many of 100 calls have each fault. A call has at most one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(super) shares: [u64; Fault::ALL.len()],
    pub(super) flaw: Option<Flaw>,
}

impl Faults {
    pub(crate) fn share(mut self, fault: Fault, of_100: u64) -> Self {
        self.shares[fault as usize] = of_100;
        self
    }

    /// Every call has the fault.
    pub(crate) fn always(fault: Fault) -> Self {
        Self::default().share(fault, 100)
    }

    /// Whether only a store with tags can have this flaw.
    pub(crate) const fn is_of_tags(self) -> bool {
        use Flaw::{AnyTagIsFine, RefusesWithoutTag, TellsAnotherTag, TellsNoTag};
        matches!(
            self.flaw,
            Some(TellsNoTag | TellsAnotherTag | AnyTagIsFine | RefusesWithoutTag)
        )
    }

    pub(crate) fn flawed(flaw: Flaw) -> Self {
        Self {
            flaw: Some(flaw),
            ..Self::default()
        }
    }
}

/// What a store may do wrong all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Every write is applied, even after its deadline.
    LateIsFine,
    /// A write that replaces a row is applied, even after its deadline.
    LateReplacementIsFine,
    /// A removal of expired rows removes all rows.
    Forgets,
    /// Every write is applied, even before the time of its step.
    FutureIsFine,
    /// A write that is applied is answered with the time of its step.
    Echoes,
    /// Every write with a message is applied to the right version.
    MessagesAreFine,
    /// Every write is applied, even if a session that must listen doesn't.
    SilenceIsFine,
    /// A write that creates a row is answered without a time.
    CreatedWithoutTime,
    /// The row that comes with a refusal has the clock of the step.
    OldClock,
    /// A write that is applied is answered without the tag of its row.
    TellsNoTag,
    /// A write that is applied is answered with another tag than that of its row.
    TellsAnotherTag,
    /// Every write to a row with a tag is applied, if it has one too.
    AnyTagIsFine,
    /// The row that comes with a refusal has no tag.
    RefusesWithoutTag,
}

impl Flaw {
    pub(crate) const ALL: [Self; 13] = [
        Self::LateIsFine,
        Self::LateReplacementIsFine,
        Self::Forgets,
        Self::FutureIsFine,
        Self::Echoes,
        Self::MessagesAreFine,
        Self::SilenceIsFine,
        Self::CreatedWithoutTime,
        Self::OldClock,
        Self::TellsNoTag,
        Self::TellsAnotherTag,
        Self::AnyTagIsFine,
        Self::RefusesWithoutTag,
    ];
}
