//! S1, S2 and rules 11, 15: the clients' guards, compared with the servers and with each other.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::machine::Command;
use leasehold_api::{Key, Label, Mode, Operation, OwnerId, SessionId};
use leasehold_sim::tools::{ClientEvent, Event};
use litemap::LiteMap;
use smallvec::SmallVec;

use crate::checker::coverage::Situation;
use crate::checker::duties::{Duties, Waiting};
use crate::checker::findings::{Findings, Model, client_name};
use crate::checker::step::{Name, Set, Step, holder_of, name_of, names, waiter_of};

/// A guard of any kind of lock, as the checker reads it.
pub(crate) trait TrackableGuard: Send + Sync {
    /// The remaining time of its validity on its client's clock, or zero.
    fn valid_for(&self) -> Duration;
    /// The token that it gives to its user.
    fn token(&self) -> u64;
}

/// Identifies a tracked guard.
pub(crate) type GuardId = u64;

/// A guard in a user's hands.
#[derive(Clone)]
pub(crate) struct Holding {
    pub(crate) client: usize,
    /// The label of its lock client. A machine has another one after a shutdown.
    pub(crate) label: Label,
    pub(crate) key: Key,
    pub(crate) mode: Mode,
    /// Guards of one owner never conflict.
    pub(crate) owner: u64,
    pub(crate) capacity: u32,
    /// How long its client must have been healthy for the guard to be still valid; `None` if the
    /// guard may be lost anyway.
    pub(crate) kept: Option<Duration>,
    pub(crate) guard: Arc<dyn TrackableGuard>,
}

impl std::fmt::Debug for Holding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let client = client_name(self.client);
        write!(f, "{client} holds {:?} {:?}", self.key, self.mode)
    }
}

/// The state of a guard at one instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuardReading {
    pub(crate) id: GuardId,
    pub(crate) valid_for: Duration,
    /// 0 while its user converts the guard.
    pub(crate) token: u64,
}

#[derive(Debug)]
struct TrackedGuard {
    holding: Holding,
    /// The operation that holds, if a server granted one.
    operation: Option<Name>,
    since: Duration,
    /// When the guard was last read as valid; `None` once it was read as lost.
    valid: Option<Duration>,
    /// Its deadline at the last reading, on the true timeline.
    until: Duration,
    /// The token that it last gave to its user.
    token: u64,
}

/// An operation that holds, or has held.
#[derive(Clone, Copy, Debug)]
struct Granted {
    /// The id of the holder within its session.
    holder: u64,
    /// Whether a release of it has arrived.
    released: bool,
}

/// A hold at a server.
#[derive(Clone, Debug)]
struct AtServer {
    client: usize,
    key: Key,
    /// The id of the holder within its session.
    id: u64,
    /// On the true timeline.
    end: Duration,
    /// Whether a user received a guard of it.
    taken: bool,
    revoked: bool,
    /// The tokens that it has had, oldest first. A conversion starts a new epoch.
    tokens: SmallVec<[u64; 2]>,
}

/// Guards in users' hands.
pub(crate) type InUse = SmallVec<[(GuardId, Arc<dyn TrackableGuard>); 4]>;

#[derive(Debug, Default)]
pub(crate) struct Guards {
    next: GuardId,
    held: LiteMap<GuardId, TrackedGuard>,
    at_server: LiteMap<Name, AtServer>,
    granted: LiteMap<Name, Granted>,
    waiting: Waiting,
    sessions: LiteMap<SessionId, usize>,
    /// The label of each session that has asked for a lock.
    labels: LiteMap<SessionId, Label>,
    /// The labels of the lock clients that are shut down.
    shut_down: Vec<Label>,
    /// How much faster a client's clock runs than true time, in parts per million.
    rates: LiteMap<usize, i32>,
    /// Clients whose clocks have jumped or changed their rate.
    uneven: Set<usize>,
    /// Clients whose clocks have jumped. With the next reply, they take the jump for a step of the
    /// server's clock.
    jumped: Set<usize>,
}

impl Guards {
    /// Records which operations hold after a step, and until when.
    pub(crate) fn step(&mut self, step: &Step<'_>, found: &mut Findings) {
        if let Some(operation) = step.own {
            let client = self.sessions.entry(operation.session);
            client.or_insert(step.client);
        }
        if let Command::Acquire(request) = step.command {
            let label = self.labels.entry(request.operation.session);
            label.or_insert_with(|| request.label.clone());
        }
        self.release_in_use(step, found);
        for name in step.before.holders.iter().flat_map(names) {
            if holder_of(step.after, name).is_none() {
                self.at_server.remove(&name);
            }
        }
        self.follow_waiters(step);
        for holder in &step.after.holders {
            let left = holder.end.saturating_since(step.now);
            for name in names(holder) {
                let granted = self.granted.entry(name);
                granted.or_insert(Granted {
                    holder: holder.id,
                    released: false,
                });
                let hold = self.at_server.entry(name);
                let hold = hold.or_insert_with(|| AtServer {
                    client: self.sessions.get(&name.0).copied().unwrap_or(0),
                    key: step.key.clone(),
                    id: holder.id,
                    end: Duration::ZERO,
                    taken: false,
                    revoked: false,
                    tokens: SmallVec::new(),
                });
                hold.end = step.at + left;
                hold.revoked = holder.revoked;
                let token = holder.token.get();
                if hold.tokens.last() != Some(&token) {
                    hold.tokens.push(token);
                }
            }
        }
    }

    fn follow_waiters(&mut self, step: &Step<'_>) {
        for waiter in &step.before.waiters {
            let name = name_of(waiter.operation);
            if waiter_of(step.after, name).is_none() {
                self.waiting.remove(&name);
            }
        }
        for waiter in &step.after.waiters {
            let name = name_of(waiter.operation);
            let client = self.client_of(&name.0).unwrap_or(0);
            let end = step.at + waiter.end.saturating_since(step.now);
            let waits = self.waiting.entry(name);
            let waits = waits.or_insert_with(|| (client, end, step.key.clone()));
            (waits.0, waits.1) = (client, end);
        }
    }

    /// Records that the lock client with this label is shut down: it releases all its holds.
    pub(crate) fn shut_down(&mut self, label: Label) {
        self.shut_down.push(label);
    }

    /// Rule 11: a hold is released only by its user, or by a shutdown.
    fn release_in_use(&mut self, step: &Step<'_>, found: &mut Findings) {
        let Command::Release(request) = step.command else {
            return;
        };
        let operation = name_of(request.operation);
        let Some(granted) = self.granted.get_mut(&operation) else {
            return;
        };
        granted.released = true;
        let holder = granted.holder;
        let mut held = self.held.iter_mut().map(|(_, held)| held);
        let Some(index) = held.position(|held| held.operation == Some(operation)) else {
            return;
        };
        // An owner took several holds at once, and nobody can tell which guard has which. So this guard has another hold.
        let used = |name| self.held.values().any(|held| held.operation == Some(name));
        let others = self.granted.iter().filter(|(name, other)| {
            name.0 == operation.0 && other.holder == holder && !other.released && !used(**name)
        });
        // A server that lost its data may have only the one that is released.
        let other = others.max_by_key(|(name, _)| self.at_server.contains_key(*name));
        let other = other.map(|(name, _)| *name);
        if let Some((_, held)) = self.held.iter_mut().nth(index) {
            if other.is_some() {
                held.operation = other;
            } else if !self.shut_down.contains(&held.holding.label) {
                let text = format!("a hold in use was released: {:?}", held.holding);
                found.add("rule 11", text);
            }
        }
    }

    pub(crate) fn event(&mut self, client: Option<usize>, event: &Event) {
        let (Some(client), Event::Client(event)) = (client, event) else {
            return;
        };
        match event {
            ClientEvent::ClockRate { ppm } => {
                self.uneven.insert(client, ());
                self.rates.insert(client, *ppm);
            }
            ClientEvent::ClockJumped { .. } => {
                self.uneven.insert(client, ());
                self.jumped.insert(client, ());
            }
            _ => {}
        }
    }

    /// Moves the ends at the server on the true timeline, because the server's clock has another time
    /// now.
    pub(crate) fn shift_ends(&mut self, forward: bool, by: Duration) {
        let holds = self.at_server.iter_mut().map(|(_, hold)| &mut hold.end);
        let waiters = self.waiting.iter_mut().map(|(_, (_, end, _))| end);
        for end in holds.chain(waiters) {
            *end = match forward {
                true => end.saturating_sub(by),
                false => *end + by,
            };
        }
    }

    /// The client of a session that has sent a command.
    pub(crate) fn client_of(&self, session: &SessionId) -> Option<usize> {
        self.sessions.get(session).copied()
    }

    pub(crate) const fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// Converts a duration on a client's clock to true time.
    fn to_true_time(&self, client: usize, span: Duration) -> Duration {
        let ppm = self.rates.get(&client).copied().unwrap_or(0);
        span.div_f64(1.0 + f64::from(ppm) / 1e6)
    }

    /// Starts to track a guard that a user received.
    pub(crate) fn track(&mut self, at: Duration, holding: Holding) -> GuardId {
        self.next += 1;
        let labels = &self.labels;
        let mine = |(name, at): &(&Name, &mut AtServer)| {
            let label = labels.get(&name.0);
            at.key == holding.key && label == Some(&holding.label) && !at.taken
        };
        // A client never returns a guard for an older operation. If an owner has several at once, any will do.
        let newest = self
            .at_server
            .iter_mut()
            .filter(mine)
            .max_by_key(|((_, sequence), _)| *sequence);
        let operation = newest.map(|(name, at)| {
            at.taken = true;
            *name
        });
        let held = TrackedGuard {
            holding,
            operation,
            since: at,
            valid: Some(at),
            until: at,
            token: 0,
        };
        self.held.insert(self.next, held);
        self.next
    }

    /// The operation that holds a tracked guard, as long as the server has it.
    pub(crate) fn operation(&self, id: GuardId) -> Option<Operation> {
        let (session, sequence) = self.held.get(&id)?.operation?;
        let hold = self.at_server.get(&(session, sequence))?;
        // The id is the owner, but for semaphores. There the server ignores the owner.
        let owner = OwnerId::from_u64(hold.id);
        Some(Operation {
            session,
            sequence,
            owner,
        })
    }

    /// Stops tracking a guard, because its user releases or drops it.
    pub(crate) fn untrack(&mut self, id: GuardId) {
        self.held.remove(&id);
    }

    /// Records that the user converted the guard.
    pub(crate) fn set_mode(&mut self, id: GuardId, mode: Mode) {
        if let Some(held) = self.held.get_mut(&id) {
            held.holding.mode = mode;
        }
    }

    /// Returns the tracked guards, to be [read](GuardReading) and [checked](Self::check).
    pub(crate) fn in_use(&self) -> InUse {
        let held = self.held.iter();
        held.map(|(id, held)| (*id, Arc::clone(&held.holding.guard)))
            .collect()
    }

    /// Whether a client holds anything at a server.
    pub(crate) fn holds(&self, client: usize, at: Duration) -> bool {
        let mut all = self.at_server.values();
        all.any(|hold| hold.client == client && hold.end > at)
    }

    /// Whether a client waits for anything at a server.
    pub(crate) fn has_waiter(&self, client: usize, at: Duration) -> bool {
        let mut waiters = self.waiting.values();
        waiters.any(|(owner, end, _)| *owner == client && *end > at)
    }

    /// Whether a client may have given up a release before it was acknowledged. Its clock may have
    /// jumped past the time at which the hold expires anyway.
    pub(crate) fn may_have_given_up(&self, client: usize) -> bool {
        self.jumped.contains_key(&client)
    }

    /// Returns the live holds and waiters at the servers, each with its client, which can't have given it up.
    pub(crate) fn left_by(&self, at: Duration) -> Vec<(usize, String)> {
        let holds = self.at_server.iter().filter(|(_, hold)| hold.end > at);
        let holds = holds.map(|((_, sequence), hold)| {
            let text = format!("hold {sequence} of {:?} until {:?}", hold.key, hold.end);
            (hold.client, text)
        });
        let waiters = self.waiting.iter().filter(|(_, (_, end, _))| *end > at);
        let waiters = waiters.map(|((_, sequence), (client, end, _))| {
            (*client, format!("waiter {sequence} until {end:?}"))
        });
        let all = holds.chain(waiters);
        all.filter(|(client, _)| !self.may_have_given_up(*client))
            .collect()
    }

    /// Returns a hold of a client on a key that belongs to no tracked guard.
    pub(crate) fn leaked(&self, client: usize, key: &Key, at: Duration) -> Option<Name> {
        let used = |name| self.held.values().any(|held| held.operation == Some(name));
        let mut holds = self.at_server.iter();
        let hold = holds.find(|(name, hold)| {
            hold.client == client && hold.key == *key && hold.end > at && !used(**name)
        });
        hold.map(|(name, _)| *name)
    }

    /// Returns a waiter of a client for a key.
    pub(crate) fn waits(&self, client: usize, key: &Key, at: Duration) -> Option<Name> {
        let mut waiters = self.waiting.iter();
        let waiter =
            waiters.find(|(_, (owner, end, what))| *owner == client && *end > at && what == key);
        waiter.map(|(name, _)| *name)
    }

    /// Whether a client has a tracked guard whose hold is gone at the server.
    pub(crate) fn overran(&self, client: usize, at: Duration) -> bool {
        self.held.values().any(|held| {
            let end = held.operation.and_then(|name| self.at_server.get(&name));
            held.holding.client == client && end.is_none_or(|hold| hold.end <= at)
        })
    }

    /// Checks S1 and S2 at one instant.
    pub(crate) fn check(
        &self,
        at: Duration,
        readings: &[GuardReading],
        model: Model,
        found: &mut Findings,
    ) {
        let valid: SmallVec<[(&TrackedGuard, &GuardReading); 4]> = readings
            .iter()
            .filter(|reading| !reading.valid_for.is_zero())
            .filter_map(|reading| Some((self.held.get(&reading.id)?, reading)))
            .collect();
        let overlap = overlap(&valid);
        if model == Model::Outside {
            if overlap.is_some() {
                found.reached(Situation::Overlap);
            }
            return;
        }
        if let Some(text) = overlap {
            found.add("S1", text);
        }
        for (held, reading) in &valid {
            self.not_after(at, held, reading, found);
        }
    }

    /// Rule 15: a valid guard gives its user a token that its holder has or had, and never an older
    /// one than before.
    fn token(&mut self, reading: &GuardReading, found: &mut Findings) {
        let Some(held) = self.held.get_mut(&reading.id) else {
            return;
        };
        let before = std::mem::replace(&mut held.token, reading.token);
        let hold = held.operation.and_then(|name| self.at_server.get(&name));
        let had = hold.is_none_or(|hold| hold.tokens.contains(&reading.token));
        if !had || reading.token < before {
            let text = format!(
                "{:?} gives token {} after {before}, its holder had {:?}",
                held.holding,
                reading.token,
                hold.map(|hold| &hold.tokens)
            );
            found.add("rule 15", text);
        }
    }

    /// Checks that no guard is lost without a reason.
    ///
    /// A guard is not lost before its reported deadline while the server has its holder. A renewed
    /// guard is not lost at all while its client and the server are healthy.
    pub(crate) fn kept(
        &mut self,
        at: Duration,
        readings: &[GuardReading],
        duties: &Duties,
        found: &mut Findings,
    ) {
        for reading in readings.iter().filter(|reading| reading.token > 0) {
            let Some(client) = self.held.get(&reading.id).map(|held| held.holding.client) else {
                continue;
            };
            let until = at + self.to_true_time(client, reading.valid_for);
            if !reading.valid_for.is_zero() {
                self.token(reading, found);
            }
            let Some(held) = self.held.get_mut(&reading.id) else {
                continue;
            };
            if !reading.valid_for.is_zero() {
                if held.valid.is_none() {
                    let text = format!("{:?} is valid again after its loss", held.holding);
                    found.add("S2", text);
                }
                held.valid = Some(at);
                held.until = until;
                continue;
            }
            let Some(valid) = held.valid.take() else {
                continue;
            };
            if self.shut_down.contains(&held.holding.label) {
                continue;
            }
            let hold = held.operation.and_then(|name| self.at_server.get(&name));
            let stands = hold.is_some_and(|hold| hold.end > at && !hold.revoked);
            if stands && at < held.until && !self.uneven.contains_key(&client) {
                let text = format!(
                    "{:?} was lost before {:?}, but is live at the server",
                    held.holding, held.until
                );
                found.add("renewal", text);
            }
            let Some(kept) = held.holding.kept else {
                continue;
            };
            let healthy = duties.healthy_since(client);
            let well = healthy.is_some_and(|since| since.max(held.since) + kept <= valid);
            if well && !self.jumped.contains_key(&client) {
                let text = format!("{:?} was lost without a fault", held.holding);
                found.add("renewal", text);
            }
        }
    }

    /// S2: a guard's deadline is not later than the server's expiry.
    fn not_after(
        &self,
        at: Duration,
        held: &TrackedGuard,
        reading: &GuardReading,
        found: &mut Findings,
    ) {
        let Some(operation) = held.operation else {
            return found.add("S2", format!("no server granted: {:?}", held.holding));
        };
        let deadline = at + self.to_true_time(held.holding.client, reading.valid_for);
        let end = self.at_server.get(&operation).map(|hold| hold.end);
        if end.is_none_or(|end| deadline > end) {
            let text = format!(
                "{:?} until {deadline:?}, but at the server until {end:?}",
                held.holding
            );
            found.add("S2", text);
        }
    }
}

/// Describes two conflicting guards that are valid at once, if there are any.
fn overlap(valid: &[(&TrackedGuard, &GuardReading)]) -> Option<String> {
    for (n, (one, reading)) in valid.iter().enumerate() {
        let others = valid[n + 1..]
            .iter()
            .filter(|(other, _)| other.holding.key == one.holding.key)
            .filter(|(other, _)| other.holding.owner != one.holding.owner);
        let mut permits = match one.holding.mode {
            Mode::Permits(permits) => permits,
            _ => 0,
        };
        for (other, also) in others {
            let conflict = match (one.holding.mode, other.holding.mode) {
                (Mode::Exclusive, _) | (_, Mode::Exclusive) => true,
                (_, Mode::Permits(more)) => {
                    permits += more;
                    permits > one.holding.capacity
                }
                _ => false,
            };
            if conflict {
                return Some(format!(
                    "{:?} (token {}) and {:?} (token {}) are valid at once",
                    one.holding, reading.token, other.holding, also.token
                ));
            }
        }
    }
    None
}
