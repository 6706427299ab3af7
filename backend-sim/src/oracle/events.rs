//! Rare situations that show in what happens between the steps of a server.

use std::time::Duration;

use leasehold_api::Notice;

use crate::faults::Fault;
use crate::log::{ClientEvent, Event, ServerEvent};
use crate::oracle::Oracle;
use crate::oracle::coverage::Situation;
use crate::store::Data;

pub(crate) fn note(oracle: &mut Oracle, at: Duration, client: Option<usize>, event: &Event) {
    let situation = match event {
        Event::Fault { fault, .. } => Some(fault_note(oracle, client, *fault)),
        Event::Notified {
            notice: Notice::Gap { listening: true },
        } => Some(Situation::Gap),
        Event::Client(event) => client.and_then(|client| client_note(oracle, at, client, *event)),
        Event::Server(event) => server_note(oracle, at, event),
        Event::Subscribed { session, .. } => {
            *oracle.listeners.entry(*session).or_default() += 1;
            None
        }
        Event::Unsubscribed { session, .. } => {
            let count = oracle.listeners.entry(*session).or_default();
            *count = count.saturating_sub(1);
            if *count == 0 {
                oracle.listeners.remove(session);
            }
            None
        }
        _ => None,
    };
    if let Some(situation) = situation {
        oracle.seen.reached(situation);
    }
}

fn fault_note(oracle: &mut Oracle, client: Option<usize>, fault: Fault) -> Situation {
    match fault {
        Fault::LoseRequest => Situation::RequestLost,
        Fault::LoseReply => {
            if client.is_some() && oracle.granted == client {
                oracle.seen.reached(Situation::GrantReplyLost);
            }
            Situation::ReplyLost
        }
        Fault::DuplicateRequest(_) => Situation::RequestDoubled,
        Fault::LosePush => Situation::PushLost,
        Fault::DuplicatePush => Situation::PushDoubled,
        Fault::DelayRequest(_) | Fault::DelayReply(_) | Fault::DelayPush(_) => {
            Situation::MessageLate
        }
    }
}

fn client_note(
    oracle: &mut Oracle,
    at: Duration,
    client: usize,
    event: ClientEvent,
) -> Option<Situation> {
    match event {
        ClientEvent::Paused => Some(Situation::Paused),
        ClientEvent::Resumed => oracle
            .guards
            .overran(client, at)
            .then_some(Situation::UsedAfterPause),
        ClientEvent::Killed if oracle.guards.holds(client, at) => Some(Situation::KilledHolder),
        ClientEvent::Killed => oracle
            .guards
            .has_place(client, at)
            .then_some(Situation::KilledWaiter),
        ClientEvent::ClockRate { ppm } if ppm != 0 => Some(Situation::ClockRates),
        ClientEvent::ClockJumped { by } if !by.is_zero() => Some(Situation::ClockJumped),
        _ => None,
    }
}

fn server_note(oracle: &mut Oracle, at: Duration, event: &ServerEvent) -> Option<Situation> {
    match event {
        ServerEvent::Stopped => {
            oracle.stopped = at;
            None
        }
        ServerEvent::Started { data: Data::Kept } => {
            if at > oracle.stopped {
                oracle.seen.reached(Situation::Outage);
            }
            Some(Situation::Restarted)
        }
        ServerEvent::Started { .. } => Some(Situation::DataLost),
        ServerEvent::PublishRefused => {
            oracle.mute = true;
            Some(Situation::Mute)
        }
        ServerEvent::PublishAllowed => {
            oracle.mute = false;
            None
        }
        ServerEvent::KeyRemoved { .. } => Some(Situation::Evicted),
        ServerEvent::FailedOver { .. } => Some(Situation::FailedOver),
        ServerEvent::Split { .. } => Some(Situation::Split),
        ServerEvent::ClockStepped { .. } => Some(Situation::ClockStepped),
        _ => None,
    }
}
