//! A step of the state machine, as a mutant sees and alters it.

use std::time::Duration;

use crate::id::{FencingToken, Operation};
use crate::machine::{
    self, Command, Env, HolderParts, Message, Payload, Reply, State, StateParts, WaiterParts,
};
use crate::reply::{AcquireReply, Acquired, ConvertReply, PollReply, ReleaseReply, RenewReply};
use crate::request::{Acquire, Kind, LockSpec, Mode};
use crate::time::ServerTime;

/// One step: its input and its result.
#[derive(Clone)]
pub(crate) struct Step<'a> {
    pub(super) before: StateParts,
    pub(super) env: Env<'a>,
    pub(super) command: Command,
    pub(super) after: StateParts,
    pub(super) reply: Reply,
    pub(super) messages: Vec<Message>,
}

impl Step<'_> {
    /// Runs the real step on the current `before`, `env` and `command`.
    pub(super) fn rerun(&mut self) {
        self.rerun_in(self.env);
    }

    pub(super) fn rerun_in(&mut self, env: Env<'_>) {
        let mut state = State::from_parts(self.before.clone())
            .expect("mutants run the step on a consistent state");
        (self.reply, self.messages) = machine::step(&mut state, env, &self.command);
        self.after = state.to_parts();
    }

    /// Reruns the step with some waiters hidden from the machine.
    pub(super) fn rerun_without(&mut self, hidden: impl Fn(&WaiterParts) -> bool) {
        let all = self.before.waiters.clone();
        self.before.waiters.retain(|waiter| !hidden(waiter));
        self.rerun();
        let restored = all.iter().filter(|waiter| hidden(waiter)).cloned();
        self.after.waiters.extend(restored);
        self.after.waiters.sort_by_key(|waiter| waiter.ticket);
        self.before.waiters = all;
    }

    /// Reruns the step with a changed request if the command is an acquire.
    pub(super) fn rerun_with_acquire(&mut self, change: impl FnOnce(&mut Acquire)) {
        if let Command::Acquire(request) = &mut self.command {
            change(request);
            self.rerun();
        }
    }

    /// Makes the altered result consistent: `earliest` and the stored end cover all ends, and all
    /// holders have the token of the key, except those of a semaphore.
    pub(super) fn balance(&mut self) {
        let after = &mut self.after;
        let ends = || after.holders.iter().map(|holder| holder.end);
        after.earliest = ends().fold(after.earliest, ServerTime::min);
        after.stored_end = after.stored_end.max(last_end(after));
        if after.spec.is_some_and(|it| it.kind() != Kind::Semaphore) {
            for holder in &mut after.holders {
                holder.token = FencingToken::new(after.token);
            }
        }
    }

    pub(super) fn now(&self) -> ServerTime {
        self.env.now
    }

    /// The server time after `time` from now.
    pub(super) fn in_time(&self, time: Duration) -> ServerTime {
        self.now().saturating_add(time)
    }

    /// The operation that the command names, if any.
    pub(super) fn operation(&self) -> Option<Operation> {
        match &self.command {
            Command::Acquire(request) => Some(request.operation),
            Command::Poll(request) => Some(request.operation),
            Command::Renew(request) => Some(request.operation),
            Command::Release(request) => Some(request.operation),
            Command::Convert(request) => Some(request.operation),
            Command::Note(request) => Some(request.operation),
            Command::Inspect | Command::ForceRelease(_) => None,
        }
    }

    /// The holder of the named operation before the step, if it was live.
    pub(super) fn live_before(&self) -> Option<&HolderParts> {
        let operation = self.operation()?;
        holder(&self.before, operation).filter(|holder| holder.end > self.now())
    }

    /// Whether the command is an acquire that neither holds nor waits yet.
    pub(super) fn is_new(&self) -> bool {
        let operation = self.operation();
        let waits = |waiter: &WaiterParts| Some(waiter.operation) == operation;
        matches!(self.command, Command::Acquire(_))
            && self.live_before().is_none()
            && !self.before.waiters.iter().any(waits)
    }

    /// Sets the end of the operation's holder, also in the reply.
    pub(super) fn set_end(&mut self, operation: Operation, end: ServerTime) {
        let (remaining, own) = (end.saturating_since(self.now()), self.operation());
        let covered = end.saturating_add(self.env.settings.retention);
        let Some(holder) = holder_mut(&mut self.after, operation) else {
            return;
        };
        holder.end = end;
        self.after.stored_end = self.after.stored_end.max(covered);
        if own == Some(operation)
            && let Some(acquired) = self.acquired()
        {
            acquired.remaining = remaining;
        }
    }

    /// Extends the holder of the named operation.
    pub(super) fn extend(&mut self, lease: Duration) {
        let asked = self.in_time(lease);
        if let Some(operation) = self.operation()
            && let Some(holder) = holder(&self.after, operation)
        {
            self.set_end(operation, asked.max(holder.end));
        }
    }

    /// The hold in the reply to an acquire or a poll, if it is one.
    pub(super) fn acquired(&mut self) -> Option<&mut Acquired> {
        match &mut self.reply {
            Reply::Acquire(AcquireReply::Acquired(acquired))
            | Reply::Poll(PollReply::Acquired(acquired)) => Some(acquired),
            _ => None,
        }
    }

    /// Changes every token in the new state, the reply and the messages.
    pub(super) fn map_tokens(&mut self, map: impl Fn(u64) -> u64) {
        let change = |token: &mut FencingToken| *token = FencingToken::new(map(token.get()));
        self.after.token = map(self.after.token);
        for holder in &mut self.after.holders {
            change(&mut holder.token);
        }
        for message in &mut self.messages {
            if let Payload::Granted { token, .. } = &mut message.payload {
                change(token);
            }
        }
        match &mut self.reply {
            Reply::Acquire(AcquireReply::Acquired(Acquired { token, .. }))
            | Reply::Poll(PollReply::Acquired(Acquired { token, .. }))
            | Reply::Renew(RenewReply::Renewed { token, .. })
            | Reply::Convert(ConvertReply::Converted { token, .. }) => change(token),
            Reply::Convert(ConvertReply::WrongEpoch(view))
            | Reply::Release(ReleaseReply::Released {
                holder: Some(view), ..
            }) => change(&mut view.token),
            _ => {}
        }
    }
}

fn has(holder: &HolderParts, operation: Operation) -> bool {
    let sequence = operation.sequence;
    holder.session == operation.session && holder.holds.iter().any(|hold| hold.0 == sequence)
}

/// The holder that has a hold of this operation.
pub(super) fn holder(parts: &StateParts, operation: Operation) -> Option<&HolderParts> {
    parts.holders.iter().find(|holder| has(holder, operation))
}

pub(super) fn holder_mut(parts: &mut StateParts, operation: Operation) -> Option<&mut HolderParts> {
    let mut holders = parts.holders.iter_mut();
    holders.find(|holder| has(holder, operation))
}

/// The mode that takes the full capacity.
pub(super) const fn full_mode(spec: LockSpec) -> Mode {
    match spec.kind() {
        Kind::Semaphore => Mode::Permits(spec.capacity()),
        Kind::Mutex | Kind::RwLock => Mode::Exclusive,
    }
}

/// The latest end of all holders, waiters and watermarks, and of the note.
pub(super) fn last_end(parts: &StateParts) -> ServerTime {
    let holders = parts.holders.iter().map(|holder| holder.end);
    let waiters = parts.waiters.iter().map(|waiter| waiter.end);
    let watermarks = parts.watermarks.iter().map(|watermark| watermark.end);
    let note = parts.note.iter().map(|note| note.end);
    let all = holders.chain(waiters).chain(watermarks).chain(note);
    all.max().unwrap_or_default()
}
