//! Records the rare situations that show in events outside of the servers' steps.

use std::time::Duration;

use leasehold_api::bounds::DRIFT_FLOOR;
use leasehold_api::machine::Reply;
use leasehold_api::{AcquireReply, Notification, PollReply, SessionId};
use leasehold_sim::tools::{ClientEvent, Event, ServerEvent};
use leasehold_sim::{Data, Fault};
use litemap::LiteMap;

use crate::checker::coverage::{Coverage, Situation};
use crate::checker::findings::Model;
use crate::checker::guards::Guards;
use crate::checker::step::Step;

/// What the events told of the servers and the subscriptions.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// The client that was granted a lock by the latest step, if it was granted one.
    granted: Option<usize>,
    /// The number of subscriptions to each session's channel.
    listeners: LiteMap<SessionId, u32>,
    /// Whether the server refuses to publish, and so cannot tell who listens.
    publish_refused: bool,
    /// Whether the server publishes, but cannot tell who listens.
    count_refused: bool,
    /// When the server last stopped.
    stopped: Duration,
    /// When a replica with all data last took over.
    switched_over: Option<Duration>,
    /// Whether the keys moved to a server with another time, while nothing was held.
    pub(super) clock_moved: bool,
}

impl Events {
    /// Whether a session listens. If the server cannot tell, everybody counts as listening (rule 9).
    pub(crate) fn may_listen(&self, session: &SessionId) -> bool {
        self.publish_refused || self.count_refused || self.listeners.contains_key(session)
    }

    /// Records whom a step granted a lock.
    pub(crate) fn step(&mut self, step: &Step<'_>) {
        let granted = matches!(
            step.reply,
            Reply::Acquire(AcquireReply::Acquired(_)) | Reply::Poll(PollReply::Acquired(_))
        );
        self.granted = granted.then_some(step.client);
    }

    pub(crate) fn event(
        &mut self,
        at: Duration,
        client: Option<usize>,
        event: &Event,
        model: Model,
        (guards, seen): (&mut Guards, &mut Coverage),
    ) {
        let situation = match event {
            Event::Fault { fault, .. } => Some(self.fault(client, *fault, seen)),
            Event::Notified {
                notification: Notification::Missed { listening: true },
            } => Some(Situation::Resubscribed),
            Event::Notified {
                notification: Notification::Granted { .. },
            } => client
                .filter(|client| !self.is_counted(*client, guards))
                .map(|_| Situation::RelayedGrant),
            Event::Client(event) => {
                client.and_then(|client| client_note(guards, at, client, *event))
            }
            Event::Server(event) => self.server(at, event, model, (guards, seen)),
            Event::Subscribed { session, .. } => {
                *self.listeners.entry(*session).or_default() += 1;
                None
            }
            Event::Unsubscribed { session, .. } => {
                let count = self.listeners.entry(*session).or_default();
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.listeners.remove(session);
                }
                None
            }
            _ => None,
        };
        if let Some(situation) = situation {
            seen.reached(situation);
        }
    }

    /// Whether the primary counts a subscription of a client among its listeners.
    fn is_counted(&self, client: usize, guards: &Guards) -> bool {
        let mut listeners = self.listeners.keys();
        listeners.any(|session| guards.client_of(session) == Some(client))
    }

    fn fault(&self, client: Option<usize>, fault: Fault, seen: &mut Coverage) -> Situation {
        match fault {
            Fault::LoseRequest => Situation::RequestLost,
            Fault::LoseReply => {
                if client.is_some() && self.granted == client {
                    seen.reached(Situation::GrantReplyLost);
                }
                Situation::ReplyLost
            }
            Fault::DuplicateRequest(_) => Situation::RequestDoubled,
            Fault::LosePush => Situation::PushLost,
            Fault::DuplicatePush => Situation::PushDoubled,
            Fault::DelayRequest(_) | Fault::DelayReply(_) | Fault::DelayPush(_) => {
                Situation::MessageLate
            }
            other => unreachable!("no situation for {other:?}"),
        }
    }

    fn server(
        &mut self,
        at: Duration,
        event: &ServerEvent,
        model: Model,
        (guards, seen): (&mut Guards, &mut Coverage),
    ) -> Option<Situation> {
        if is_new_process(event) {
            // Also those whose clients had sent that they unsubscribe: no event tells that this got lost.
            self.listeners.clear();
        }
        match event {
            ServerEvent::Stopped => {
                self.stopped = at;
                None
            }
            ServerEvent::Started { data: Data::Kept } => {
                if at > self.stopped {
                    seen.reached(Situation::Outage);
                }
                Some(Situation::Restarted)
            }
            ServerEvent::Started { .. } => Some(Situation::DataLost),
            ServerEvent::PublishRefused => {
                self.publish_refused = true;
                Some(Situation::PublishRefused)
            }
            ServerEvent::CountRefused => {
                self.count_refused = true;
                Some(Situation::CountRefused)
            }
            ServerEvent::PublishAllowed => {
                self.publish_refused = false;
                None
            }
            ServerEvent::CountAllowed => {
                self.count_refused = false;
                None
            }
            ServerEvent::LoadingBegan => Some(Situation::Loading),
            ServerEvent::KeyRemoved { .. } => Some(Situation::Evicted),
            ServerEvent::FailedOver { .. } => Some(Situation::FailedOver),
            ServerEvent::Split { .. } => Some(Situation::Split),
            ServerEvent::SwitchedOver { .. } => {
                self.switched_over = Some(at);
                Some(Situation::SwitchedOver)
            }
            ServerEvent::ClockStepped { forward, by } => {
                self.clock_moved |= *by > DRIFT_FLOOR;
                if model == Model::Within {
                    guards.shift_ends(*forward, *by);
                }
                Some(if self.switched_over == Some(at) {
                    Situation::OtherNodesClock
                } else {
                    Situation::ClockStepped
                })
            }
            _ => None,
        }
    }
}

fn client_note(
    guards: &Guards,
    at: Duration,
    client: usize,
    event: ClientEvent,
) -> Option<Situation> {
    match event {
        ClientEvent::Paused => Some(Situation::Paused),
        ClientEvent::Resumed => guards
            .overran(client, at)
            .then_some(Situation::UsedAfterPause),
        ClientEvent::Denied if guards.holds(client, at) => Some(Situation::DeniedHolder),
        ClientEvent::Denied => Some(Situation::Denied),
        ClientEvent::Killed if guards.holds(client, at) => Some(Situation::KilledHolder),
        ClientEvent::Killed => guards
            .has_waiter(client, at)
            .then_some(Situation::KilledWaiter),
        ClientEvent::VisitsReplica => Some(Situation::VisitedReplica),
        ClientEvent::ClockRate { ppm } if ppm != 0 => Some(Situation::ClockRates),
        ClientEvent::ClockJumped { by } if !by.is_zero() => Some(Situation::ClockJumped),
        _ => None,
    }
}

/// Whether the primary ends, or another process takes its place. That one has no subscriptions.
const fn is_new_process(event: &ServerEvent) -> bool {
    matches!(
        event,
        ServerEvent::Stopped
            | ServerEvent::Started { .. }
            | ServerEvent::FailedOver { .. }
            | ServerEvent::SwitchedOver { .. }
    )
}
