//! The data of one simulated lock server. It is pure and synchronous, and has no clock.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use leasehold_api::machine::{self, Env, Message, Reach, Settings, State, step};
use leasehold_api::{
    ClockId, Cursor, InspectReply, Key, List, Listed, ServerTime, SessionId, Stamp,
};

use crate::record::{ServerAnswer, ServerEvent, Tail};

/// The server's clock at the start of a simulation. It is a round number of microseconds, so that a
/// token shows the time of its grant: 1000000002500000 is 2.5 s after the start.
const EPOCH: ServerTime = ServerTime::from_micros(1_000_000_000_000_000);

#[derive(Clone, Debug)]
pub(super) enum Slot {
    Lock(Box<State>),
    Foreign(String),
}

/// One lock server, in memory.
///
/// Every change is a call with the virtual time, in the order of the log. So a replay of the log
/// gives the same answers.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    clock: ClockId,
    /// The total steps of the clock, forward and back.
    pub(super) stepped: (Duration, Duration),
    pub(super) slots: BTreeMap<Key, Slot>,
    /// The number of subscriptions to each session's channel.
    pub(super) listeners: BTreeMap<SessionId, u32>,
    /// Whether the server publishes nothing, and doesn't know which sessions listen.
    pub(crate) mute: bool,
    /// Whether the server publishes, but doesn't know which sessions listen.
    pub(super) uncounted: bool,
    /// What the latest commands replaced, oldest first.
    journal: VecDeque<Undo>,
    /// The maximum length of the journal.
    journal_limit: usize,
}

/// The value of a key before a command.
#[derive(Clone, Debug)]
struct Undo {
    at: Duration,
    key: Key,
    before: Option<Slot>,
}

#[derive(Debug)]
pub(crate) struct Executed {
    pub(crate) stamp: Stamp,
    pub(crate) answer: ServerAnswer,
    pub(crate) messages: Vec<Message>,
}

impl Store {
    pub(crate) fn new(journal_limit: usize) -> Self {
        Self {
            clock: ClockId::new(1),
            stepped: (Duration::ZERO, Duration::ZERO),
            slots: BTreeMap::new(),
            listeners: BTreeMap::new(),
            mute: false,
            uncounted: false,
            journal: VecDeque::new(),
            journal_limit,
        }
    }

    pub(crate) const fn clock(&self) -> ClockId {
        self.clock
    }

    /// Returns the time of the server's clock.
    pub(crate) fn stamp(&self, elapsed: Duration) -> Stamp {
        let (forward, back) = self.stepped;
        let shown = (Duration::from_micros(EPOCH.as_micros()) + elapsed + forward)
            .saturating_sub(back)
            .as_micros();
        Stamp {
            clock: self.clock,
            at: ServerTime::from_micros(u64::try_from(shown).unwrap_or(u64::MAX)),
        }
    }

    /// Returns the step of the clock after which it is `ahead`, if it isn't.
    pub(crate) fn step_to(&self, ahead: Duration) -> Option<ServerEvent> {
        let (forward, back) = self.stepped;
        let (wanted, shown) = (ahead + back, forward);
        (wanted != shown).then(|| ServerEvent::ClockStepped {
            forward: wanted > shown,
            by: wanted.abs_diff(shown),
        })
    }

    pub(crate) fn execute(
        &mut self,
        elapsed: Duration,
        key: &Key,
        command: &machine::Command,
    ) -> Executed {
        let stamp = self.stamp(elapsed);
        if self.journal_limit > 0 && *command != machine::Command::Inspect {
            self.remember(elapsed, key);
        }
        let (listeners, unknown) = (&self.listeners, self.mute || self.uncounted);
        let env = Env {
            now: stamp.at,
            settings: Settings::default(),
            reachable: &|session| {
                if unknown {
                    Reach::Unknown
                } else if listeners.contains_key(&session) {
                    Reach::Listening
                } else {
                    Reach::Nobody
                }
            },
        };
        let slot = self
            .slots
            .entry(key.clone())
            .or_insert_with(|| Slot::Lock(Box::default()));
        let (answer, messages) = match slot {
            Slot::Foreign(found) => (ServerAnswer::Foreign(found.clone()), Vec::new()),
            Slot::Lock(state) => {
                let (reply, messages) = step(state, env, command);
                (ServerAnswer::Reply(reply), messages)
            }
        };
        if matches!(slot, Slot::Lock(state) if state.stored_end() <= stamp.at) {
            self.slots.remove(key);
        }
        Executed {
            stamp,
            answer,
            messages,
        }
    }

    /// Returns the answer to a command that writes nothing, or `None` if the command would write.
    pub(crate) fn read(
        &self,
        elapsed: Duration,
        key: &Key,
        command: &machine::Command,
    ) -> Option<ServerAnswer> {
        let before = match self.slots.get(key) {
            Some(Slot::Lock(state)) => state.as_ref().clone(),
            Some(Slot::Foreign(found)) => return Some(ServerAnswer::Foreign(found.clone())),
            None => State::default(),
        };
        let mut after = before.clone();
        let (reply, messages) = self.try_step(elapsed, &mut after, command);
        (after == before && messages.is_empty()).then_some(ServerAnswer::Reply(reply))
    }

    /// Executes a command on the copy of a state, at a server that knows nothing of who listens.
    fn try_step(
        &self,
        elapsed: Duration,
        state: &mut State,
        command: &machine::Command,
    ) -> (machine::Reply, Vec<Message>) {
        let env = Env {
            now: self.stamp(elapsed).at,
            settings: Settings::default(),
            reachable: &|_| Reach::Unknown,
        };
        step(state, env, command)
    }

    fn remember(&mut self, at: Duration, key: &Key) {
        self.journal.push_back(Undo {
            at,
            key: key.clone(),
            before: self.slots.get(key).cloned(),
        });
        if self.journal.len() > self.journal_limit {
            self.journal.pop_front();
        }
    }

    pub(crate) fn tail(&self, now: Duration, tail: Tail) -> usize {
        match tail {
            Tail::Commands(n) => n.min(self.journal.len()),
            Tail::Last(time) => {
                let from = now.saturating_sub(time);
                let latest = self.journal.iter().rev();
                latest.take_while(|undo| undo.at >= from).count()
            }
        }
    }

    pub(crate) fn lose(&mut self, tail: Tail) {
        let now = self.journal.back().map_or(Duration::ZERO, |undo| undo.at);
        for _ in 0..self.tail(now, tail) {
            let Some(Undo { key, before, .. }) = self.journal.pop_back() else {
                break;
            };
            match before {
                Some(slot) => drop(self.slots.insert(key, slot)),
                None => drop(self.slots.remove(&key)),
            }
        }
    }

    /// Starts a new process on the data, with another clock and without subscriptions.
    pub(crate) fn start(&mut self, clock: ClockId) {
        self.clock = clock;
        self.listeners.clear();
    }

    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.journal.clear();
    }

    pub(crate) fn subscribe(&mut self, session: SessionId) {
        *self.listeners.entry(session).or_default() += 1;
    }

    pub(crate) fn unsubscribe(&mut self, session: SessionId) {
        if let Some(count) = self.listeners.get_mut(&session) {
            *count -= 1;
            if *count == 0 {
                self.listeners.remove(&session);
            }
        }
    }

    pub(crate) fn listeners(&self, session: SessionId) -> u32 {
        self.listeners.get(&session).copied().unwrap_or(0)
    }

    /// Returns the state of a key that is a lock.
    pub(crate) fn state(&self, key: &Key) -> Option<&State> {
        match self.slots.get(key)? {
            Slot::Lock(state) => Some(state),
            Slot::Foreign(_) => None,
        }
    }

    pub(crate) fn foreign(&self, key: &Key) -> Option<String> {
        match self.slots.get(key)? {
            Slot::Foreign(found) => Some(found.clone()),
            Slot::Lock(_) => None,
        }
    }

    /// Returns a page of keys, in their order. The cursor is the last key.
    pub(crate) fn list(&self, request: &List) -> Listed {
        let after = request.cursor.as_ref().map_or("", Cursor::as_str);
        let mut keys = self
            .slots
            .keys()
            .filter(|key| key.as_str() > after && key.as_str().starts_with(&request.prefix));
        let limit = usize::try_from(request.limit).unwrap_or(usize::MAX);
        let page: Vec<Key> = keys.by_ref().take(limit).cloned().collect();
        let next = keys.next().and(page.last());
        Listed {
            next: next.map(|last| Cursor::new(last.as_str())),
            keys: page,
        }
    }

    /// Returns the keys that have holders or waiters, with their states.
    pub(crate) fn busy(&self, elapsed: Duration) -> Vec<(Key, InspectReply)> {
        let now = self.stamp(elapsed).at;
        let busy = self.slots.iter().filter_map(|(key, slot)| match slot {
            Slot::Lock(state) if !state.is_idle(now) => Some((key.clone(), state.clone())),
            Slot::Lock(_) | Slot::Foreign(_) => None,
        });
        busy.map(|(key, mut state)| {
            match self
                .try_step(elapsed, &mut state, &machine::Command::Inspect)
                .0
            {
                machine::Reply::Inspect(reply) => (key, reply),
                other => unreachable!("an inspection answered {other:?}"),
            }
        })
        .collect()
    }
}
