//! Calls that reach a replica that has lost its link to the primary.

use leasehold_api::{BackendError, Listed};

use crate::network::Network;
use crate::network::calls::CallResult;
use crate::network::event::{Arrival, ClientIndex, Request, Response};
use crate::network::transport::summary;
use crate::record::{ClientEvent, Event, Reads};

impl Network {
    /// Sends the requests of a client to the replica from now on, or to the primary again. Returns
    /// `false` if there is no such replica.
    pub(crate) fn visit_replica(&mut self, client: ClientIndex, to: bool) -> bool {
        if self.servers.replica.is_none() {
            return false;
        }
        if std::mem::replace(&mut self.clients[client].visits_replica, to) != to {
            let event = match to {
                true => ClientEvent::VisitsReplica,
                false => ClientEvent::LeftReplica,
            };
            self.record(Some(client), Event::Client(event));
        }
        true
    }

    /// The process that a client's requests go to.
    pub(crate) fn process_of(&mut self, client: ClientIndex) -> u64 {
        match &self.servers.replica {
            Some(replica) if self.clients[client].visits_replica => replica.process,
            _ => self.server_of(client).process,
        }
    }

    /// The answer of the replica. It executes nothing that writes. If one command of a batch would
    /// write, it refuses the whole batch.
    pub(crate) fn ask_replica(&mut self, arrival: &Arrival) -> CallResult {
        let refused = BackendError::unavailable("READONLY: the server is a replica");
        let answering = self.servers.replica.as_ref();
        let Some(replica) = answering.filter(|it| it.reads == Reads::Answered) else {
            return Err(refused);
        };
        let store = &replica.store;
        let stamp = store.stamp(self.now);
        let (mut listed, mut answers) = (Listed::default(), Vec::new());
        match &arrival.request {
            Request::Hello => {}
            // The link is broken, so nothing would be relayed.
            Request::Listen(_) => return Err(refused),
            Request::List(request) => listed = store.list(request),
            Request::Steps(steps) => {
                for (key, command) in steps {
                    match store.read(self.now, key, command) {
                        Some(answer) => answers.push(answer),
                        None => return Err(refused),
                    }
                }
                for ((key, command), answer) in steps.iter().zip(&answers) {
                    self.choices.trace.fold(summary(answer));
                    self.keep_executed(arrival, (key, command), stamp, answer);
                }
            }
        }
        Ok(Response {
            stamp,
            answers,
            listed,
        })
    }
}
