//! What the clients' guards say, checked against the servers and against each other.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::machine::Command;
use leasehold_api::{Key, Mode, Operation, SessionId};
use leasehold_sim::{ClientEvent, Event};
use litemap::LiteMap;
use smallvec::SmallVec;

use crate::checker::coverage::{Coverage, Situation};
use crate::checker::duties::{Duties, Waiting};
use crate::checker::small_map::SmallMap;
use crate::checker::step::{Step, has, waiter_of};
use crate::checker::{Findings, Model, Set, who};

/// A guard, whatever it guards.
pub(crate) trait Watched: Send + Sync {
    /// How long it says that it is valid, on its client's clock; zero if it is not.
    fn valid_for(&self) -> Duration;
    /// The token that it gives to its user.
    fn token(&self) -> u64;
}

/// Names a guard that is watched.
pub(crate) type GuardId = u64;

/// A guard in a user's hands.
#[derive(Clone)]
pub(crate) struct Holding {
    pub(crate) client: usize,
    pub(crate) key: Key,
    pub(crate) mode: Mode,
    /// Guards of one owner never conflict.
    pub(crate) owner: u64,
    pub(crate) capacity: u32,
    /// For how long its client must be well for it to be kept; `None` if nothing renews it.
    pub(crate) kept: Option<Duration>,
    pub(crate) guard: Arc<dyn Watched>,
}

impl std::fmt::Debug for Holding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let who = who(self.client);
        write!(f, "{who} holds {:?} {:?}", self.key, self.mode)
    }
}

/// What a guard said of itself at one instant, on the true timeline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    pub(crate) id: GuardId,
    pub(crate) valid_for: Duration,
    /// 0 while its user converts it.
    pub(crate) token: u64,
}

#[derive(Debug)]
struct TrackedGuard {
    holding: Holding,
    /// The operation that holds, if the server was seen to grant it.
    operation: Option<(SessionId, u64)>,
    since: Duration,
    /// When it was last seen to be valid; `None` once its loss was seen.
    valid: Option<Duration>,
    /// Until when, on the true timeline, it then said that it would be.
    until: Duration,
    /// The token that it last gave to its user.
    token: u64,
}

/// A hold at a server.
#[derive(Clone, Debug)]
struct AtServer {
    client: usize,
    key: Key,
    /// On the true timeline.
    end: Duration,
    /// Whether a guard was seen of it.
    taken: bool,
    revoked: bool,
    /// The tokens of its epochs, oldest first: it has had the last since then.
    tokens: SmallVec<[u64; 2]>,
}

/// Guards in users' hands.
pub(crate) type InUse = SmallVec<[(GuardId, Arc<dyn Watched>); 4]>;

#[derive(Debug, Default)]
pub(crate) struct Guards {
    next: GuardId,
    held: LiteMap<GuardId, TrackedGuard>,
    at_server: LiteMap<(SessionId, u64), AtServer>,
    /// Places: whose, and until when.
    waiting: Waiting,
    sessions: SmallMap<SessionId, usize, 4>,
    /// How much faster a client's clock runs than true time, in millionths.
    rates: LiteMap<usize, i32>,
    /// Clients whose clocks have jumped, and run at another rate.
    uneven: Set<usize>,
    /// Clients whose clocks have jumped: they take it for a step of the server's when they next
    /// hear of it.
    jumped: Set<usize>,
}

impl Guards {
    /// Follows the truth: which operations hold, and until when.
    pub(crate) fn step(&mut self, step: &Step<'_>, found: &mut Findings) {
        if let Some(operation) = step.operation() {
            self.sessions
                .or_insert_with(&operation.session, || step.client);
        }
        self.end_in_use(step, found);
        for holder in &step.before.holders {
            for (sequence, _) in &holder.holds {
                let after = step.after.holders.iter();
                let mut same = after.filter(|t| t.session == holder.session);
                if !same.any(|t| has(t, *sequence)) {
                    self.at_server.remove(&(holder.session, *sequence));
                }
            }
        }
        self.follow_waiters(step);
        for holder in &step.after.holders {
            let left = holder.end.saturating_since(step.now);
            for (sequence, _) in &holder.holds {
                let hold = self.at_server.entry((holder.session, *sequence));
                let hold = hold.or_insert_with(|| AtServer {
                    client: self.sessions.get(&holder.session).copied().unwrap_or(0),
                    key: step.key.clone(),
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
            let Operation {
                session, sequence, ..
            } = waiter.operation;
            if waiter_of(step.after, session, sequence).is_none() {
                self.waiting.remove(&(session, sequence));
            }
        }
        for waiter in &step.after.waiters {
            let Operation {
                session, sequence, ..
            } = waiter.operation;
            let client = self.sessions.get(&session).copied().unwrap_or(0);
            let end = step.at + waiter.end.saturating_since(step.now);
            let waits = self.waiting.entry((session, sequence));
            let waits = waits.or_insert_with(|| (client, end, step.key.clone()));
            (waits.0, waits.1) = (client, end);
        }
    }

    /// Rule 11: nobody ends a hold but its user.
    fn end_in_use(&self, step: &Step<'_>, found: &mut Findings) {
        let Command::Release(request) = step.command else {
            return;
        };
        let operation = (request.operation.session, request.operation.sequence);
        let in_use = |held: &&TrackedGuard| held.operation == Some(operation);
        if let Some(held) = self.held.values().find(in_use) {
            let text = format!("its client ended a hold in use: {:?}", held.holding);
            found.add("rule 11", text);
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

    /// Attempts that wait: whose, and until when.
    pub(crate) const fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// True time of a span on a client's clock.
    fn truly(&self, client: usize, span: Duration) -> Duration {
        let ppm = self.rates.get(&client).copied().unwrap_or(0);
        span.div_f64(1.0 + f64::from(ppm) / 1e6)
    }

    /// A guard was handed to a user.
    pub(crate) fn hold(&mut self, at: Duration, holding: Holding) -> GuardId {
        self.next += 1;
        let mine = |(_, at): &(&(SessionId, u64), &mut AtServer)| {
            at.client == holding.client && at.key == holding.key && !at.taken
        };
        // A client has one attempt at a time on a key, and never takes up an older one.
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

    /// Its user ends it, or lets go of it.
    pub(crate) fn end(&mut self, id: GuardId) {
        self.held.remove(&id);
    }

    pub(crate) fn set_mode(&mut self, id: GuardId, mode: Mode) {
        if let Some(held) = self.held.get_mut(&id) {
            held.holding.mode = mode;
        }
    }

    /// All guards in users' hands.
    pub(crate) fn in_use(&self) -> InUse {
        let held = self.held.iter();
        held.map(|(id, held)| (*id, Arc::clone(&held.holding.guard)))
            .collect()
    }

    /// Whether a client holds anything at the server, as far as was seen.
    pub(crate) fn holds(&self, client: usize, at: Duration) -> bool {
        let mut all = self.at_server.values();
        all.any(|hold| hold.client == client && hold.end > at)
    }

    /// Whether a client waits for anything at the server.
    pub(crate) fn has_waiter(&self, client: usize, at: Duration) -> bool {
        let mut waiters = self.waiting.values();
        waiters.any(|(whose, end, _)| *whose == client && *end > at)
    }

    /// Whether a client may have given up to end what it had, as one may whose clock has jumped
    /// past the moment until which it is worth the trouble.
    pub(crate) fn may_have_given_up(&self, client: usize) -> bool {
        self.jumped.contains_key(&client)
    }

    /// What stands at the server, by the client that left it there.
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
        holds.chain(waiters).collect()
    }

    /// What a client has on a key at the server that no guard in use accounts for.
    pub(crate) fn leaked(
        &self,
        client: usize,
        key: &Key,
        at: Duration,
    ) -> Option<(SessionId, u64)> {
        let used = |name| self.held.values().any(|held| held.operation == Some(name));
        let mut holds = self.at_server.iter();
        let hold = holds.find(|(name, hold)| {
            hold.client == client && hold.key == *key && hold.end > at && !used(**name)
        });
        hold.map(|(name, _)| *name)
    }

    /// Where a client waits for a key.
    pub(crate) fn waits(&self, client: usize, key: &Key, at: Duration) -> Option<(SessionId, u64)> {
        let mut waiters = self.waiting.iter();
        let waiter =
            waiters.find(|(_, (whose, end, what))| *whose == client && *end > at && what == key);
        waiter.map(|(name, _)| *name)
    }

    /// Whether a client has a guard in use whose hold is over at the server.
    pub(crate) fn overran(&self, client: usize, at: Duration) -> bool {
        self.held.values().any(|held| {
            let end = held.operation.and_then(|name| self.at_server.get(&name));
            held.holding.client == client && end.is_none_or(|hold| hold.end <= at)
        })
    }

    /// S1 and S2, at one instant.
    pub(crate) fn check(
        &self,
        at: Duration,
        said: &[Said],
        model: Model,
        seen: &mut Coverage,
        found: &mut Findings,
    ) {
        let valid: SmallVec<[(&TrackedGuard, &Said); 4]> = said
            .iter()
            .filter(|said| !said.valid_for.is_zero())
            .filter_map(|said| Some((self.held.get(&said.id)?, said)))
            .collect();
        let overlap = overlap(&valid);
        if model == Model::Outside {
            if overlap.is_some() {
                seen.reached(Situation::Overlap);
            }
            return;
        }
        if let Some(text) = overlap {
            found.add("S1", text);
        }
        for (held, said) in &valid {
            self.not_after(at, held, said, found);
        }
    }

    /// A valid guard gives its user a token that its holder has, or had before something of which
    /// it was not told yet, and never an older one than it gave before.
    fn token(&mut self, said: &Said, found: &mut Findings) {
        let Some(held) = self.held.get_mut(&said.id) else {
            return;
        };
        let before = std::mem::replace(&mut held.token, said.token);
        let hold = held.operation.and_then(|name| self.at_server.get(&name));
        let had = hold.is_none_or(|hold| hold.tokens.contains(&said.token));
        if !had || said.token < before {
            let text = format!(
                "{:?} gives {} after {before}, its holder had {:?}",
                held.holding,
                said.token,
                hold.map(|hold| &hold.tokens)
            );
            found.add("rule 15", text);
        }
    }

    /// A guard is not lost for nothing: not before the moment until which it said that it was
    /// valid, while it stands at the server; nor at all, if it is renewed, while its client and
    /// the server are well.
    pub(crate) fn kept(
        &mut self,
        at: Duration,
        said: &[Said],
        duties: &Duties,
        found: &mut Findings,
    ) {
        for said in said.iter().filter(|said| said.token > 0) {
            let Some(client) = self.held.get(&said.id).map(|held| held.holding.client) else {
                continue;
            };
            let until = at + self.truly(client, said.valid_for);
            if !said.valid_for.is_zero() {
                self.token(said, found);
            }
            let Some(held) = self.held.get_mut(&said.id) else {
                continue;
            };
            if !said.valid_for.is_zero() {
                if held.valid.is_none() {
                    let text = format!("{:?} was lost, and is valid again", held.holding);
                    found.add("S2", text);
                }
                held.valid = Some(at);
                held.until = until;
                continue;
            }
            let Some(valid) = held.valid.take() else {
                continue;
            };
            let hold = held.operation.and_then(|name| self.at_server.get(&name));
            let stands = hold.is_some_and(|hold| hold.end > at && !hold.revoked);
            if stands && at < held.until && !self.uneven.contains_key(&client) {
                let text = format!(
                    "{:?} was lost before {:?}, and stands at the server",
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
                let text = format!("{:?} was lost in good health", held.holding);
                found.add("renewal", text);
            }
        }
    }

    /// S2: what a guard says does not last longer than what the server knows.
    fn not_after(&self, at: Duration, held: &TrackedGuard, said: &Said, found: &mut Findings) {
        let Some(operation) = held.operation else {
            let text = format!("{:?}, which no server granted", held.holding);
            return found.add("S2", text);
        };
        let deadline = at + self.truly(held.holding.client, said.valid_for);
        let end = self.at_server.get(&operation).map(|hold| hold.end);
        if end.is_none_or(|end| deadline > end) {
            let text = format!(
                "{:?} until {deadline:?}, at the server until {end:?}",
                held.holding
            );
            found.add("S2", text);
        }
    }
}

/// Two that are valid at once and must not be.
fn overlap(valid: &[(&TrackedGuard, &Said)]) -> Option<String> {
    for (n, (one, said)) in valid.iter().enumerate() {
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
                    one.holding, said.token, other.holding, also.token
                ));
            }
        }
    }
    None
}
