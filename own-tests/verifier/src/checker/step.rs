//! One step of a server: the command, the reply, and the state before and after.

use std::time::Duration;

use leasehold_api::machine::{Command, HolderParts, Reply, StateParts, WaiterParts};
use leasehold_api::{
    AcquireReply, ConvertReply, Key, LockSpec, Mode, Operation, Refused, ServerTime, SessionId,
};
use litemap::LiteMap;

/// A small set. The checker stores few elements per run, and there are many runs: sorted vectors
/// are built, searched and dropped faster than trees.
pub(crate) type Set<T> = LiteMap<T, ()>;

/// A step that a server executed. Times are on the true timeline unless they are a [`ServerTime`].
pub(crate) struct Step<'a> {
    /// When the command was sent.
    pub(crate) sent: Duration,
    /// When it was executed.
    pub(crate) at: Duration,
    /// The index of the client that sent it.
    pub(crate) client: usize,
    pub(crate) key: &'a Key,
    pub(crate) command: &'a Command,
    /// The [operation] that the command names.
    pub(crate) own: Option<Operation>,
    pub(crate) reply: &'a Reply,
    /// The server's clock.
    pub(crate) now: ServerTime,
    /// The number of commands in the call.
    pub(crate) batch_size: usize,
    /// Whether this was a second delivery of the call.
    pub(crate) redelivered: bool,
    pub(crate) before: &'a StateParts,
    pub(crate) after: &'a StateParts,
}

/// What tells an operation from others: its session and its sequence.
pub(crate) type Name = (SessionId, u64);

pub(crate) const fn name_of(operation: Operation) -> Name {
    (operation.session, operation.sequence)
}

/// The operations that share a holder.
pub(crate) fn names(holder: &HolderParts) -> impl Iterator<Item = Name> {
    let session = holder.session;
    holder.holds.iter().map(move |hold| (session, hold.0))
}

/// The operation that a command names.
pub(crate) const fn operation(command: &Command) -> Option<Operation> {
    match command {
        Command::Acquire(request) => Some(request.operation),
        Command::Poll(request) => Some(request.operation),
        Command::Renew(request) => Some(request.operation),
        Command::Release(request) => Some(request.operation),
        Command::Convert(request) => Some(request.operation),
        Command::Note(request) => Some(request.operation),
        Command::Inspect | Command::ForceRelease(_) => None,
    }
}

impl Step<'_> {
    /// The name of the command in findings.
    pub(crate) const fn by(&self) -> &'static str {
        match self.command {
            Command::Acquire(_) => "acquire",
            Command::Poll(_) => "poll",
            Command::Renew(_) => "renew",
            Command::Release(_) => "release",
            Command::Convert(_) => "convert",
            Command::Inspect => "inspect",
            Command::ForceRelease(_) => "force_release",
            Command::Note(_) => "note",
        }
    }

    /// Whether the command names an operation of this session.
    pub(crate) fn is_by(&self, session: SessionId) -> bool {
        self.own.is_some_and(|own| own.session == session)
    }

    /// Whether the command names this operation.
    pub(crate) fn is_of(&self, name: Name) -> bool {
        self.own.map(name_of) == Some(name)
    }

    /// Returns the waiter that an operation had before the step, if it had not expired.
    pub(crate) fn waiting(&self, name: Name) -> Option<&WaiterParts> {
        self.waiters_before()
            .find(|waiter| name_of(waiter.operation) == name)
    }

    /// Returns the holder that an operation has after the step, if it has not expired.
    pub(crate) fn holding(&self, name: Name) -> Option<&HolderParts> {
        self.holders_after()
            .find(|holder| names(holder).any(|own| own == name))
    }

    /// Returns the holders of the state before the step that had not expired.
    pub(crate) fn holders_before(&self) -> impl Iterator<Item = &HolderParts> {
        let now = self.now;
        self.before.holders.iter().filter(move |t| t.end > now)
    }

    /// Returns the holders of the state after the step that have not expired.
    pub(crate) fn holders_after(&self) -> impl Iterator<Item = &HolderParts> {
        let now = self.now;
        self.after.holders.iter().filter(move |t| t.end > now)
    }

    /// Returns the waiters of the state before the step that had not expired.
    pub(crate) fn waiters_before(&self) -> impl Iterator<Item = &WaiterParts> {
        let now = self.now;
        self.before.waiters.iter().filter(move |p| p.end > now)
    }

    /// Returns the waiters of the state after the step that have not expired.
    pub(crate) fn waiters_after(&self) -> impl Iterator<Item = &WaiterParts> {
        let now = self.now;
        self.after.waiters.iter().filter(move |p| p.end > now)
    }

    /// Whether there is a waiter before or after the step, expired or not. Without one, no rule of
    /// the queue can be broken.
    pub(crate) const fn has_queue(&self) -> bool {
        !self.before.waiters.is_empty() || !self.after.waiters.is_empty()
    }

    /// The spec of the key.
    pub(crate) fn spec(&self) -> Option<LockSpec> {
        self.after.spec.or(self.before.spec)
    }

    /// The end of an offer that the step makes to a waiter that would have expired at `waiter_end`
    /// (rule 10).
    pub(crate) fn offer_end(&self, waiter: &WaiterParts, waiter_end: ServerTime) -> ServerTime {
        let waiter_lease = self.spec().map(|spec| spec.waiter_lease());
        // Rule 3, in whole microseconds. `LockSpec::poll_interval` is a part of what is checked.
        let third = waiter_lease.unwrap_or_default().as_micros() / 3;
        let poll = Duration::from_micros(u64::try_from(third).unwrap_or(u64::MAX))
            .min(Duration::from_secs(1));
        let longest = waiter.lease.max(poll * 2);
        waiter_end.min(self.now.saturating_add(longest))
    }

    /// When a waiter expires that has just polled.
    pub(crate) fn polled_end(&self, waiter: &WaiterParts) -> ServerTime {
        let lease = self.spec().map(|spec| spec.waiter_lease());
        let end = self.now.saturating_add(lease.unwrap_or_default());
        waiter.wait_until.map_or(end, |until| end.min(until))
    }

    /// The free capacity after the step, without expired holders.
    pub(crate) fn room(&self) -> u32 {
        let Some(spec) = self.spec() else { return 0 };
        let used = self.holders_after().map(|t| spec.weight(mode(t)));
        spec.capacity().saturating_sub(used.sum())
    }

    /// Returns the mode and the floor of each grant in this step that came with a floor.
    fn floors(&self) -> impl Iterator<Item = (Mode, u64)> {
        let own = match self.command {
            Command::Acquire(request) => Some((request.operation, request.mode, request.floor)),
            _ => None,
        };
        let waiters = self.before.waiters.iter();
        let brought = waiters.map(|waiter| (waiter.operation, waiter.mode, waiter.floor));
        let asked = own.into_iter().chain(brought);
        asked.filter_map(|(operation, mode, floor)| {
            let name = name_of(operation);
            // A further hold of a holder shares its epoch, and so its token, whatever its floor is.
            let is_first = names(self.holding(name)?).next() == Some(name);
            floor.filter(|_| is_first).map(|floor| (mode, floor.get()))
        })
    }

    /// The highest floor of the grants in this step, or 0.
    pub(crate) fn floor(&self) -> u64 {
        self.floors().map(|(_, floor)| floor).max().unwrap_or(0)
    }

    /// The highest floor that the token of a new epoch must exceed, or 0.
    ///
    /// Leaves out readers whose floor equals the token: they join that epoch
    /// (docs/decisions/0009).
    pub(crate) fn floor_to_pass(&self) -> u64 {
        let group = self.holders_after().count() > 1;
        let joins = |(mode, floor): &(Mode, u64)| {
            group && *mode == Mode::Shared && *floor == self.after.token
        };
        let floors = self.floors().filter(|it| !joins(it));
        floors.map(|(_, floor)| floor).max().unwrap_or(0)
    }

    /// The token of an epoch that began and ended in this step.
    ///
    /// A downgrade starts such an epoch if it grants to a reader with a higher floor.
    pub(crate) fn passing_epoch(&self) -> Option<u64> {
        let Reply::Convert(ConvertReply::Converted { token, .. }) = self.reply else {
            return None;
        };
        let token = token.get();
        (token != self.before.token && token != self.after.token).then_some(token)
    }

    /// Whether the command settles the key: every mutating command does, unless it is refused
    /// before the step begins.
    pub(crate) fn settles(&self) -> bool {
        match self.reply {
            Reply::Acquire(
                AcquireReply::TooLate | AcquireReply::Refused(Refused::FloorTooHigh),
            ) => false,
            _ => !matches!(self.command, Command::Inspect),
        }
    }
}

/// The mode of a holder: the strongest mode of its holds.
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

pub(crate) fn find<'a>(state: &'a StateParts, like: &HolderParts) -> Option<&'a HolderParts> {
    let mut holders = state.holders.iter();
    holders.find(|t| t.session == like.session && t.id == like.id)
}

/// The holder that has the hold of an operation, expired or not.
pub(crate) fn holder_of(state: &StateParts, (session, sequence): Name) -> Option<&HolderParts> {
    let mut holders = state.holders.iter();
    holders.find(|t| t.session == session && has(t, sequence))
}

pub(crate) fn waiter_of(state: &StateParts, name: Name) -> Option<&WaiterParts> {
    state.waiters.iter().find(|p| name_of(p.operation) == name)
}

/// A waiter, as another state has it.
pub(crate) fn same_waiter<'a>(
    state: &'a StateParts,
    waiter: &WaiterParts,
) -> Option<&'a WaiterParts> {
    let mut waiters = state.waiters.iter();
    waiters.find(|it| it.ticket == waiter.ticket)
}
