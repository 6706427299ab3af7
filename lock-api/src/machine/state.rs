//! What is remembered about a key, and the small changes that everything else is made of.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bounds::{CHECK_EARLY, SCAN_INTERVAL, STAGGER_STEPS};
use crate::id::{FencingToken, Label, Operation, SessionId};
use crate::machine::{Env, Inconsistent, Settings};
use crate::reply::{Acquired, Queued, TenureView, Why};
use crate::request::{Kind, LockSpec, Mode};
use crate::time::{ServerTime, micros};

/// Everything about one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// What the key was last used as; binding while it has a tenure or a place.
    pub(super) spec: Option<LockSpec>,
    /// The last token granted; 0 before the first.
    pub(super) token: u64,
    /// When the state as a whole may be forgotten.
    pub(super) stored_end: ServerTime,
    /// No tenure ends before this.
    pub(super) earliest: ServerTime,
    /// When the ends of all tenures were last looked at.
    pub(super) last_scan: ServerTime,
    pub(super) next_ticket: u64,
    /// Sum of the tenures' weights.
    pub(super) used: u32,
    /// Number of places that are marked away.
    pub(super) away: u32,
    pub(super) tenures: BTreeMap<Holder, Tenure>,
    /// By ticket.
    pub(super) places: BTreeMap<u64, Place>,
    /// Ticket of each queued attempt.
    pub(super) tickets: BTreeMap<(SessionId, u64), u64>,
    pub(super) marks: BTreeMap<SessionId, Mark>,
}

/// Whose tenure it is: (session, owner), or for a semaphore (session, sequence).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Holder {
    pub(super) session: SessionId,
    pub(super) id: u64,
}

/// An owner's time on the key, from its first hold to the end of its last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tenure {
    /// In the order in which they were made; never empty.
    pub(super) holds: Vec<Hold>,
    pub(super) end: ServerTime,
    /// Of a semaphore, whose tenures are periods of their own: the tenure's token. 0 of any other
    /// kind, where the key's token counts.
    pub(super) token: u64,
    pub(super) label: Label,
    /// May no longer be extended.
    pub(super) revoked: bool,
    /// Has upgraded once while others waited.
    pub(super) upgraded: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) sequence: u64,
    pub(super) mode: Mode,
}

/// A waiter's entry in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) operation: Operation,
    pub(super) mode: Mode,
    pub(super) label: Label,
    pub(super) floor: Option<FencingToken>,
    pub(super) end: ServerTime,
    pub(super) until: Option<ServerTime>,
    pub(super) listening: bool,
    pub(super) away: bool,
    pub(super) away_marks: u8,
}

/// The highest sequence that an acquire or an end of a session carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) sequence: u64,
    pub(super) until: ServerTime,
    /// What became of exactly that sequence, where it is known.
    pub(super) why: Option<Why>,
}

/// Whether something that ends at `end` is over: it is, at that very instant.
pub(super) fn is_over(end: ServerTime, now: ServerTime) -> bool {
    now >= end
}

impl Tenure {
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

impl Place {
    /// Where a place refreshed at `now` ends.
    pub(super) fn end_from(
        now: ServerTime,
        waiter_lease: Duration,
        until: Option<ServerTime>,
    ) -> ServerTime {
        let end = now.saturating_add(waiter_lease);
        until.map_or(end, |until| end.min(until))
    }
}

impl State {
    /// Whether nothing is held and nobody waits, at `now`. Tokens and marks may remain.
    pub fn is_idle(&self, now: ServerTime) -> bool {
        now >= self.stored_end
            || (self.tenures.values().all(|tenure| is_over(tenure.end, now))
                && self.places.values().all(|place| is_over(place.end, now)))
    }

    /// When the state as a whole may be forgotten: covers every tenure, place and mark, and the
    /// last token for the time that it is remembered.
    pub const fn stored_end(&self) -> ServerTime {
        self.stored_end
    }

    /// Forgets everything if the stored end has passed.
    pub(super) fn forget_if_over(&mut self, now: ServerTime) {
        if now >= self.stored_end {
            *self = Self::default();
        }
    }

    /// Moves the stored end to cover `until`; further than needed, so that it moves rarely.
    pub(super) fn cover(&mut self, until: ServerTime, settings: Settings) {
        if self.stored_end < until {
            self.stored_end = until.saturating_add(settings.retention / 8);
        }
    }

    /// Covers a tenure that ends at `end`, and its token for as long as that is remembered.
    pub(super) fn cover_tenure(&mut self, end: ServerTime, settings: Settings) {
        self.cover(end.saturating_add(settings.retention), settings);
    }

    pub(super) fn holder(&self, operation: Operation) -> Holder {
        let id = match self.is_semaphore() {
            true => operation.sequence,
            false => operation.owner.as_u64(),
        };
        Holder {
            session: operation.session,
            id,
        }
    }

    /// The tenure in which `operation` holds, if it still does.
    pub(super) fn live(&self, operation: Operation, now: ServerTime) -> Option<&Tenure> {
        let tenure = self.tenures.get(&self.holder(operation))?;
        (!is_over(tenure.end, now) && tenure.has(operation.sequence)).then_some(tenure)
    }

    pub(super) fn ticket(&self, operation: Operation) -> Option<u64> {
        self.tickets
            .get(&(operation.session, operation.sequence))
            .copied()
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

    pub(super) fn token_of(&self, tenure: &Tenure) -> FencingToken {
        FencingToken::new(match self.is_semaphore() {
            true => tenure.token,
            false => self.token,
        })
    }

    /// What a tenure granted with `token` keeps of it.
    pub(super) fn own_token(&self, token: u64) -> u64 {
        match self.is_semaphore() {
            true => token,
            false => 0,
        }
    }

    fn is_semaphore(&self) -> bool {
        self.spec.is_some_and(|spec| spec.kind() == Kind::Semaphore)
    }

    pub(super) fn acquired(&self, tenure: &Tenure, now: ServerTime) -> Acquired {
        Acquired {
            token: self.token_of(tenure),
            holds: u32::try_from(tenure.holds.len()).unwrap_or(u32::MAX),
            remaining: tenure.end.saturating_since(now),
        }
    }

    pub(super) fn view(&self, tenure: &Tenure, now: ServerTime) -> TenureView {
        TenureView {
            mode: tenure.mode(),
            token: self.token_of(tenure),
            remaining: tenure.end.saturating_since(now),
        }
    }

    /// Starts a new period.
    pub(super) fn next_token(&mut self, now: ServerTime, floor: Option<FencingToken>) {
        let floor = floor.map_or(0, FencingToken::get);
        self.token = (self.token + 1).max(now.as_micros()).max(floor + 1);
    }

    /// Lets `operation` hold until `end`, in a new tenure or in its owner's.
    pub(super) fn grant(&mut self, env: Env<'_>, grant: Grant) {
        let holder = self.holder(grant.operation);
        let hold = Hold {
            sequence: grant.operation.sequence,
            mode: grant.mode,
        };
        self.cover_tenure(grant.end, env.settings);
        // Among many holders an expired one may not have been looked at yet; a grant to its owner
        // must not bring it back.
        self.drop_tenure_if_expired(holder, env.now);
        if let Some(tenure) = self.tenures.get_mut(&holder) {
            // A queued read of an owner that has come to read by another attempt.
            tenure.holds.push(hold);
            if !tenure.revoked {
                tenure.end = tenure.end.max(grant.end);
            }
            return;
        }
        let joins = self.spec.is_some_and(|spec| spec.kind() == Kind::RwLock)
            && grant.mode == Mode::Shared
            && !self.tenures.is_empty();
        // A floor above the stored token proves that a token was lost. One equal to it comes from
        // a client that has read in this very period: a new period would get those refused who
        // still read in it.
        let lost = grant.floor.is_some_and(|floor| floor.get() > self.token);
        if !joins || lost {
            self.next_token(env.now, grant.floor);
        }
        let first = self.tenures.is_empty();
        self.earliest = if first {
            grant.end
        } else {
            self.earliest.min(grant.end)
        };
        self.used += self.weight(grant.mode);
        let tenure = Tenure {
            holds: vec![hold],
            end: grant.end,
            token: self.own_token(self.token),
            label: grant.label,
            revoked: false,
            upgraded: false,
        };
        self.tenures.insert(holder, tenure);
    }

    /// Takes a tenure out, whatever it holds.
    pub(super) fn remove_tenure(&mut self, holder: Holder) -> Option<Tenure> {
        let tenure = self.tenures.remove(&holder)?;
        self.used -= self.weight(tenure.mode());
        Some(tenure)
    }

    /// Takes a tenure out if it has expired.
    fn drop_tenure_if_expired(&mut self, holder: Holder, now: ServerTime) -> Option<Tenure> {
        self.tenures
            .get(&holder)
            .is_some_and(|tenure| is_over(tenure.end, now))
            .then(|| self.remove_tenure(holder))
            .flatten()
    }

    /// Takes out the tenure of `operation`'s owner, and the operation's own place, if they have
    /// expired: a command that names an operation never finds it alive past its end.
    pub(super) fn drop_if_expired(&mut self, operation: Operation, now: ServerTime) -> Dropped {
        let mut dropped = Dropped {
            freed: false,
            own: false,
        };
        if let Some(tenure) = self.drop_tenure_if_expired(self.holder(operation), now) {
            dropped = Dropped {
                freed: true,
                own: tenure.has(operation.sequence),
            };
        }
        let place = self
            .ticket(operation)
            .filter(|ticket| is_over(self.places[ticket].end, now));
        if let Some(ticket) = place {
            dropped.own = true;
            self.remove_place(ticket);
        }
        dropped
    }

    pub(super) fn remove_place(&mut self, ticket: u64) -> Option<Place> {
        let place = self.places.remove(&ticket)?;
        self.tickets
            .remove(&(place.operation.session, place.operation.sequence));
        self.away -= u32::from(place.away);
        Some(place)
    }

    pub(super) fn mark(&self, session: SessionId, now: ServerTime) -> Option<&Mark> {
        self.marks.get(&session).filter(|mark| mark.until > now)
    }

    /// Remembers that an acquire or an end of this sequence was seen.
    pub(super) fn note(&mut self, env: Env<'_>, operation: Operation, why: Option<Why>) {
        let until = env.now.saturating_add(env.settings.horizon * 2);
        self.marks.retain(|_, mark| mark.until > env.now);
        let mark = self.marks.entry(operation.session).or_insert(Mark {
            sequence: operation.sequence,
            until,
            why,
        });
        if operation.sequence > mark.sequence {
            *mark = Mark {
                sequence: operation.sequence,
                until,
                why,
            };
        } else if operation.sequence == mark.sequence && why.is_some() {
            mark.why = why;
        }
        mark.until = until;
        self.cover(until, env.settings);
    }

    /// Why an operation that is not live is not.
    pub(super) fn why(&self, operation: Operation, now: ServerTime, expired: bool) -> Why {
        if expired {
            return Why::Expired;
        }
        self.mark(operation.session, now)
            .filter(|mark| mark.sequence == operation.sequence)
            .and_then(|mark| mark.why)
            .unwrap_or(Why::Unknown)
    }

    /// Time to the earliest change that comes by itself, at least 1 ms.
    pub(super) fn change_in(&self, now: ServerTime) -> Duration {
        let at = if self.tenures.is_empty() {
            now
        } else if self.earliest > now {
            self.earliest
        } else {
            self.last_scan.saturating_add(SCAN_INTERVAL)
        };
        at.saturating_since(now).max(Duration::from_millis(1))
    }

    /// How a place stands. The first few are told the earliest change, those behind them are
    /// staggered over the second half of the poll interval.
    pub(super) fn queued(&self, ticket: u64, now: ServerTime) -> Queued {
        let first = self.places.keys().next().copied().unwrap_or(ticket);
        let others = u64::try_from(self.places.len())
            .unwrap_or(u64::MAX)
            .saturating_sub(1);
        let ahead = u32::try_from((ticket - first).min(others)).unwrap_or(u32::MAX);
        let poll = self
            .spec
            .map_or(Duration::ZERO, |spec| spec.poll_interval());
        let check_in = if ahead < CHECK_EARLY {
            poll.min(self.change_in(now))
        } else {
            let step = u64::from(ahead % STAGGER_STEPS);
            let half = micros(poll) / 2;
            Duration::from_micros(half + step * half / u64::from(STAGGER_STEPS))
        };
        let end = self.places.get(&ticket).map_or(now, |place| place.end);
        Queued {
            ahead,
            check_in,
            place_remaining: end.saturating_since(now),
        }
    }

    /// The invariants that every step keeps.
    pub(super) fn check(&self) -> Result<(), Inconsistent> {
        let used: u64 = self
            .tenures
            .values()
            .map(|tenure| u64::from(self.weight(tenure.mode())))
            .sum();
        let away = self.places.values().filter(|place| place.away).count();
        let all = [
            (
                "used is the sum of the weights",
                used == u64::from(self.used),
            ),
            ("used is within capacity", self.used <= self.capacity()),
            ("away is counted", away == self.away as usize),
            (
                "every tenure holds",
                self.tenures.values().all(|tenure| !tenure.holds.is_empty()),
            ),
            (
                "earliest is a lower bound",
                self.tenures.values().all(|t| t.end >= self.earliest),
            ),
            (
                "every place has its ticket",
                self.places.len() == self.tickets.len(),
            ),
            (
                "the stored end covers all",
                self.needed_end() <= self.stored_end,
            ),
        ];
        Inconsistent::unless(&all)
    }

    fn needed_end(&self) -> ServerTime {
        let tenures = self.tenures.values().map(|tenure| tenure.end);
        let places = self.places.values().map(|place| place.end);
        let marks = self.marks.values().map(|mark| mark.until);
        tenures.chain(places).chain(marks).max().unwrap_or_default()
    }
}

/// A hold about to be made.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) operation: Operation,
    pub(super) mode: Mode,
    pub(super) label: Label,
    pub(super) floor: Option<FencingToken>,
    pub(super) end: ServerTime,
}

/// What [`State::drop_if_expired`] found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dropped {
    /// A tenure went.
    pub(super) freed: bool,
    /// The operation itself was what had expired.
    pub(super) own: bool,
}
