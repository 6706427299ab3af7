//! What a client owes while nothing is wrong with it: to keep what it holds, to renew it no more
//! often than it must, and to look after its places: each poll interval, and soon when a
//! subscription was lost.

use std::time::Duration;

use leasehold_api::bounds::{CALL_TIMEOUT, MAX_POLL_INTERVAL};
use leasehold_api::machine::{Command, Reply};
use leasehold_api::{AcquireReply, Key, Notification, PollReply, SessionId};
use leasehold_sim::{ClientEvent, Event, Fault, ServerEvent};
use litemap::LiteMap;

use crate::checker::step::{Step, has};
use crate::checker::{Findings, who};

/// How soon after a lost subscription stands again a waiter polls: it may have to end a call and
/// a pause between two tries first.
const SOON: Duration = Duration::from_millis(350);
/// So many renewals in a row, each much sooner after the last than needed, are too many.
const TOO_MANY: u32 = 4;

/// Whether a fault keeps no call from its answer.
const fn is_harmless(fault: Fault) -> bool {
    fault.is_for_push() || matches!(fault, Fault::DuplicateRequest(_))
}

/// Attempts that wait: whose, until when, for what.
pub(crate) type Waiting = LiteMap<(SessionId, u64), (usize, Duration, Key)>;

#[derive(Debug, Default)]
struct Health {
    /// When the last trouble was over.
    since: Duration,
    /// How much is wrong now.
    wrong: u32,
    dead: bool,
    /// When a message of it may last have been lost or late, so that a call hangs.
    muffled: Option<Duration>,
}

#[derive(Debug, Default)]
pub(crate) struct Duties {
    clients: LiteMap<usize, Health>,
    /// When something last happened to the server.
    server: Duration,
    server_down: bool,
    /// When it was last back after it had been down: who was refused may pause before he tries
    /// again.
    outage: Option<Duration>,
    /// Of each holder: when its last renewal was sent, and how many came too soon.
    renewals: LiteMap<(SessionId, u64), (Duration, u32)>,
    /// Attempts that wait, by client, and until when they must poll.
    polls: LiteMap<(SessionId, u64), (usize, Duration)>,
    /// Whether calls take so long that clients may have to repeat them all the time.
    slow: bool,
}

impl Duties {
    /// Calls may take longer than a renewal waits for.
    pub(crate) const fn slow_network(&mut self) {
        self.slow = true;
    }

    /// Since when nothing is wrong with a client; `None` if something is.
    pub(crate) fn healthy_since(&self, client: usize) -> Option<Duration> {
        let health = self.clients.get(&client);
        let well =
            !self.server_down && health.is_none_or(|health| health.wrong == 0 && !health.dead);
        let since = health.map_or(Duration::ZERO, |health| health.since);
        well.then(|| since.max(self.server))
    }

    pub(crate) fn trouble(&mut self, client: usize, at: Duration) {
        self.clients.entry(client).or_default().since = at;
        self.polls.retain(|_, (whose, _)| *whose != client);
    }

    fn lasting(&mut self, client: usize, at: Duration, begins: bool) {
        let health = self.clients.entry(client).or_default();
        health.muffled = Some(at);
        health.wrong = if begins {
            health.wrong + 1
        } else {
            health.wrong.saturating_sub(1)
        };
        self.trouble(client, at);
    }

    /// Whether a call of a client may hang.
    fn is_muffled(&self, client: usize, at: Duration) -> bool {
        let muffled = self.clients.get(&client).and_then(|it| it.muffled);
        let last = muffled.max(self.outage);
        last.is_some_and(|last| at < last + CALL_TIMEOUT + SOON)
    }

    pub(crate) fn event(
        &mut self,
        at: Duration,
        client: Option<usize>,
        event: &Event,
        waiting: &Waiting,
    ) {
        match (event, client) {
            (Event::Client(ClientEvent::Killed), Some(client)) => {
                self.clients.entry(client).or_default().dead = true;
                self.trouble(client, at);
            }
            (Event::Client(ClientEvent::Paused | ClientEvent::Isolated), Some(client)) => {
                self.lasting(client, at, true);
            }
            (Event::Client(ClientEvent::Resumed | ClientEvent::Reachable), Some(client)) => {
                self.lasting(client, at, false);
            }
            // These change nothing for who does as it must: they excuse nobody.
            (Event::Fault { fault, .. }, _) if is_harmless(*fault) => {}
            (Event::Server(ServerEvent::PublishRefused | ServerEvent::PublishAllowed), _) => {}
            (Event::Fault { .. } | Event::Undelivered { .. }, Some(client)) => {
                self.clients.entry(client).or_default().muffled = Some(at);
                self.trouble(client, at);
            }
            (Event::Client(_), Some(client)) => self.trouble(client, at),
            (Event::Server(event), _) => {
                match event {
                    ServerEvent::Stopped => self.server_down = true,
                    ServerEvent::Started { .. } => {
                        self.server_down = false;
                        if at > self.server {
                            self.outage = Some(at);
                        }
                    }
                    _ => {}
                }
                self.server = at;
                self.polls.clear();
            }
            (
                Event::Notified {
                    notification: Notification::Missed { listening: true },
                },
                Some(client),
            ) => {
                if self.is_muffled(client, at) {
                    return;
                }
                let mine = waiting.iter().filter(|(_, (whose, _, _))| *whose == client);
                let until = mine.map(|(name, _)| (*name, (client, at + SOON)));
                self.polls.extend(until);
            }
            _ => {}
        }
    }

    pub(crate) fn step(&mut self, step: &Step<'_>, found: &mut Findings) {
        if self.slow {
            return;
        }
        if let Some(operation) = step.operation() {
            // Whatever it sends: it has looked after itself.
            self.polls.remove(&(operation.session, operation.sequence));
        }
        for waiter in &step.before.waiters {
            let operation = waiter.operation;
            if !step.after.waiters.iter().any(|p| p.operation == operation) {
                self.polls.remove(&(operation.session, operation.sequence));
            }
        }
        self.polls.retain(|(_, sequence), (client, until)| {
            let late = step.at > *until;
            if late {
                let text = format!("{} does not ask about {sequence} in time", who(*client));
                found.add("L2", text);
            }
            !late
        });
        self.waits(step);
        self.renewal(step, found);
    }

    /// Who is told that it waits looks again after a poll interval at most, so that nothing hangs
    /// on a push.
    fn waits(&mut self, step: &Step<'_>) {
        let queued = matches!(
            step.reply,
            Reply::Acquire(AcquireReply::Queued(_)) | Reply::Poll(PollReply::Queued(_))
        );
        let Some(operation) = step.operation().filter(|_| queued && !step.again) else {
            return;
        };
        if self.healthy_since(step.client).is_none() || self.is_muffled(step.client, step.at) {
            return;
        }
        let until = step.at + MAX_POLL_INTERVAL + MAX_POLL_INTERVAL / 4 + SOON;
        let name = (operation.session, operation.sequence);
        self.polls.insert(name, (step.client, until));
    }

    /// A holder is renewed each third of its lease, by one renewal.
    fn renewal(&mut self, step: &Step<'_>, found: &mut Findings) {
        let Command::Renew(request) = step.command else {
            return;
        };
        let operation = request.operation;
        let holders = &step.after.holders;
        let own = |t: &&leasehold_api::machine::HolderParts| {
            t.session == operation.session && has(t, operation.sequence)
        };
        let Some(holder) = holders.iter().find(own) else {
            return;
        };
        let (last, soon) = self
            .renewals
            .entry((holder.session, holder.id))
            .or_insert((Duration::ZERO, 0));
        let health = self.clients.get(&step.client);
        let well = health.is_none_or(|h| h.wrong == 0 && h.since < *last) && self.server < *last;
        let early = step.sent < *last + request.lease / 5;
        *soon = if well && early && !step.again {
            *soon + 1
        } else {
            0
        };
        *last = step.sent;
        if *soon == TOO_MANY {
            let text = format!("{holder:?} is renewed again and again");
            found.add("renewal", text);
        }
    }
}
