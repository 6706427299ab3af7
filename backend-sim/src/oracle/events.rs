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
        Event::Server(event) => server_note(event),
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
        ClientEvent::Killed => Some(Situation::KilledWaiter),
        ClientEvent::ClockRate { .. } => Some(Situation::ClockRates),
        ClientEvent::ClockJumped { .. } => Some(Situation::Suspended),
        _ => None,
    }
}

fn server_note(event: &ServerEvent) -> Option<Situation> {
    match event {
        ServerEvent::Started { data: Data::Kept } => Some(Situation::Restarted),
        ServerEvent::Started { .. } => Some(Situation::DataLost),
        ServerEvent::KeyRemoved { .. } => Some(Situation::Evicted),
        ServerEvent::FailedOver { .. } => Some(Situation::FailedOver),
        ServerEvent::Split { .. } => Some(Situation::Split),
        ServerEvent::ClockStepped { .. } => Some(Situation::ClockStepped),
        _ => None,
    }
}
