//! Records the rare situations that show in events outside of the servers' steps.

use std::time::Duration;

use leasehold_api::Notification;
use leasehold_api::bounds::DRIFT_FLOOR;
use leasehold_sim::{ClientEvent, Data, Event, Fault, ServerEvent};

use crate::checker::coverage::Situation;
use crate::checker::{Checker, Model};

pub(crate) fn note(checker: &mut Checker, at: Duration, client: Option<usize>, event: &Event) {
    let situation = match event {
        Event::Fault { fault, .. } => Some(fault_note(checker, client, *fault)),
        Event::Notified {
            notification: Notification::Missed { listening: true },
        } => Some(Situation::Resubscribed),
        Event::Notified {
            notification: Notification::Granted { .. },
        } => client
            .filter(|client| !checker.is_counted(*client))
            .map(|_| Situation::RelayedGrant),
        Event::Client(event) => client.and_then(|client| client_note(checker, at, client, *event)),
        Event::Server(event) => server_note(checker, at, event),
        Event::Subscribed { session, .. } => {
            *checker.listeners.entry(*session).or_default() += 1;
            None
        }
        Event::Unsubscribed { session, .. } => {
            let count = checker.listeners.entry(*session).or_default();
            *count = count.saturating_sub(1);
            if *count == 0 {
                checker.listeners.remove(session);
            }
            None
        }
        _ => None,
    };
    if let Some(situation) = situation {
        checker.seen.reached(situation);
    }
}

fn fault_note(checker: &mut Checker, client: Option<usize>, fault: Fault) -> Situation {
    match fault {
        Fault::LoseRequest => Situation::RequestLost,
        Fault::LoseReply => {
            if client.is_some() && checker.granted == client {
                checker.seen.reached(Situation::GrantReplyLost);
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

fn client_note(
    checker: &mut Checker,
    at: Duration,
    client: usize,
    event: ClientEvent,
) -> Option<Situation> {
    match event {
        ClientEvent::Paused => Some(Situation::Paused),
        ClientEvent::Resumed => checker
            .guards
            .overran(client, at)
            .then_some(Situation::UsedAfterPause),
        ClientEvent::Killed if checker.guards.holds(client, at) => Some(Situation::KilledHolder),
        ClientEvent::Killed => checker
            .guards
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

fn server_note(checker: &mut Checker, at: Duration, event: &ServerEvent) -> Option<Situation> {
    if is_new_process(event) {
        // Also those whose clients had sent that they unsubscribe: no event tells that this got lost.
        checker.listeners.clear();
    }
    match event {
        ServerEvent::Stopped => {
            checker.stopped = at;
            None
        }
        ServerEvent::Started { data: Data::Kept } => {
            if at > checker.stopped {
                checker.seen.reached(Situation::Outage);
            }
            Some(Situation::Restarted)
        }
        ServerEvent::Started { .. } => Some(Situation::DataLost),
        ServerEvent::PublishRefused => {
            checker.publish_refused = true;
            Some(Situation::PublishRefused)
        }
        ServerEvent::CountRefused => {
            checker.count_refused = true;
            Some(Situation::CountRefused)
        }
        ServerEvent::PublishAllowed => {
            checker.publish_refused = false;
            None
        }
        ServerEvent::CountAllowed => {
            checker.count_refused = false;
            None
        }
        ServerEvent::KeyRemoved { .. } => Some(Situation::Evicted),
        ServerEvent::FailedOver { .. } => Some(Situation::FailedOver),
        ServerEvent::Split { .. } => Some(Situation::Split),
        ServerEvent::SwitchedOver { .. } => {
            checker.switched_over = Some(at);
            Some(Situation::SwitchedOver)
        }
        ServerEvent::ClockStepped { forward, by } => {
            checker.clock_moved |= *by > DRIFT_FLOOR;
            if checker.model == Model::Within {
                checker.guards.shift_ends(*forward, *by);
            }
            Some(if checker.switched_over == Some(at) {
                Situation::OtherNodesClock
            } else {
                Situation::ClockStepped
            })
        }
        _ => None,
    }
}
