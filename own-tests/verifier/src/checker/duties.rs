//! The duties of a healthy client: it keeps its holds and polls for its waiters, once in each poll
//! interval, and soon after a lost subscription.

use std::time::Duration;

use leasehold_api::bounds::{CALL_TIMEOUT, MAX_POLL_INTERVAL};
use leasehold_api::machine::Reply;
use leasehold_api::{AcquireReply, Key, Notification, PollReply};
use leasehold_sim::Fault;
use leasehold_sim::tools::{ClientEvent, Event, ServerEvent};
use litemap::LiteMap;

use crate::checker::findings::{Findings, client_name};
use crate::checker::step::{Name, Step, name_of};

/// How soon a waiter polls after its lost subscription is back. A call and the pause before a retry
/// may have to end first.
const SOON: Duration = Duration::from_millis(350);

/// Whether every call still gets its reply in spite of a fault.
const fn is_harmless(fault: Fault) -> bool {
    fault.is_for_push() || matches!(fault, Fault::DuplicateRequest(_))
}

/// The waiters: client, expiry and key of each.
pub(crate) type Waiting = LiteMap<Name, (usize, Duration, Key)>;

#[derive(Debug, Default)]
struct Health {
    /// When the last disturbance ended.
    since: Duration,
    /// The number of disturbances that last: pauses, isolations, refusals and visits of a replica.
    ongoing: u32,
    dead: bool,
    /// Whether it has shut a lock client down, and so has several subscriptions.
    has_shut_down: bool,
    /// When a message may last have been lost or late, so that a call may hang.
    message_fault: Option<Duration>,
}

#[derive(Debug, Default)]
pub(crate) struct Duties {
    clients: LiteMap<usize, Health>,
    /// When the server was last disturbed.
    server: Duration,
    server_down: bool,
    /// Whether the server refuses every call.
    server_loading: bool,
    /// When the last outage ended. A client may pause before it retries a refused call.
    outage: Option<Duration>,
    /// The client of each waiter, and when the waiter must have polled.
    polls: LiteMap<Name, (usize, Duration)>,
    /// Whether calls may take so long that clients repeat them all the time.
    slow: bool,
}

impl Duties {
    /// Turns off all checks, because calls may take longer than a renewal waits.
    pub(crate) const fn slow_network(&mut self) {
        self.slow = true;
    }

    /// When a client's last disturbance ended; `None` if one lasts.
    pub(crate) fn healthy_since(&self, client: usize) -> Option<Duration> {
        let health = self.clients.get(&client);
        let answers = !self.server_down && !self.server_loading;
        let well = answers && health.is_none_or(|health| health.ongoing == 0 && !health.dead);
        let since = health.map_or(Duration::ZERO, |health| health.since);
        well.then(|| since.max(self.server))
    }

    /// Records that a client was disturbed.
    pub(crate) fn disturb(&mut self, client: usize, at: Duration) {
        self.clients.entry(client).or_default().since = at;
        self.polls.retain(|_, (owner, _)| *owner != client);
    }

    /// Records that a client shuts its lock client down, and has another one.
    pub(crate) fn shut_down(&mut self, client: usize, at: Duration) {
        self.clients.entry(client).or_default().has_shut_down = true;
        self.disturb(client, at);
    }

    /// Records that a disturbance begins, by 1, or ends, by −1.
    fn change(&mut self, client: usize, at: Duration, by: i32) {
        let health = self.clients.entry(client).or_default();
        health.message_fault = Some(at);
        health.ongoing = health.ongoing.saturating_add_signed(by);
        self.disturb(client, at);
    }

    /// Whether a call of a client may hang.
    fn may_hang(&self, client: usize, at: Duration) -> bool {
        let message_fault = self.clients.get(&client).and_then(|it| it.message_fault);
        let last = message_fault.max(self.outage);
        last.is_some_and(|last| at < last + CALL_TIMEOUT + SOON)
    }

    pub(crate) fn event(
        &mut self,
        at: Duration,
        client: Option<usize>,
        event: &Event,
        waiting: &Waiting,
    ) {
        use ClientEvent::{
            Admitted, Denied, Isolated, Killed, LeftReplica, Paused, Reachable, Resumed,
            VisitsReplica,
        };
        match (event, client) {
            (Event::Client(Killed), Some(client)) => {
                self.clients.entry(client).or_default().dead = true;
                self.disturb(client, at);
            }
            (Event::Client(Paused | Isolated | Denied | VisitsReplica), Some(client)) => {
                self.change(client, at, 1);
            }
            (Event::Client(Resumed | Reachable | Admitted | LeftReplica), Some(client)) => {
                self.change(client, at, -1);
            }
            // It keeps no client from its duties.
            (Event::Fault { fault, .. }, _) if is_harmless(*fault) => {}
            (Event::Fault { .. } | Event::Undelivered { .. }, Some(client)) => {
                self.clients.entry(client).or_default().message_fault = Some(at);
                self.disturb(client, at);
            }
            (Event::Client(_), Some(client)) => self.disturb(client, at),
            (Event::Server(event), _) => self.server_event(at, event),
            (
                Event::Notified {
                    notification: Notification::Missed { listening: true },
                },
                Some(client),
            ) => {
                // The subscription may be that of a lock client that is shut down.
                let health = self.clients.get(&client);
                let several = health.is_some_and(|health| health.has_shut_down);
                if several || self.may_hang(client, at) || self.healthy_since(client).is_none() {
                    return;
                }
                let mine = waiting.iter().filter(|(_, (owner, _, _))| *owner == client);
                let until = mine.map(|(name, _)| (*name, (client, at + SOON)));
                self.polls.extend(until);
            }
            _ => {}
        }
    }

    fn server_event(&mut self, at: Duration, event: &ServerEvent) {
        match event {
            // These keep no client from its duties.
            ServerEvent::PublishRefused
            | ServerEvent::PublishAllowed
            | ServerEvent::CountRefused
            | ServerEvent::CountAllowed
            | ServerEvent::ReplicaCutOff { .. } => return,
            ServerEvent::Stopped => self.server_down = true,
            ServerEvent::LoadingBegan => self.server_loading = true,
            ServerEvent::Started { .. } | ServerEvent::LoadingEnded => {
                match event {
                    ServerEvent::LoadingEnded => self.server_loading = false,
                    _ => self.server_down = false,
                }
                if at > self.server {
                    self.outage = Some(at);
                }
            }
            _ => {}
        }
        self.server = at;
        self.polls.clear();
    }

    pub(crate) fn step(&mut self, step: &Step<'_>, found: &mut Findings) {
        if self.slow {
            return;
        }
        if let Some(operation) = step.own {
            // Any command for the waiter counts as a poll.
            self.polls.remove(&name_of(operation));
        }
        for waiter in &step.before.waiters {
            let operation = waiter.operation;
            if !step.after.waiters.iter().any(|p| p.operation == operation) {
                self.polls.remove(&name_of(operation));
            }
        }
        self.polls.retain(|(_, sequence), (client, until)| {
            let late = step.at > *until;
            if late {
                let who = client_name(*client);
                found.add("L2", format!("{who} did not poll for {sequence} in time"));
            }
            !late
        });
        self.waits(step);
    }

    /// A queued waiter polls after a poll interval at the latest, so that no grant depends on a
    /// push.
    fn waits(&mut self, step: &Step<'_>) {
        let queued = matches!(
            step.reply,
            Reply::Acquire(AcquireReply::Queued(_)) | Reply::Poll(PollReply::Queued(_))
        );
        let Some(operation) = step.own.filter(|_| queued && !step.redelivered) else {
            return;
        };
        if self.healthy_since(step.client).is_none() || self.may_hang(step.client, step.at) {
            return;
        }
        let until = step.at + MAX_POLL_INTERVAL + MAX_POLL_INTERVAL / 4 + SOON;
        self.polls.insert(name_of(operation), (step.client, until));
    }
}
