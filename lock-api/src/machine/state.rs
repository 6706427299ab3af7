//! The state of a key, and the small changes that the commands are made of.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bounds::{FIRST_WAITERS, OFFER_POLLS, SCAN_INTERVAL, STAGGER_STEPS};
use crate::id::{FencingToken, Label, Operation, SessionId};
use crate::machine::parts::require;
use crate::machine::{Env, Inconsistent, NoteParts, Settings, WaiterParts, WatermarkParts};
use crate::reply::{Acquired, EndReason, HolderStatus, Queued};
use crate::request::{Kind, LockSpec, Mode};
use crate::time::{ServerTime, micros};

/// The state of one key.
///
/// The default is the state of an unused key. [`step`](crate::machine::step) changes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The spec that the key was last used with. It binds while the key has a holder or a waiter.
    pub(super) spec: Option<LockSpec>,
    /// The last token that was granted, or 0 before the first.
    pub(super) token: u64,
    /// The state counts as empty from this time on (rule 14).
    pub(super) stored_end: ServerTime,
    /// Lower bound of the ends of all holders (rule 4).
    pub(super) earliest: ServerTime,
    /// When all holders were last scanned.
    pub(super) last_scan: ServerTime,
    pub(super) next_ticket: u64,
    /// Sum of the holders' weights.
    pub(super) used: u32,
    /// Number of waiters that are marked unreachable.
    pub(super) unreachable: u32,
    pub(super) holders: BTreeMap<HolderId, Holder>,
    /// By ticket.
    pub(super) waiters: BTreeMap<u64, WaiterParts>,
    /// Ticket of each waiter, by session and sequence.
    pub(super) tickets: BTreeMap<(SessionId, u64), u64>,
    /// The highest sequence of each session (rule 12).
    pub(super) watermarks: BTreeMap<SessionId, WatermarkParts>,
    pub(super) note: Option<NoteParts>,
}

/// The id of a holder: (session, owner), or for a semaphore (session, sequence).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HolderId {
    pub(super) session: SessionId,
    pub(super) id: u64,
}

/// The record of an owner that holds the key. It exists until the last hold of the owner is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    /// In the order in which they were made; never empty.
    pub(super) holds: Vec<Hold>,
    pub(super) end: ServerTime,
    /// The holder's token if the key is a semaphore, where each holder is an epoch (has its own token).
    /// Otherwise 0: the token of the key counts.
    pub(super) token: u64,
    pub(super) label: Label,
    /// A forced release revoked it: its lease cannot be extended.
    pub(super) revoked: bool,
    /// It has upgraded once while others waited.
    pub(super) upgraded: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) sequence: u64,
    pub(super) mode: Mode,
}

/// Whether something that ends at `end` has expired (rule 1). At that very instant, it has.
pub(super) fn is_expired(end: ServerTime, now: ServerTime) -> bool {
    now >= end
}

impl Holder {
    pub(super) fn has(&self, sequence: u64) -> bool {
        self.holds.iter().any(|hold| hold.sequence == sequence)
    }

    /// The strongest of its holds.
    pub(super) fn mode(&self) -> Mode {
        let exclusive = self.holds.iter().any(|hold| hold.mode == Mode::Exclusive);
        if exclusive {
            Mode::Exclusive
        } else {
            self.holds[0].mode
        }
    }
}

impl WaiterParts {
    /// The end of a waiter that is refreshed at `now`.
    pub(super) fn end_from(
        now: ServerTime,
        waiter_lease: Duration,
        wait_until: Option<ServerTime>,
    ) -> ServerTime {
        let end = now.saturating_add(waiter_lease);
        wait_until.map_or(end, |until| end.min(until))
    }

    /// The end of an offer that this waiter gets at `now` (rule 10). After a short lease alone, it would be over before a
    /// waiter that missed the message polls (decision 0015).
    pub(super) fn offer_end(&self, now: ServerTime, poll_interval: Duration) -> ServerTime {
        let longest = self.lease.max(poll_interval * OFFER_POLLS);
        self.end.min(now.saturating_add(longest))
    }
}

impl State {
    /// Whether the key has no live holder and no live waiter at `now`. Its token and watermarks may
    /// still be live.
    pub fn is_idle(&self, now: ServerTime) -> bool {
        is_expired(self.stored_end, now) || self.next_expiry(now).is_none()
    }

    /// The time from which on the state counts as empty, and can be deleted.
    ///
    /// It covers every holder, offer and waiter with T beyond it, for its token, every watermark, and the time
    /// for which a note is kept (rule 14).
    pub const fn stored_end(&self) -> ServerTime {
        self.stored_end
    }

    /// The next time after `now` at which a holder or a waiter expires.
    ///
    /// A command that is executed before then finds the same holders and waiters as at `now`.
    pub fn next_expiry(&self, now: ServerTime) -> Option<ServerTime> {
        self.ends().filter(|end| !is_expired(*end, now)).min()
    }

    /// Clears a state past its stored end (rule 14), and a note that stands no more.
    pub(super) fn clear_if_expired(&mut self, now: ServerTime) {
        if is_expired(self.stored_end, now) {
            *self = Self::default();
        }
        self.drop_old_note(now);
    }

    /// Moves the stored end to cover `needed_end`, and T/8 further than needed, so that it moves
    /// rarely.
    pub(super) fn cover(&mut self, needed_end: ServerTime, settings: Settings) {
        if self.stored_end < needed_end {
            self.stored_end = needed_end.saturating_add(settings.retention / 8);
        }
    }

    /// Moves the stored end to cover a holder that ends at `end`, and its token for T beyond it. A waiter needs no
    /// T, but gets it too: an offer ends no later than its waiter, so the grant needn't move the stored end.
    pub(super) fn cover_with_token(&mut self, end: ServerTime, settings: Settings) {
        self.cover(end.saturating_add(settings.retention), settings);
    }

    pub(super) fn holder_id(&self, operation: Operation) -> HolderId {
        let id = match self.is_semaphore() {
            true => operation.sequence,
            false => operation.owner.as_u64(),
        };
        HolderId {
            session: operation.session,
            id,
        }
    }

    /// The live holder that has a hold of `operation`.
    pub(super) fn live(&self, operation: Operation, now: ServerTime) -> Option<&Holder> {
        let holder = self.holders.get(&self.holder_id(operation))?;
        (!is_expired(holder.end, now) && holder.has(operation.sequence)).then_some(holder)
    }

    /// The holder with this id, which the caller has found before.
    pub(super) fn known_holder(&mut self, holder_id: HolderId) -> &mut Holder {
        let holder = self.holders.get_mut(&holder_id);
        holder.expect("the caller has found it")
    }

    pub(super) fn ticket(&self, operation: Operation) -> Option<u64> {
        self.tickets
            .get(&(operation.session, operation.sequence))
            .copied()
    }

    pub(super) fn poll_interval(&self) -> Duration {
        self.spec
            .map_or(Duration::ZERO, |spec| spec.poll_interval())
    }

    pub(super) fn capacity(&self) -> u32 {
        self.spec.map_or(0, |spec| spec.capacity())
    }

    pub(super) fn weight(&self, mode: Mode) -> u32 {
        self.spec.map_or(0, |spec| spec.weight(mode))
    }

    pub(super) fn fits(&self, mode: Mode) -> bool {
        self.weight(mode) <= self.capacity().saturating_sub(self.used)
    }

    pub(super) fn token_of(&self, holder: &Holder) -> FencingToken {
        FencingToken::new(match self.is_semaphore() {
            true => holder.token,
            false => self.token,
        })
    }

    /// The token to store in a holder that is granted with `token`.
    pub(super) fn own_token(&self, token: u64) -> u64 {
        match self.is_semaphore() {
            true => token,
            false => 0,
        }
    }

    fn is_semaphore(&self) -> bool {
        self.spec.is_some_and(|spec| spec.kind() == Kind::Semaphore)
    }

    pub(super) fn acquired(&self, holder: &Holder, now: ServerTime) -> Acquired {
        Acquired {
            token: self.token_of(holder),
            holds: u32::try_from(holder.holds.len()).unwrap_or(u32::MAX),
            remaining: holder.end.saturating_since(now),
        }
    }

    pub(super) fn status(&self, holder: &Holder, now: ServerTime) -> HolderStatus {
        HolderStatus {
            mode: holder.mode(),
            token: self.token_of(holder),
            remaining: holder.end.saturating_since(now),
        }
    }

    /// Starts a new epoch. A plain counter would repeat itself after a failover that loses writes (rule 15).
    pub(super) fn next_token(&mut self, now: ServerTime, floor: Option<FencingToken>) {
        let floor = floor.map_or(0, FencingToken::get);
        self.token = (self.token + 1).max(now.as_micros()).max(floor + 1);
    }

    /// Adds a hold to the owner's holder, or to a new holder.
    pub(super) fn grant(&mut self, env: Env<'_>, grant: Grant) {
        let holder_id = self.holder_id(grant.operation);
        let hold = Hold {
            sequence: grant.operation.sequence,
            mode: grant.mode,
        };
        self.cover_with_token(grant.end, env.settings);
        // With many holders, the scan may not have dropped an expired one yet. A grant to its owner
        // must not revive it.
        self.drop_holder_if_expired(holder_id, env.now);
        if let Some(holder) = self.holders.get_mut(&holder_id) {
            // The owner has been granted another read meanwhile.
            holder.holds.push(hold);
            if !holder.revoked {
                holder.end = holder.end.max(grant.end);
            }
            return;
        }
        let joins = self.spec.is_some_and(|spec| spec.kind() == Kind::RwLock)
            && grant.mode == Mode::Shared
            && !self.holders.is_empty();
        // A floor is the highest token that the client has seen. One above the stored token proves
        // that a token was lost. One equal to it comes from a client that has read under this token.
        // It must join: with a new token, the resource would refuse the readers that have this one (decision 0009).
        let lost = grant.floor.is_some_and(|floor| floor.get() > self.token);
        if !joins || lost {
            self.next_token(env.now, grant.floor);
        }
        let first = self.holders.is_empty();
        self.earliest = if first {
            grant.end
        } else {
            self.earliest.min(grant.end)
        };
        self.used += self.weight(grant.mode);
        let holder = Holder {
            holds: vec![hold],
            end: grant.end,
            token: self.own_token(self.token),
            label: grant.label,
            revoked: false,
            upgraded: false,
        };
        self.holders.insert(holder_id, holder);
    }

    pub(super) fn remove_holder(&mut self, holder_id: HolderId) -> Option<Holder> {
        let holder = self.holders.remove(&holder_id)?;
        self.used -= self.weight(holder.mode());
        Some(holder)
    }

    fn drop_holder_if_expired(&mut self, holder_id: HolderId, now: ServerTime) -> Option<Holder> {
        let holder = self.holders.get(&holder_id)?;
        if !is_expired(holder.end, now) {
            return None;
        }
        self.remove_holder(holder_id)
    }

    /// Removes the holder of the operation's owner and the operation's own waiter if they have
    /// expired. So a command never finds its own operation alive past its end. Returns whether the
    /// operation had a hold in that holder, or that waiter.
    pub(super) fn drop_if_expired(&mut self, operation: Operation, now: ServerTime) -> bool {
        let holder = self.drop_holder_if_expired(self.holder_id(operation), now);
        let held = holder.is_some_and(|holder| holder.has(operation.sequence));
        let waiter = self
            .ticket(operation)
            .filter(|ticket| is_expired(self.waiters[ticket].end, now));
        let waited = waiter.and_then(|ticket| self.remove_waiter(ticket));
        held || waited.is_some()
    }

    /// Adds a waiter, under its ticket.
    pub(super) fn insert_waiter(&mut self, waiter: WaiterParts) {
        let (ticket, operation) = (waiter.ticket, waiter.operation);
        self.unreachable += u32::from(waiter.unreachable);
        self.tickets
            .insert((operation.session, operation.sequence), ticket);
        self.waiters.insert(ticket, waiter);
    }

    pub(super) fn remove_waiter(&mut self, ticket: u64) -> Option<WaiterParts> {
        let waiter = self.waiters.remove(&ticket)?;
        self.tickets
            .remove(&(waiter.operation.session, waiter.operation.sequence));
        self.unreachable -= u32::from(waiter.unreachable);
        Some(waiter)
    }

    pub(super) fn watermark(&self, session: SessionId, now: ServerTime) -> Option<&WatermarkParts> {
        self.watermarks
            .get(&session)
            .filter(|watermark| !is_expired(watermark.end, now))
    }

    /// Raises the session's watermark to this sequence and extends it by 2 W (rule 12).
    pub(super) fn raise_watermark(
        &mut self,
        env: Env<'_>,
        operation: Operation,
        reason: Option<EndReason>,
    ) {
        let end = env.now.saturating_add(env.settings.delivery_window * 2);
        self.watermarks
            .retain(|_, watermark| !is_expired(watermark.end, env.now));
        let raised = WatermarkParts {
            session: operation.session,
            sequence: operation.sequence,
            end,
            reason,
        };
        let watermark = self.watermarks.entry(operation.session).or_insert(raised);
        if operation.sequence > watermark.sequence {
            *watermark = raised;
        } else if operation.sequence == watermark.sequence && reason.is_some() {
            watermark.reason = reason;
        }
        watermark.end = end;
        self.cover(end, env.settings);
    }

    /// Why an operation is not live. `expired` says that this very step has dropped it.
    pub(super) fn reason(&self, operation: Operation, now: ServerTime, expired: bool) -> EndReason {
        if expired {
            return EndReason::Expired;
        }
        self.watermark(operation.session, now)
            .filter(|watermark| watermark.sequence == operation.sequence)
            .and_then(|watermark| watermark.reason)
            .unwrap_or(EndReason::Unknown)
    }

    /// Time to the earliest change without a command, at least 1 ms (rule 3).
    pub(super) fn retry_after(&self, now: ServerTime) -> Duration {
        let at = if self.holders.is_empty() {
            now
        } else if self.earliest > now {
            self.earliest
        } else {
            self.last_scan.saturating_add(SCAN_INTERVAL)
        };
        at.saturating_since(now).max(Duration::from_millis(1))
    }

    /// The reply for a waiter. The first waiters poll at the earliest change. The other waiters of a
    /// session poll together, and the sessions are spread over the last quarter of the poll interval
    /// (rule 3).
    pub(super) fn queued(&self, ticket: u64, now: ServerTime) -> Queued {
        let first = self.waiters.keys().next().copied().unwrap_or(ticket);
        let others = u64::try_from(self.waiters.len())
            .unwrap_or(u64::MAX)
            .saturating_sub(1);
        let ahead = u32::try_from((ticket - first).min(others)).unwrap_or(u32::MAX);
        let waiter = self.waiters.get(&ticket);
        let poll_after = match waiter.filter(|_| ahead >= FIRST_WAITERS) {
            Some(waiter) => self.poll_with_session(waiter.operation.session),
            None => self.poll_interval().min(self.retry_after(now)),
        };
        let end = waiter.map_or(now, |waiter| waiter.end);
        Queued {
            ahead,
            poll_after,
            waiter_remaining: end.saturating_since(now),
        }
    }

    /// When a session's waiters poll, other than the first ones. Session ids are random.
    fn poll_with_session(&self, session: SessionId) -> Duration {
        let step = u64::from(session.as_bytes()[0]) % u64::from(STAGGER_STEPS);
        let poll = micros(self.poll_interval());
        let quarter = poll / 4;
        Duration::from_micros(poll - quarter + step * quarter / u64::from(STAGGER_STEPS))
    }

    /// Checks the invariants that every step keeps.
    pub(super) fn check(&self) -> Result<(), Inconsistent> {
        let holders = || self.holders.values();
        let weights = holders().map(|holder| u64::from(self.weight(holder.mode())));
        let is_sum = weights.sum::<u64>() == u64::from(self.used);
        require("used is the sum of the weights", is_sum)?;
        require("used is within capacity", self.used <= self.capacity())?;
        let unreachable = self.waiters.values().filter(|waiter| waiter.unreachable);
        let counted = unreachable.count() == self.unreachable as usize;
        require("unreachable is counted", counted)?;
        let held = holders().all(|holder| !holder.holds.is_empty());
        require("every holder has a hold", held)?;
        let bound = holders().all(|holder| holder.end >= self.earliest);
        require("earliest is a lower bound", bound)?;
        let known = self.waiters.len() == self.tickets.len();
        require("every waiter has its ticket", known)?;
        let watermarks = self.watermarks.values().map(|watermark| watermark.end);
        let ends = self.ends().chain(watermarks);
        let needed = ends.chain(self.note.iter().map(|note| note.end)).max();
        require("the stored end covers all", needed <= Some(self.stored_end))
    }

    /// The ends of all holders and waiters.
    fn ends(&self) -> impl Iterator<Item = ServerTime> {
        let holders = self.holders.values().map(|holder| holder.end);
        let waiters = self.waiters.values().map(|waiter| waiter.end);
        holders.chain(waiters)
    }
}

#[derive(Debug)]
pub(super) struct Grant {
    pub(super) operation: Operation,
    pub(super) mode: Mode,
    pub(super) label: Label,
    pub(super) floor: Option<FencingToken>,
    pub(super) end: ServerTime,
}
