//! One step of a server, as the checker sees it: what was asked, what was answered, and the state
//! before and after.

use std::time::Duration;

use leasehold_api::machine::{Command, StateParts, HolderParts, Message, Reply, WaiterParts};
use leasehold_api::{ConvertReply, Key, LockSpec, Mode, Operation, Policy, ServerTime, SessionId};

/// A step that a server executed.
pub(crate) struct Step<'a> {
    /// When it was sent and when it was executed, on the true timeline.
    pub(crate) sent: Duration,
    pub(crate) at: Duration,
    /// Index of the client that sent it.
    pub(crate) client: usize,
    pub(crate) key: &'a Key,
    pub(crate) command: &'a Command,
    /// The [operation] that it names.
    pub(crate) own: Option<Operation>,
    pub(crate) reply: &'a Reply,
    /// Who was told what.
    pub(crate) messages: &'a [Message],
    /// The server's clock.
    pub(crate) now: ServerTime,
    /// How many commands its call carried.
    pub(crate) together: usize,
    /// Whether it was a second delivery.
    pub(crate) again: bool,
    pub(crate) before: &'a StateParts,
    pub(crate) after: &'a StateParts,
    /// How long a token is remembered.
    pub(crate) retention: Duration,
}

/// The operation that a command names.
pub(crate) const fn operation(command: &Command) -> Option<Operation> {
    match command {
        Command::Acquire(request) => Some(request.operation),
        Command::Poll(request) => Some(request.operation),
        Command::Renew(request) => Some(request.operation),
        Command::Release(request) => Some(request.operation),
        Command::Convert(request) => Some(request.operation),
        Command::Inspect | Command::ForceRelease(_) => None,
    }
}

/// What a command is called in a finding.
pub(crate) fn name(command: &Command) -> &'static str {
    match command {
        Command::Acquire(_) => "acquire",
        Command::Poll(_) => "poll",
        Command::Renew(_) => "renew",
        Command::Release(_) => "end",
        Command::Convert(_) => "convert",
        Command::Inspect => "inspect",
        Command::ForceRelease(_) => "force_release",
    }
}

impl Step<'_> {
    pub(crate) const fn operation(&self) -> Option<Operation> {
        self.own
    }

    /// Whether the session sent it for an operation of its own.
    pub(crate) fn is_by(&self, session: SessionId) -> bool {
        self.own.is_some_and(|own| own.session == session)
    }

    /// Whether it is this hold's own command.
    pub(crate) fn is_of(&self, session: SessionId, sequence: u64) -> bool {
        self.own
            .is_some_and(|own| own.session == session && own.sequence == sequence)
    }

    /// Holders that had not expired when the step came.
    pub(crate) fn stood(&self) -> impl Iterator<Item = &HolderParts> {
        let now = self.now;
        self.before.holders.iter().filter(move |t| t.end > now)
    }

    /// Holders that stand after it.
    pub(crate) fn stands(&self) -> impl Iterator<Item = &HolderParts> {
        let now = self.now;
        self.after.holders.iter().filter(move |t| t.end > now)
    }

    /// Places that had not expired when the step came.
    pub(crate) fn waited(&self) -> impl Iterator<Item = &WaiterParts> {
        let now = self.now;
        self.before.waiters.iter().filter(move |p| p.end > now)
    }

    /// Places that stand after it.
    pub(crate) fn waits(&self) -> impl Iterator<Item = &WaiterParts> {
        let now = self.now;
        self.after.waiters.iter().filter(move |p| p.end > now)
    }

    /// Whether there was or is a place, expired or not: where nobody waits, no rule of the queue
    /// is broken.
    pub(crate) const fn has_queue(&self) -> bool {
        !self.before.waiters.is_empty() || !self.after.waiters.is_empty()
    }

    /// What the key is in use as.
    pub(crate) fn spec(&self) -> Option<LockSpec> {
        self.after.spec.or(self.before.spec)
    }

    pub(crate) fn policy(&self) -> Option<Policy> {
        self.spec().map(|spec| spec.policy())
    }

    /// What is free after the step, if the dead count for nothing.
    pub(crate) fn room(&self) -> u32 {
        let Some(spec) = self.spec() else { return 0 };
        let used = self.stands().map(|t| spec.weight(mode(t)));
        spec.capacity().saturating_sub(used.sum())
    }

    /// The floors that those brought who were granted, and for what.
    fn floors(&self) -> impl Iterator<Item = (Mode, u64)> {
        let granted = |session, sequence| {
            let holder = holder_of(self.after, session, sequence);
            // Another hold of a holder shares its epoch, whatever its owner has seen.
            holder.is_some_and(|it| {
                it.end > self.now && it.holds.first().map(|h| h.0) == Some(sequence)
            })
        };
        let own = match self.command {
            Command::Acquire(request) => {
                let own = request.operation;
                let floor = request.floor.filter(|_| granted(own.session, own.sequence));
                floor.map(|floor| (request.mode, floor.get()))
            }
            _ => None,
        };
        let waiters = self.before.waiters.iter();
        let brought = waiters
            .filter(move |waiter| granted(waiter.operation.session, waiter.operation.sequence))
            .filter_map(|waiter| Some((waiter.mode, waiter.floor?.get())));
        own.into_iter().chain(brought)
    }

    /// The highest floor that those brought who were granted; 0 if none did.
    pub(crate) fn floor(&self) -> u64 {
        self.floors().map(|(_, floor)| floor).max().unwrap_or(0)
    }

    /// The same, but for readers who came into an epoch that has just the token of their floor:
    /// they join it (docs/decisions/0009).
    pub(crate) fn floor_to_pass(&self) -> u64 {
        let group = self.stands().count() > 1;
        let joins = |(mode, floor): &(Mode, u64)| {
            group && *mode == Mode::Shared && *floor == self.after.token
        };
        let floors = self.floors().filter(|it| !joins(it));
        floors.map(|(_, floor)| floor).max().unwrap_or(0)
    }

    /// The token of an epoch that began and was over in this very step: that of a downgrade that
    /// let readers in, of whom one brought a floor above it.
    pub(crate) fn passing_epoch(&self) -> Option<u64> {
        let Reply::Convert(ConvertReply::Converted { token, .. }) = self.reply else {
            return None;
        };
        let token = token.get();
        (token != self.before.token && token != self.after.token).then_some(token)
    }

    /// Whether the command settles the key, as every mutating command does that is not turned
    /// down before it begins.
    pub(crate) fn settles(&self) -> bool {
        use leasehold_api::{AcquireReply, Refused};
        !matches!(
            (self.command, self.reply),
            (Command::Inspect, _)
                | (
                    _,
                    Reply::Acquire(AcquireReply::Refused(
                        Refused::TooLate | Refused::FloorTooHigh
                    ))
                )
        )
    }
}

/// The strongest of a holder's holds.
pub(crate) fn mode(holder: &HolderParts) -> Mode {
    let exclusive = holder.holds.iter().any(|(_, m)| *m == Mode::Exclusive);
    match holder.holds.first() {
        _ if exclusive => Mode::Exclusive,
        Some((_, mode)) => *mode,
        None => Mode::Shared,
    }
}

pub(crate) fn has(holder: &HolderParts, sequence: u64) -> bool {
    holder.holds.iter().any(|(s, _)| *s == sequence)
}

pub(crate) fn find<'a>(facts: &'a StateParts, like: &HolderParts) -> Option<&'a HolderParts> {
    facts
        .holders
        .iter()
        .find(|t| t.session == like.session && t.id == like.id)
}

/// The holder in which an operation holds, expired or not.
pub(crate) fn holder_of(facts: &StateParts, session: SessionId, sequence: u64) -> Option<&HolderParts> {
    facts
        .holders
        .iter()
        .find(|t| t.session == session && has(t, sequence))
}

pub(crate) fn waiter_of(facts: &StateParts, session: SessionId, sequence: u64) -> Option<&WaiterParts> {
    facts
        .waiters
        .iter()
        .find(|p| p.operation.session == session && p.operation.sequence == sequence)
}
