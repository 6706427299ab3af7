//! Counts every pair of command and outcome.

use std::fmt;

use leasehold_api::machine::{Command, Reply};
use leasehold_api::{
    AcquireReply, ConvertReply, EndReason, ForceMode, ForceReply, NoteReply, PollReply, Refused,
    ReleaseReply, RenewReply,
};

/// The quota of each pair: the number of times that it must occur.
pub(super) const QUOTA: u64 = 20;

macro_rules! outcomes {
    ($($name:ident: $once:ident $again:ident;)+) => {
        /// A command and its outcome.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) enum Outcome { $($name),+ }

        /// Each outcome with the expected count for first and for repeated commands.
        const ALL: &[(Outcome, Expected, Expected)] =
            &[$((Outcome::$name, Expected::$once, Expected::$again)),+];
    };
}

/// The required count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// At least the quota.
    Seen,
    /// Exactly 0: impossible as long as the key keeps the session's watermark, its highest sequence.
    Never,
}

// Some outcomes are impossible for a repeated command. The first `Release` removes the attempt and
// sets the watermark, so the attempt can neither hold nor wait again. The repeated one answers
// `NotHeld(Released)`, or `NotHeld(Unknown)` once the watermark is higher. A first `Release` never
// answers `NotHeld(Released)`. The first forced release with `Now` removes the holders of its tokens,
// and no later holder gets an old token.
outcomes! {
    AcquireAcquired: Seen Seen;
    AcquireAcquiredAgain: Seen Seen;
    AcquireQueued: Seen Seen;
    AcquireContended: Seen Seen;
    AcquireStale: Seen Seen;
    AcquireTooLate: Seen Seen;
    AcquireMismatch: Seen Seen;
    AcquireQueueFull: Seen Seen;
    AcquireHoldersFull: Seen Seen;
    AcquireHoldLimit: Seen Seen;
    AcquireWouldDeadlock: Seen Seen;
    AcquireFloorTooHigh: Seen Seen;
    PollAcquired: Seen Seen;
    PollQueued: Seen Seen;
    PollGoneExpired: Seen Seen;
    PollGoneForced: Seen Seen;
    PollGoneReleased: Seen Seen;
    PollGoneUnknown: Seen Seen;
    RenewRenewed: Seen Seen;
    RenewLostExpired: Seen Seen;
    RenewLostForced: Seen Seen;
    RenewLostReleased: Seen Seen;
    RenewLostUnknown: Seen Seen;
    ReleaseReleased: Seen Never;
    ReleaseReleasedOneOfMore: Seen Never;
    ReleaseLeft: Seen Never;
    ReleaseNotHeldExpired: Seen Never;
    ReleaseNotHeldForced: Seen Never;
    ReleaseNotHeldReleased: Never Seen;
    ReleaseNotHeldUnknown: Seen Seen;
    ConvertToShared: Seen Seen;
    ConvertToExclusive: Seen Seen;
    ConvertNotSole: Seen Seen;
    ConvertWrongEpoch: Seen Seen;
    ConvertLostExpired: Seen Seen;
    ConvertLostForced: Seen Seen;
    ConvertLostReleased: Seen Seen;
    ConvertLostUnknown: Seen Seen;
    InspectIdle: Seen Seen;
    InspectHeld: Seen Seen;
    InspectWaiters: Seen Seen;
    InspectHeldWithWaiters: Seen Seen;
    RevokeForced: Seen Seen;
    RevokeWrongEpoch: Seen Seen;
    NowForced: Seen Never;
    NowWrongEpoch: Seen Seen;
    NoteWritten: Seen Seen;
    NoteStands: Seen Seen;
    NoteLost: Seen Seen;
    NoteLostStands: Seen Seen;
    InspectNote: Seen Seen;
}

impl Outcome {
    /// The outcome of a command; `None` if the reply belongs to another kind of command, or has a new `Refused`.
    pub(super) fn of(command: &Command, reply: &Reply) -> Option<Self> {
        Some(match (command, reply) {
            (Command::Acquire(_), Reply::Acquire(reply)) => Self::of_acquire(reply)?,
            (Command::Poll(_), Reply::Poll(reply)) => Self::of_poll(reply),
            (Command::Renew(_), Reply::Renew(reply)) => Self::of_renew(*reply),
            (Command::Release(_), Reply::Release(reply)) => Self::of_release(*reply),
            (Command::Convert(request), Reply::Convert(reply)) => match reply {
                ConvertReply::Converted { .. } if request.to == leasehold_api::Mode::Shared => {
                    Self::ConvertToShared
                }
                ConvertReply::Converted { .. } => Self::ConvertToExclusive,
                ConvertReply::NotSoleHolder => Self::ConvertNotSole,
                ConvertReply::WrongEpoch(_) => Self::ConvertWrongEpoch,
                ConvertReply::Lost(EndReason::Expired) => Self::ConvertLostExpired,
                ConvertReply::Lost(EndReason::Forced) => Self::ConvertLostForced,
                ConvertReply::Lost(EndReason::Released) => Self::ConvertLostReleased,
                ConvertReply::Lost(EndReason::Unknown) => Self::ConvertLostUnknown,
            },
            (Command::Inspect, Reply::Inspect(reply)) if reply.note.is_some() => Self::InspectNote,
            (Command::Inspect, Reply::Inspect(reply)) => {
                match (reply.holder_count > 0, reply.waiter_count > 0) {
                    (false, false) => Self::InspectIdle,
                    (true, false) => Self::InspectHeld,
                    (false, true) => Self::InspectWaiters,
                    (true, true) => Self::InspectHeldWithWaiters,
                }
            }
            (Command::ForceRelease(request), Reply::ForceRelease(reply)) => {
                match (request.how, reply) {
                    (ForceMode::Revoke, ForceReply::Forced { .. }) => Self::RevokeForced,
                    (ForceMode::Revoke, ForceReply::WrongEpoch) => Self::RevokeWrongEpoch,
                    (ForceMode::Now, ForceReply::Forced { .. }) => Self::NowForced,
                    (ForceMode::Now, ForceReply::WrongEpoch) => Self::NowWrongEpoch,
                }
            }
            (Command::Note(request), Reply::Note(reply)) => match reply {
                NoteReply::Noted(note) if note.bytes == request.bytes => Self::NoteWritten,
                NoteReply::Noted(_) => Self::NoteStands,
                NoteReply::Lost { note: None, .. } => Self::NoteLost,
                NoteReply::Lost { note: Some(_), .. } => Self::NoteLostStands,
            },
            _ => return None,
        })
    }

    const fn of_acquire(reply: &AcquireReply) -> Option<Self> {
        Some(match reply {
            AcquireReply::Acquired(acquired) if acquired.holds > 1 => Self::AcquireAcquiredAgain,
            AcquireReply::Acquired(_) => Self::AcquireAcquired,
            AcquireReply::Queued(_) => Self::AcquireQueued,
            AcquireReply::Contended(_) => Self::AcquireContended,
            AcquireReply::Stale => Self::AcquireStale,
            AcquireReply::TooLate => Self::AcquireTooLate,
            AcquireReply::Refused(Refused::Mismatch { .. }) => Self::AcquireMismatch,
            AcquireReply::Refused(Refused::QueueFull) => Self::AcquireQueueFull,
            AcquireReply::Refused(Refused::HoldersFull) => Self::AcquireHoldersFull,
            AcquireReply::Refused(Refused::HoldLimit) => Self::AcquireHoldLimit,
            AcquireReply::Refused(Refused::WouldDeadlock) => Self::AcquireWouldDeadlock,
            AcquireReply::Refused(Refused::FloorTooHigh) => Self::AcquireFloorTooHigh,
            AcquireReply::Refused(_) => return None,
        })
    }

    const fn of_poll(reply: &PollReply) -> Self {
        match reply {
            PollReply::Acquired(_) => Self::PollAcquired,
            PollReply::Queued(_) => Self::PollQueued,
            PollReply::Gone(EndReason::Expired) => Self::PollGoneExpired,
            PollReply::Gone(EndReason::Forced) => Self::PollGoneForced,
            PollReply::Gone(EndReason::Released) => Self::PollGoneReleased,
            PollReply::Gone(EndReason::Unknown) => Self::PollGoneUnknown,
        }
    }

    const fn of_renew(reply: RenewReply) -> Self {
        match reply {
            RenewReply::Renewed { .. } => Self::RenewRenewed,
            RenewReply::Lost(EndReason::Expired) => Self::RenewLostExpired,
            RenewReply::Lost(EndReason::Forced) => Self::RenewLostForced,
            RenewReply::Lost(EndReason::Released) => Self::RenewLostReleased,
            RenewReply::Lost(EndReason::Unknown) => Self::RenewLostUnknown,
        }
    }

    const fn of_release(reply: ReleaseReply) -> Self {
        match reply {
            ReleaseReply::Released { holds_left: 0, .. } => Self::ReleaseReleased,
            ReleaseReply::Released { .. } => Self::ReleaseReleasedOneOfMore,
            ReleaseReply::Left => Self::ReleaseLeft,
            ReleaseReply::NotHeld(EndReason::Expired) => Self::ReleaseNotHeldExpired,
            ReleaseReply::NotHeld(EndReason::Forced) => Self::ReleaseNotHeldForced,
            ReleaseReply::NotHeld(EndReason::Released) => Self::ReleaseNotHeldReleased,
            ReleaseReply::NotHeld(EndReason::Unknown) => Self::ReleaseNotHeldUnknown,
        }
    }
}

/// The count of each outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// The counts of each outcome for first and repeated commands, in the order of [`ALL`].
    seen: Vec<[u64; 2]>,
    notifications: u64,
}

impl Counts {
    pub(super) fn new() -> Self {
        Self {
            seen: vec![[0; 2]; ALL.len()],
            notifications: 0,
        }
    }

    pub(super) fn count(&mut self, outcome: Outcome, repeated: bool) {
        self.seen[outcome as usize][usize::from(repeated)] += 1;
    }

    pub(super) fn count_notifications(&mut self, more: usize) {
        self.notifications += u64::try_from(more).unwrap_or(u64::MAX);
    }

    /// The number of compared commands.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.seen.iter().flatten().sum()
    }

    /// The number of compared notifications.
    #[must_use]
    pub const fn notifications(&self) -> u64 {
        self.notifications
    }

    /// One line for each outcome that missed the quota or that should be impossible.
    pub(super) fn missed(&self, quota: u64, tells_reach: bool) -> Vec<String> {
        let mut missed = Vec::new();
        for ((outcome, once, again), seen) in ALL.iter().zip(&self.seen) {
            // Only a key whose waiters are all unreachable is free while somebody waits.
            if *outcome == Outcome::InspectWaiters && !tells_reach {
                continue;
            }
            for (sent, expected, seen) in [("first", once, seen[0]), ("repeated", again, seen[1])] {
                let why = match expected {
                    Expected::Seen if seen < quota => format!("its quota is {quota}"),
                    Expected::Never if seen > 0 => "it should be impossible".to_owned(),
                    _ => continue,
                };
                missed.push(format!(
                    "{outcome:?}, as the reply to a {sent} command, occurred {seen} times; {why}"
                ));
            }
        }
        missed
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<26}{:>9}{:>9}", "outcome", "first", "repeated")?;
        for ((outcome, ..), [once, again]) in ALL.iter().zip(&self.seen) {
            writeln!(f, "{:<26}{once:>9}{again:>9}", format!("{outcome:?}"))?;
        }
        write!(
            f,
            "{} commands, {} notifications",
            self.commands(),
            self.notifications
        )
    }
}

/// Takes over the time of the next poll, if it is sooner than the machine's. A backend without push may ask for
/// polls sooner (rule 3).
pub(super) fn allow_sooner_polls(expected: &mut Reply, reply: &Reply, pushes: bool) {
    let (
        Reply::Acquire(AcquireReply::Queued(latest)) | Reply::Poll(PollReply::Queued(latest)),
        Reply::Acquire(AcquireReply::Queued(queued)) | Reply::Poll(PollReply::Queued(queued)),
    ) = (expected, reply)
    else {
        return;
    };
    if !pushes && !queued.poll_after.is_zero() {
        latest.poll_after = latest.poll_after.min(queued.poll_after);
    }
}
