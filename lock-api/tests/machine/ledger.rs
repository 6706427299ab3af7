//! An independent record of the commands and replies, and the invariants between two inspections
//! of a key.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold_api::machine::{Command, Reply};
use leasehold_api::{
    AcquireReply, ConvertReply, HolderView, InspectReply, Kind, LockSpec, Mode, NoteReply,
    NoteView, Operation, PollReply, ReleaseReply, RenewReply, ServerTime,
};

use crate::support::{Key, label};

/// A hold or waiter in the ledger.
#[derive(Clone, Debug, Default)]
struct Entry {
    /// The expiry of the waiter, while it waits.
    waiter_end: u64,
    /// The deadline of the wait.
    until: Option<u64>,
    /// The lease that it asked for.
    lease: u64,
    /// The number of holders granted since its arrival, while it was reachable.
    overtaken: u32,
    /// The number of waiters ahead of it at its arrival.
    ahead: u32,
    unreachable_marks: u32,
}

/// The ledger of one key.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    entries: BTreeMap<String, Entry>,
    /// The latest end that a holder may have, by [`holder_name`].
    allowed: BTreeMap<String, u64>,
    /// Attempts that are no longer live.
    gone: BTreeSet<Operation>,
    /// Attempts that are live.
    live: BTreeSet<Operation>,
    /// The number of upgrades while others waited, by holder.
    upgrades: BTreeMap<String, u32>,
    /// The time until which watermarks and the token must be kept.
    kept_until: u64,
    last_token: u64,
    /// The token floors of attempts.
    floors: BTreeMap<String, u64>,
}

/// A step to check.
pub(crate) struct Observed<'a> {
    pub(crate) before: &'a InspectReply,
    pub(crate) after: &'a InspectReply,
    pub(crate) command: &'a Command,
    pub(crate) reply: &'a Reply,
    /// The key before the step, at the same time.
    pub(crate) was: &'a Key,
    pub(crate) key: &'a Key,
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("short")
}

fn end(now: u64, remaining: Duration) -> u64 {
    now + micros(remaining)
}

/// The attempt that a command names.
pub(crate) fn operation(command: &Command) -> Option<Operation> {
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

/// The name of a holder: `a#7` for owner 7 of session a, or `a#s3` for a permit.
pub(crate) fn holder_name(kind: Kind, operation: Operation) -> String {
    let letter = char::from(operation.session.as_bytes()[0]);
    match kind {
        Kind::Semaphore => format!("{letter}#s{}", operation.sequence),
        _ => format!("{letter}#{}", operation.owner.as_u64()),
    }
}

fn holder<'a>(inspection: &'a InspectReply, name: &str) -> Option<&'a HolderView> {
    let mut holders = inspection.holders.iter();
    holders.find(|h| owner_part(&h.label) == name)
}

/// The owners that hold the key.
fn owners(inspection: &InspectReply) -> BTreeSet<&str> {
    let holders = inspection.holders.iter();
    holders.map(|h| owner_part(&h.label)).collect()
}

/// How much of the capacity a hold takes.
fn weight(spec: LockSpec, mode: Mode) -> u32 {
    match mode {
        Mode::Exclusive => spec.capacity(),
        Mode::Shared => 1,
        Mode::Permits(n) => n,
    }
}

/// A label is `owner|operation`.
fn owner_part(label: &leasehold_api::Label) -> &str {
    label.as_str().split('|').next().unwrap_or_default()
}

fn operation_part(label: &leasehold_api::Label) -> &str {
    label.as_str().split('|').nth(1).unwrap_or_default()
}

/// The label of an acquire: holder name and operation.
pub(crate) fn full_label(kind: Kind, operation: Operation) -> String {
    format!("{}|{}", holder_name(kind, operation), label(operation))
}

/// Checks who changes the note, and when it ends.
fn note(seen: &Observed<'_>) -> Result<(), String> {
    let (before, after) = (&seen.before.note, &seen.after.note);
    if let (Command::Note(request), Reply::Note(NoteReply::Noted(stands))) =
        (seen.command, seen.reply)
    {
        let order = |it: &NoteView| (it.token, it.version);
        let replaced = before.as_ref().is_none_or(|it| order(it) < order(stands));
        ensure(alive(seen.was, request.operation), || {
            "a note without a hold".to_owned()
        })?;
        ensure(replaced || before.as_ref() == Some(stands), || {
            format!("{before:?} was replaced by {stands:?}")
        })?;
        let last = seen.after.token == Some(stands.token);
        return ensure(
            after.as_ref() == Some(stands) || !last && after.is_none(),
            || format!("{stands:?} was answered and {after:?} stands"),
        );
    }
    let ends = before
        .as_ref()
        .is_some_and(|it| it.kept_for.is_zero() && Some(it.token) != seen.after.token);
    ensure(after == before || ends && after.is_none(), || {
        format!("the note {before:?} became {after:?}")
    })
}

impl Ledger {
    /// Checks one step and records it.
    pub(crate) fn check(&mut self, seen: &Observed<'_>) -> Result<(), String> {
        if let (Command::Acquire(request), Some(floor)) = (seen.command, floor(seen.command)) {
            self.floors.insert(label(request.operation), floor);
        }
        self.capacity(seen)?;
        self.order(seen)?;
        self.head_does_not_fit(seen)?;
        self.tokens(seen)?;
        self.reply(seen)?;
        self.others_untouched(seen)?;
        self.record_ends(seen);
        self.remaining(seen)?;
        self.waiters(seen)?;
        self.upgrade(seen)?;
        self.one_effect(seen)?;
        note(seen)?;
        self.stored_end(seen)
    }

    /// Checks that the weight of all holders is within the capacity.
    fn capacity(&self, seen: &Observed<'_>) -> Result<(), String> {
        let Some(spec) = seen.after.spec else {
            return Ok(());
        };
        let holders = seen.after.holders.iter();
        let used: u64 = holders.map(|h| u64::from(weight(spec, h.mode))).sum();
        ensure(used <= u64::from(spec.capacity()), || {
            format!("{used} of {} are held", spec.capacity())
        })
    }

    /// The holders that were created in this step.
    fn granted<'a>(seen: &Observed<'a>) -> Vec<&'a HolderView> {
        let is_new = |h: &&HolderView| !existed(seen, h);
        seen.after.holders.iter().filter(is_new).collect()
    }

    /// Checks that nobody overtakes a reachable waiter.
    fn order(&mut self, seen: &Observed<'_>) -> Result<(), String> {
        let granted = Self::granted(seen);
        let position = |name: &str| {
            let mut waiters = seen.before.waiters.iter();
            waiters.position(|w| operation_part(&w.label) == name)
        };
        for waiter in &seen.after.waiters {
            let name = operation_part(&waiter.label);
            let Some(own_position) = position(name).filter(|_| !waiter.unreachable) else {
                continue;
            };
            let overtaking = granted.iter().filter(|h| {
                position(operation_part(&h.label)).is_none_or(|other| other > own_position)
            });
            let overtaking = overtaking.count();
            ensure(overtaking == 0, || format!("{name} was overtaken"))?;
            let entry = self.entries.entry(name.to_owned()).or_default();
            entry.overtaken += u32::try_from(granted.len()).unwrap_or(u32::MAX);
            ensure(entry.overtaken <= entry.ahead, || {
                format!(
                    "{name}: {} granted, {} were ahead",
                    entry.overtaken, entry.ahead
                )
            })?;
        }
        Ok(())
    }

    /// Checks that the head of the queue does not fit after a step that settles.
    fn head_does_not_fit(&self, seen: &Observed<'_>) -> Result<(), String> {
        let settled = !matches!(seen.command, Command::Inspect) && !refused_early(seen.reply);
        let Some(spec) = seen.after.spec.filter(|_| settled) else {
            return Ok(());
        };
        let holders = seen.after.holders.iter();
        let used: u32 = holders.map(|h| weight(spec, h.mode)).sum();
        let head = seen.after.waiters.iter().find(|w| !w.unreachable);
        ensure(
            head.is_none_or(|w| weight(spec, w.mode) > spec.capacity() - used),
            || "the head waits although it fits".to_owned(),
        )
    }

    /// Checks that tokens number the epochs.
    fn tokens(&mut self, seen: &Observed<'_>) -> Result<(), String> {
        if seen.key.now >= self.kept_until && seen.before.token.is_none() {
            self.last_token = 0;
        }
        let token = seen.after.token.map_or(0, leasehold_api::FencingToken::get);
        ensure(token >= self.last_token, || {
            "the token decreased".to_owned()
        })?;
        let joined = seen.before.holders.iter().any(|h| h.mode == Mode::Shared);
        let granted = Self::granted(seen);
        let floor = |h: &HolderView| self.floors.get(operation_part(&h.label)).copied();
        let above_floor = |h: &HolderView| floor(h).is_none_or(|floor| h.token.get() > floor);
        let has_epoch = !seen.before.holders.is_empty() || granted.iter().any(|h| above_floor(h));
        for new in granted {
            let shares = new.mode == Mode::Shared && joined;
            let fresh = new.token.get() > self.last_token && new.token.get() >= seen.key.now;
            ensure(shares || fresh, || {
                format!("{} has the old token {}", new.label, new.token)
            })?;
            let joins =
                new.mode == Mode::Shared && has_epoch && floor(new) == Some(new.token.get());
            ensure(above_floor(new) || joins, || {
                format!("{} is not above {:?}", new.token, floor(new))
            })?;
        }
        let highest = self.floors.values().max().copied().unwrap_or_default();
        let reads = |h: &HolderView| h.mode == Mode::Shared;
        let only_readers = [seen.before, seen.after].map(|it| it.holders.iter().all(reads));
        if joined && only_readers == [true; 2] && highest <= self.last_token && !converts(seen) {
            ensure(token == self.last_token || self.all_left(seen), || {
                "overlapping readers have different tokens".to_owned()
            })?;
        }
        let semaphore = seen.after.spec.is_some_and(|s| s.kind() == Kind::Semaphore);
        let tokens: BTreeSet<_> = seen.after.holders.iter().map(|h| h.token).collect();
        let holders = seen.after.holders.len();
        let epochs = if semaphore { holders } else { holders.min(1) };
        ensure(tokens.len() == epochs, || format!("tokens {tokens:?}"))?;
        self.last_token = token;
        Ok(())
    }

    /// Whether no earlier holder is left.
    fn all_left(&self, seen: &Observed<'_>) -> bool {
        !seen.after.holders.iter().any(|h| existed(seen, h))
    }

    /// Checks that the reply matches the state after the step.
    fn reply(&self, seen: &Observed<'_>) -> Result<(), String> {
        let spec = seen.after.spec.or(seen.before.spec);
        let Some((spec, op)) = spec.zip(operation(seen.command)) else {
            return Ok(());
        };
        let name = holder_name(spec.kind(), op);
        let view = holder(seen.after, &name).map(|h| (h.token, h.remaining));
        let reported = match seen.reply {
            Reply::Acquire(AcquireReply::Acquired(it)) | Reply::Poll(PollReply::Acquired(it)) => {
                Some((it.token, it.remaining))
            }
            Reply::Renew(RenewReply::Renewed { token, remaining }) => Some((*token, *remaining)),
            _ => None,
        };
        ensure(reported.is_none() || reported == view, || {
            format!("the reply has {reported:?}, the inspection {view:?}")
        })?;
        if let Reply::Acquire(AcquireReply::Queued(it)) | Reply::Poll(PollReply::Queued(it)) =
            seen.reply
        {
            ensure(it.poll_after <= spec.waiter_lease() / 3, || {
                format!("poll_after is {:?}", it.poll_after)
            })?;
        }
        let reads = holder(seen.before, &name).is_some_and(|h| h.mode == Mode::Shared);
        let wants = matches!(seen.command, Command::Acquire(r) if r.mode == Mode::Exclusive);
        let waits = matches!(seen.reply, Reply::Acquire(AcquireReply::Queued(_)));
        ensure(
            !(reads && wants && waits) || self.live.contains(&op),
            || "a reader waits for itself".to_owned(),
        )
    }

    /// Checks that a command changes no holder of another owner.
    fn others_untouched(&self, seen: &Observed<'_>) -> Result<(), String> {
        let own = operation(seen.command)
            .zip(seen.before.spec)
            .map(|(op, spec)| holder_name(spec.kind(), op));
        for was in &seen.before.holders {
            let name = owner_part(&was.label);
            if forces(seen) || own.as_deref() == Some(name) {
                continue;
            }
            let is = holder(seen.after, name).ok_or_else(|| format!("{name} lost its hold"))?;
            let mut waiters = seen.before.waiters.iter();
            let nested = waiters.any(|w| owner_part(&w.label) == name);
            let same = (is.mode, is.revoked) == (was.mode, was.revoked)
                && (nested || (is.holds, is.remaining) == (was.holds, was.remaining));
            ensure(same, || format!("{name} was {was:?} and is {is:?}"))?;
        }
        Ok(())
    }

    /// Records the allowed ends of holders and waiters that this step created or extended.
    fn record_ends(&mut self, seen: &Observed<'_>) {
        let now = seen.key.now;
        if let (Command::Acquire(request), Reply::Acquire(reply)) = (seen.command, seen.reply) {
            let name = label(request.operation);
            let known = self.live.contains(&request.operation);
            match reply {
                AcquireReply::Queued(_) if !known => {
                    let until = request.wait.and_then(|wait| wait.wait_until);
                    let until = until.map(ServerTime::as_micros);
                    let end = now + micros(request.spec.waiter_lease());
                    let entry = self.entries.entry(name).or_default();
                    *entry = Entry {
                        waiter_end: until.map_or(end, |until| end.min(until)),
                        until,
                        lease: micros(request.lease),
                        ahead: seen.before.waiter_count,
                        ..Entry::default()
                    };
                }
                AcquireReply::Acquired(_) if !known => {
                    let holder = holder_name(request.spec.kind(), request.operation);
                    self.allow(holder, now + micros(request.lease));
                }
                _ => {}
            }
        }
        if let (Command::Poll(request), Some(spec)) = (seen.command, seen.before.spec) {
            let name = label(request.operation);
            let mut waited = seen.before.waiters.iter();
            if waited.any(|w| operation_part(&w.label) == name)
                && let Some(entry) = self.entries.get_mut(&name)
            {
                let end = now + micros(spec.waiter_lease());
                entry.waiter_end = entry.until.map_or(end, |until| end.min(until));
            }
        }
        if let (Command::Renew(request), Reply::Renew(RenewReply::Renewed { .. })) =
            (seen.command, seen.reply)
            && let Some(spec) = seen.before.spec.or(seen.after.spec)
        {
            let holder = holder_name(spec.kind(), request.operation);
            self.allow(holder, now + micros(request.lease));
        }
    }

    fn allow(&mut self, holder: String, end: u64) {
        let allowed = self.allowed.entry(holder).or_default();
        *allowed = end.max(*allowed);
    }

    /// Checks that no holder lasts longer than its lease or waiter lease allows, and that none is
    /// shortened.
    fn remaining(&mut self, seen: &Observed<'_>) -> Result<(), String> {
        let now = seen.key.now;
        let spec = seen.after.spec.unwrap_or(seen.key.spec);
        let poll = micros(spec.waiter_lease() / 3).min(1_000_000);
        for view in &seen.after.holders {
            let name = owner_part(&view.label).to_owned();
            let queued = seen.before.waiters.iter();
            for waiter in queued.filter(|w| owner_part(&w.label) == name) {
                let waiter = operation_part(&waiter.label);
                let mut still = seen.after.waiters.iter();
                if still.all(|w| operation_part(&w.label) != waiter) {
                    let end = self.entries.get(waiter).map_or(0, |entry| {
                        entry.waiter_end.min(now + entry.lease.max(2 * poll))
                    });
                    self.allow(name.clone(), end);
                }
            }
            let (end, allowed) = (end(now, view.remaining), self.allowed.get(&name));
            ensure(Some(&end) <= allowed, || {
                format!("{name} ends at {end}, allowed is {allowed:?}")
            })?;
            ensure(end > now, || format!("{name} is listed after its end"))?;
            if let Some(was) = holder(seen.before, &name).filter(|_| existed(seen, view)) {
                ensure(view.remaining >= was.remaining, || {
                    format!("{name} was shortened")
                })?;
            }
        }
        // A later holder of the same owner starts anew.
        let here = owners(seen.after);
        self.allowed.retain(|name, _| here.contains(name.as_str()));
        Ok(())
    }

    /// Checks the expiry, the marks and the order of the waiters.
    fn waiters(&mut self, seen: &Observed<'_>) -> Result<(), String> {
        let now = seen.key.now;
        let was_marked = |name: &str| {
            let mut waiters = seen.before.waiters.iter();
            waiters.any(|w| operation_part(&w.label) == name && w.unreachable)
        };
        for view in &seen.after.waiters {
            let name = operation_part(&view.label);
            let Some(entry) = self.entries.get_mut(name) else {
                return Err(format!("{name} waits but was never queued"));
            };
            ensure(end(now, view.waiter_remaining) <= entry.waiter_end, || {
                format!("the waiter of {name} lasts too long")
            })?;
            let polled = operation(seen.command).is_some_and(|op| label(op) == name)
                && matches!(seen.command, Command::Poll(_));
            if view.unreachable && (!was_marked(name) || polled) {
                entry.unreachable_marks += 1;
            }
            ensure(entry.unreachable_marks <= 2, || {
                format!("{name} was marked too often")
            })?;
        }
        ensure(
            kept(seen.before, seen.after) == kept(seen.after, seen.before),
            || "the queue changed its order".to_owned(),
        )
    }

    /// Checks conversions: a holder upgrades at most once while others wait.
    fn upgrade(&mut self, seen: &Observed<'_>) -> Result<(), String> {
        let here = owners(seen.after);
        self.upgrades.retain(|name, _| here.contains(name.as_str()));
        let (Command::Convert(request), Reply::Convert(ConvertReply::Converted { .. })) =
            (seen.command, seen.reply)
        else {
            return Ok(());
        };
        let name = holder_name(Kind::RwLock, request.operation);
        let was = holder(seen.before, &name).map(|h| h.mode);
        let epoch = holder(seen.before, &name).map(|h| h.token);
        let acted = was != holder(seen.after, &name).map(|h| h.mode);
        ensure(!acted || epoch <= Some(request.expected), || {
            format!(
                "a conversion of epoch {} took effect in {epoch:?}",
                request.expected
            )
        })?;
        if request.to != Mode::Exclusive || was != Some(Mode::Shared) {
            return Ok(());
        }
        ensure(seen.after.holder_count == 1, || {
            "not the sole holder".to_owned()
        })?;
        if seen.after.waiter_count == 0 {
            return Ok(());
        }
        let upgrades = self.upgrades.entry(name).or_default();
        *upgrades += 1;
        ensure(*upgrades <= 1, || {
            "a second upgrade while others wait".to_owned()
        })
    }

    /// Checks that each hold and waiter belongs to one attempt. No removed attempt may return.
    fn one_effect(&mut self, seen: &Observed<'_>) -> Result<(), String> {
        self.live
            .extend(operation(seen.command).filter(|_| answered_live(seen.reply)));
        let live = self.live.iter().copied();
        let still: BTreeSet<_> = live.filter(|op| alive(seen.key, *op)).collect();
        let named = operation(seen.command);
        let lost = self
            .live
            .difference(&still)
            .find(|op| !forces(seen) && named != Some(**op) && alive(seen.was, **op));
        ensure(lost.is_none(), || format!("{lost:?} was lost"))?;
        let known = still.len();
        let holds: u32 = seen.after.holders.iter().map(|h| h.holds).sum();
        let shown = holds as usize + seen.after.waiters.len();
        ensure(known == shown, || {
            format!("{known} attempts are live, {shown} holds and waiters are shown")
        })?;
        let gone: Vec<_> = self.live.difference(&still).copied().collect();
        self.gone.extend(gone);
        self.live = still;
        let back = self.gone.iter().find(|op| alive(seen.key, **op));
        ensure(back.is_none(), || format!("{back:?} is live again"))
    }

    /// Checks that the state is kept for as long as it is needed.
    fn stored_end(&mut self, seen: &Observed<'_>) -> Result<(), String> {
        let now = seen.key.now;
        let settings = seen.key.settings;
        let watermarks = match seen.command {
            Command::Acquire(_) => !refused_early(seen.reply),
            Command::Release(_) => true,
            _ => false,
        };
        if watermarks {
            let kept = now + 2 * micros(settings.delivery_window);
            self.kept_until = self.kept_until.max(kept);
        }
        for view in &seen.after.holders {
            let kept = end(now, view.remaining) + micros(settings.retention);
            self.kept_until = self.kept_until.max(kept);
        }
        for view in &seen.after.waiters {
            self.kept_until = self.kept_until.max(end(now, view.waiter_remaining));
        }
        let stored = seen.key.state.stored_end();
        ensure(
            now >= self.kept_until || stored >= ServerTime::from_micros(self.kept_until),
            || format!("kept until {stored:?}, not until {}", self.kept_until),
        )
    }
}

/// Whether this holder existed before the step.
fn existed(seen: &Observed<'_>, view: &HolderView) -> bool {
    let name = owner_part(&view.label);
    holder(seen.before, name).is_some_and(|was| was.label == view.label)
}

fn forces(seen: &Observed<'_>) -> bool {
    matches!(seen.command, Command::ForceRelease(_))
}

/// Whether the step may have started an epoch among readers.
fn converts(seen: &Observed<'_>) -> bool {
    matches!(seen.command, Command::Convert(_))
}

fn floor(command: &Command) -> Option<u64> {
    match command {
        Command::Acquire(request) => request.floor.map(leasehold_api::FencingToken::get),
        _ => None,
    }
}

fn answered_live(reply: &Reply) -> bool {
    matches!(
        reply,
        Reply::Acquire(AcquireReply::Acquired(_) | AcquireReply::Queued(_))
            | Reply::Poll(PollReply::Acquired(_) | PollReply::Queued(_))
    )
}

/// Whether an acquire was refused before settling.
fn refused_early(reply: &Reply) -> bool {
    use leasehold_api::Refused::FloorTooHigh;
    matches!(
        reply,
        Reply::Acquire(AcquireReply::TooLate | AcquireReply::Refused(FloorTooHigh))
    )
}

/// Whether an attempt holds or waits, by releasing it in a copy of the key.
fn alive(key: &Key, operation: Operation) -> bool {
    !matches!(key.clone().release(operation), ReleaseReply::NotHeld(_))
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// The labels of the waiters that are in both inspections, in the order of the first.
fn kept<'a>(inspection: &'a InspectReply, other: &InspectReply) -> Vec<&'a str> {
    let there = other.waiters.iter().map(|w| operation_part(&w.label));
    let there: BTreeSet<_> = there.collect();
    let names = inspection.waiters.iter().map(|w| operation_part(&w.label));
    names.filter(|name| there.contains(name)).collect()
}
