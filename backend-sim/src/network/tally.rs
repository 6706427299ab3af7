//! Counts what has happened to the locks of a run, also while no log is kept.
//!
//! It follows the replies of the server, and so knows holds as the server sees them. The end of a lease is noticed when the
//! server executes the next command on the key.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold_api::machine::{Command, Message, Payload, Reply};
use leasehold_api::{
    AcquireReply, ConvertReply, ForceMode, ForceReply, Key, NoteReply, PollReply, RenewReply,
    SessionId, attempt_of_job,
};

use crate::network::event::ClientIndex;
use crate::record::{ClientEvent, Event, Fault, ServerAnswer, ServerEvent};

/// What a run, or all runs of an exploration, have had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Leases that ended although nobody had released them.
    pub(crate) expired: u64,
    /// Of these, those of a client that was paused then, and after which another client got the key.
    pub(crate) second_holders: u64,
    pub(crate) lost_replies: u64,
    pub(crate) failovers: u64,
    pub(crate) retried_jobs: u64,
    pub(crate) pauses: u64,
    pub(crate) longest_wait: Duration,
    pub(crate) shortest_lease: Option<Duration>,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.expired += other.expired;
        self.second_holders += other.second_holders;
        self.lost_replies += other.lost_replies;
        self.failovers += other.failovers;
        self.retried_jobs += other.retried_jobs;
        self.pauses += other.pauses;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        let leases = [self.shortest_lease, other.shortest_lease];
        self.shortest_lease = leases.into_iter().flatten().min();
    }
}

/// An operation: its session and sequence.
type Id = (SessionId, u64);

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) counts: Counts,
    clients: BTreeMap<SessionId, ClientIndex>,
    /// When each hold ends.
    holds: BTreeMap<Key, BTreeMap<Id, Duration>>,
    /// The clients that were paused when their hold of the key ended, until another client gets it.
    overslept: BTreeMap<Key, BTreeSet<ClientIndex>>,
    /// When each waiter was queued.
    waits: BTreeMap<Id, Duration>,
    /// When each client was paused and resumed last.
    paused: BTreeMap<ClientIndex, (Duration, Option<Duration>)>,
    /// The latest attempt of each job.
    attempts: BTreeMap<Key, (u64, u32)>,
}

impl Tally {
    /// The clients that hold a lock now, and how long their leases last.
    pub(crate) fn holders(&self, now: Duration) -> Vec<(ClientIndex, Duration)> {
        let holds = self.holds.values().flatten();
        let left = holds.filter_map(|((session, _), end)| {
            let left = end.saturating_sub(now);
            Some((*self.clients.get(session)?, left)).filter(|_| !left.is_zero())
        });
        left.collect()
    }

    pub(crate) fn event(&mut self, at: Duration, client: Option<ClientIndex>, event: &Event) {
        match (event, client) {
            (Event::Fault { fault, .. }, _) if *fault == Fault::LoseReply => {
                self.counts.lost_replies += 1;
            }
            (Event::Client(ClientEvent::Paused), Some(client)) => {
                self.counts.pauses += 1;
                self.paused.insert(client, (at, None));
            }
            (Event::Client(ClientEvent::Resumed), Some(client)) => {
                if let Some((_, resumed)) = self.paused.get_mut(&client) {
                    *resumed = Some(at);
                }
            }
            (Event::Server(event), _) if is_failover(event) => self.counts.failovers += 1,
            _ => {}
        }
    }

    pub(crate) fn executed(
        &mut self,
        at: Duration,
        client: ClientIndex,
        (key, command): (&Key, &Command),
        answer: &ServerAnswer,
        messages: &[Message],
    ) {
        let ServerAnswer::Reply(reply) = answer else {
            return;
        };
        self.expire(key, at);
        let operation = match command {
            Command::Acquire(request) => {
                let leases = [self.counts.shortest_lease, Some(request.lease)];
                self.counts.shortest_lease = leases.into_iter().flatten().min();
                Some(&request.operation)
            }
            Command::Poll(request) => Some(&request.operation),
            Command::Renew(request) => Some(&request.operation),
            Command::Release(request) => Some(&request.operation),
            Command::Convert(request) => Some(&request.operation),
            Command::Note(request) => {
                if let Reply::Note(NoteReply::Noted(_)) = reply {
                    self.noted(key, &request.bytes);
                }
                None
            }
            Command::ForceRelease(request) => {
                let forced = matches!(
                    reply,
                    Reply::ForceRelease(ForceReply::Forced { holders: 1.. })
                );
                if forced && request.how == ForceMode::Now {
                    self.holds.remove(key);
                }
                None
            }
            Command::Inspect => None,
        };
        if let Some(operation) = operation {
            self.clients.insert(operation.session, client);
            self.answered(at, key, (operation.session, operation.sequence), reply);
        }
        for message in messages {
            if let Payload::Granted {
                sequence,
                remaining,
                ..
            } = message.payload
            {
                self.held(at, key, (message.to, sequence), remaining);
            }
        }
    }

    fn answered(&mut self, at: Duration, key: &Key, id: Id, reply: &Reply) {
        match reply {
            Reply::Acquire(AcquireReply::Acquired(acquired))
            | Reply::Poll(PollReply::Acquired(acquired)) => {
                self.held(at, key, id, acquired.remaining);
            }
            Reply::Acquire(AcquireReply::Queued(_)) => {
                self.waits.entry(id).or_insert(at);
            }
            Reply::Renew(RenewReply::Renewed { remaining, .. })
            | Reply::Convert(ConvertReply::Converted { remaining, .. }) => {
                self.held(at, key, id, *remaining);
            }
            Reply::Poll(PollReply::Gone(_))
            | Reply::Renew(RenewReply::Lost(_))
            | Reply::Release(_) => {
                self.waited(at, id);
                if let Some(holds) = self.holds.get_mut(key) {
                    holds.remove(&id);
                }
            }
            _ => {}
        }
    }

    /// Notes the end of a wait.
    fn waited(&mut self, at: Duration, id: Id) {
        if let Some(since) = self.waits.remove(&id) {
            let waited = at.saturating_sub(since);
            self.counts.longest_wait = self.counts.longest_wait.max(waited);
        }
    }

    fn held(&mut self, at: Duration, key: &Key, id: Id, remaining: Duration) {
        self.waited(at, id);
        let holds = self.holds.entry(key.clone()).or_default();
        holds.insert(id, at.saturating_add(remaining));
        let client = self.clients.get(&id.0);
        if let Some(overslept) = self.overslept.get_mut(key) {
            let before = overslept.len();
            overslept.retain(|earlier| Some(earlier) == client);
            self.counts.second_holders += (before - overslept.len()) as u64;
        }
    }

    /// Removes the holds of the key whose leases have ended.
    fn expire(&mut self, key: &Key, at: Duration) {
        let Some(holds) = self.holds.get_mut(key) else {
            return;
        };
        let mut expired = Vec::new();
        holds.retain(|(session, _), end| {
            if *end <= at {
                expired.push((*session, *end));
            }
            *end > at
        });
        for (session, end) in expired {
            self.counts.expired += 1;
            let client = self.clients.get(&session);
            let slept = client.and_then(|client| self.paused.get(client));
            let over_the_end = slept
                .is_some_and(|(from, to)| *from <= end && to.is_none_or(|resumed| resumed >= end));
            if let Some(client) = client.filter(|_| over_the_end) {
                let overslept = self.overslept.entry(key.clone()).or_default();
                overslept.insert(*client);
            }
        }
    }

    fn noted(&mut self, key: &Key, note: &[u8]) {
        let Some((fire, attempt)) = attempt_of_job(note) else {
            return;
        };
        let attempt = (fire.as_millis(), attempt);
        let before = self.attempts.insert(key.clone(), attempt);
        if attempt.1 > 1 && before != Some(attempt) {
            self.counts.retried_jobs += 1;
        }
    }
}

const fn is_failover(event: &ServerEvent) -> bool {
    matches!(
        event,
        ServerEvent::FailedOver { .. }
            | ServerEvent::SwitchedOver { .. }
            | ServerEvent::Split { .. }
    )
}
