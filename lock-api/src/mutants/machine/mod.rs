//! Mutants of the state machine. They wrap the machine from outside.
//!
//! Each mutant alters a [`Step`]. It changes the input of the real step and
//! [reruns](Step::rerun) it, or it changes the result. The state stays consistent, so the
//! machine's invariant checks never catch a mutant. A test must catch it.

mod conversion;
mod delivery;
mod leases;
mod notes;
mod queue;
mod reasons;
mod tokens;

use std::time::Duration;

use super::Mutant;
use crate::id::{FencingToken, Operation};
use crate::machine::{
    self, Command, Env, HolderParts, Message, Payload, Reply, State, StateParts, WaiterParts,
};
use crate::reply::{AcquireReply, Acquired, ConvertReply, PollReply, ReleaseReply, RenewReply};
use crate::request::{Acquire, Kind, LockSpec, Mode};
use crate::time::ServerTime;

/// [`machine::step`], altered by the active mutant.
pub fn step(state: &mut State, env: Env<'_>, command: &Command) -> (Reply, Vec<Message>) {
    let Some(alter) = Mutant::planted().and_then(alteration) else {
        return machine::step(state, env, command);
    };
    // Clears an expired state like the real step, so that mutants never see one.
    let before = match state.stored_end() <= env.now {
        true => StateParts::default(),
        false => state.to_parts(),
    };
    let mut step = Step {
        before,
        env,
        command: command.clone(),
        after: StateParts::default(),
        reply: Reply::Inspect(Default::default()),
        messages: Vec::new(),
    };
    step.rerun();
    alter(&mut step);
    step.balance();
    *state = State::from_parts(step.after).expect("mutants keep the state consistent");
    (step.reply, step.messages)
}

type Alter = fn(&mut Step<'_>);

/// How the mutant alters a step, or `None` if it is not a mutant of the state machine.
fn alteration(mutant: Mutant) -> Option<Alter> {
    Some(match mutant {
        Mutant::ExpiryEdge => leases::expiry_edge,
        Mutant::CachedRenewal => leases::cached_renewal,
        Mutant::RemainingTooLong => leases::remaining_too_long,
        Mutant::RedeliveryExtends => leases::redelivery_extends,
        Mutant::HeldForTheLongest => leases::held_for_the_longest,
        Mutant::HeldByTheLast => leases::held_by_the_last,
        Mutant::HeadIgnoresExpiry => leases::head_ignores_expiry,
        Mutant::CheckTooLate => leases::check_too_late,
        Mutant::OneExpiryDropsAll => leases::one_expiry_drops_all,
        Mutant::RenewalExtendsAll => leases::renewal_extends_all,
        Mutant::ReleaseCountsItself => leases::release_counts_itself,
        Mutant::ReleaseAtTwoFrees => leases::release_at_two_frees,
        Mutant::InnerLeaseShortens => leases::inner_lease_shortens,
        Mutant::UpgradeSelfDeadlock => conversion::upgrade_self_deadlock,
        Mutant::HoldLimitIgnored => delivery::hold_limit_ignored,
        Mutant::DuplicateConversionActs => conversion::duplicate_conversion_acts,
        Mutant::UpgradeNotSole => conversion::upgrade_not_sole,
        Mutant::UpgradeAlwaysRefused => conversion::upgrade_always_refused,
        Mutant::UpgradesAgain => conversion::upgrades_again,
        Mutant::ReleaseTellsOldToken => conversion::release_tells_old_token,
        Mutant::DowngradeOvertakes => conversion::downgrade_overtakes,
        Mutant::WaiterTurnedDown => queue::waiter_turned_down,
        Mutant::DeadWaiterBlocks => queue::dead_waiter_blocks,
        Mutant::BargingUnderFair => queue::barging_under_fair,
        Mutant::ReaderPreferenceUnderFair => queue::reader_preference_under_fair,
        Mutant::NoWakeUp => queue::no_wake_up,
        Mutant::GrantUntold => queue::grant_untold,
        Mutant::GrantToldToNext => queue::grant_told_to_next,
        Mutant::GrantToldWithOldToken => queue::grant_told_with_old_token,
        Mutant::GrantToldWithFullLease => queue::grant_told_with_full_lease,
        Mutant::ReleaseGrantsNobody => queue::release_grants_nobody,
        Mutant::UnknownIsUnreachable => queue::unknown_is_unreachable,
        Mutant::GrantTakenBack => queue::grant_taken_back,
        Mutant::UnreachableLosesTicket => queue::unreachable_loses_ticket,
        Mutant::FullLeaseForOffer => queue::full_lease_for_offer,
        Mutant::OfferIgnoresLease => queue::offer_ignores_lease,
        Mutant::PollExtendsOffer => queue::poll_extends_offer,
        Mutant::PollKeepsAll => queue::poll_keeps_all,
        Mutant::PollKeepsNothing => queue::poll_keeps_nothing,
        Mutant::PollRevives => queue::poll_revives,
        Mutant::ReleaseMissesOffer => queue::release_misses_offer,
        Mutant::NoWatermarkAfterRelease => delivery::no_watermark_after_release,
        Mutant::ReleaseAgainFreesNext => delivery::release_again_frees_next,
        Mutant::ReleaseIgnoresOwner => delivery::release_ignores_owner,
        Mutant::RetryCountsTwice => delivery::retry_counts_twice,
        Mutant::DeliverBeforeIgnored => delivery::deliver_before_ignored,
        Mutant::StaleTooSoon => delivery::stale_too_soon,
        Mutant::WriteBeforeRefusal => delivery::write_before_refusal,
        Mutant::RenewRevives => delivery::renew_revives,
        Mutant::StoredEndTooEarly => tokens::stored_end_too_early,
        Mutant::TokenCountsByOne => tokens::token_counts_by_one,
        Mutant::ReadersDistinctTokens => tokens::readers_distinct_tokens,
        Mutant::FloorIgnored => tokens::floor_ignored,
        Mutant::NoteWithoutHold => notes::note_without_hold,
        Mutant::OldNoteReverts => notes::old_note_reverts,
        Mutant::NoteEndsTooSoon => notes::note_ends_too_soon,
        Mutant::ExpiryUntold => reasons::expiry_untold,
        Mutant::ReleaseToldAsExpiry => reasons::release_told_as_expiry,
        Mutant::RevokedIsRenewed => reasons::revoked_is_renewed,
        Mutant::RevocationUntold => reasons::revocation_untold,
        Mutant::ForceCountsAll => reasons::force_counts_all,
        Mutant::InspectionShowsExpired => reasons::inspection_shows_expired,
        _ => return None,
    })
}

/// One step: its input and its result.
#[derive(Clone)]
struct Step<'a> {
    before: StateParts,
    env: Env<'a>,
    command: Command,
    after: StateParts,
    reply: Reply,
    messages: Vec<Message>,
}

impl Step<'_> {
    /// Runs the real step on the current `before`, `env` and `command`.
    fn rerun(&mut self) {
        self.rerun_in(self.env);
    }

    fn rerun_in(&mut self, env: Env<'_>) {
        let mut state = State::from_parts(self.before.clone())
            .expect("mutants run the step on a consistent state");
        (self.reply, self.messages) = machine::step(&mut state, env, &self.command);
        self.after = state.to_parts();
    }

    /// Reruns the step with some waiters hidden from the machine.
    fn rerun_without(&mut self, hidden: impl Fn(&WaiterParts) -> bool) {
        let all = self.before.waiters.clone();
        self.before.waiters.retain(|waiter| !hidden(waiter));
        self.rerun();
        let restored = all.iter().filter(|waiter| hidden(waiter)).cloned();
        self.after.waiters.extend(restored);
        self.after.waiters.sort_by_key(|waiter| waiter.ticket);
        self.before.waiters = all;
    }

    /// Reruns the step with a changed request if the command is an acquire.
    fn rerun_with_acquire(&mut self, change: impl FnOnce(&mut Acquire)) {
        if let Command::Acquire(request) = &mut self.command {
            change(request);
            self.rerun();
        }
    }

    /// Makes the altered result consistent: `earliest` and the stored end cover all ends, and all
    /// holders have the token of the key, except those of a semaphore.
    fn balance(&mut self) {
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

    fn now(&self) -> ServerTime {
        self.env.now
    }

    /// The server time after `time` from now.
    fn in_time(&self, time: Duration) -> ServerTime {
        self.now().saturating_add(time)
    }

    /// The operation that the command names, if any.
    fn operation(&self) -> Option<Operation> {
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
    fn live_before(&self) -> Option<&HolderParts> {
        let operation = self.operation()?;
        holder(&self.before, operation).filter(|holder| holder.end > self.now())
    }

    /// Whether the command is an acquire that neither holds nor waits yet.
    fn is_new(&self) -> bool {
        let operation = self.operation();
        let waits = |waiter: &WaiterParts| Some(waiter.operation) == operation;
        matches!(self.command, Command::Acquire(_))
            && self.live_before().is_none()
            && !self.before.waiters.iter().any(waits)
    }

    /// Sets the end of the operation's holder, also in the reply.
    fn set_end(&mut self, operation: Operation, end: ServerTime) {
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
    fn extend(&mut self, lease: Duration) {
        let asked = self.in_time(lease);
        if let Some(operation) = self.operation()
            && let Some(holder) = holder(&self.after, operation)
        {
            self.set_end(operation, asked.max(holder.end));
        }
    }

    /// The hold in the reply to an acquire or a poll, if it is one.
    fn acquired(&mut self) -> Option<&mut Acquired> {
        match &mut self.reply {
            Reply::Acquire(AcquireReply::Acquired(acquired))
            | Reply::Poll(PollReply::Acquired(acquired)) => Some(acquired),
            _ => None,
        }
    }

    /// Changes every token in the new state, the reply and the messages.
    fn map_tokens(&mut self, map: impl Fn(u64) -> u64) {
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
fn holder(parts: &StateParts, operation: Operation) -> Option<&HolderParts> {
    parts.holders.iter().find(|holder| has(holder, operation))
}

fn holder_mut(parts: &mut StateParts, operation: Operation) -> Option<&mut HolderParts> {
    let mut holders = parts.holders.iter_mut();
    holders.find(|holder| has(holder, operation))
}

/// The mode that takes the full capacity.
const fn full_mode(spec: LockSpec) -> Mode {
    match spec.kind() {
        Kind::Semaphore => Mode::Permits(spec.capacity()),
        Kind::Mutex | Kind::RwLock => Mode::Exclusive,
    }
}

/// The latest end of all holders, waiters and watermarks, and of the note.
fn last_end(parts: &StateParts) -> ServerTime {
    let holders = parts.holders.iter().map(|holder| holder.end);
    let waiters = parts.waiters.iter().map(|waiter| waiter.end);
    let watermarks = parts.watermarks.iter().map(|watermark| watermark.end);
    let note = parts.note.iter().map(|note| note.end);
    let all = holders.chain(waiters).chain(watermarks).chain(note);
    all.max().unwrap_or_default()
}
