//! The steps of a server: commands that it executes, and results that a client asks it to store.

use leasehold_api::machine::Command;
use leasehold_api::{Key, ServerTime, Stamp};

use crate::network::Network;
use crate::network::event::{Arrival, CompareAndSet, Request};
use crate::network::observer::Execution;
use crate::network::transport::summary;
use crate::record::{Event, ServerAnswer};
use crate::server::store::Executed;

impl Network {
    /// Whether the request is for a server with another clock. A connection leads to one server.
    pub(crate) fn is_elsewhere(&mut self, arrival: &Arrival) -> bool {
        let Request::CompareAndSet(request) = &arrival.request else {
            return false;
        };
        let on_old = self.servers.is_old(arrival.process);
        self.servers.of(on_old).store.clock() != request.at.clock
    }

    /// Returns the stored form before; `None` if the key didn't exist.
    pub(crate) fn compare_and_set(
        &mut self,
        arrival: &Arrival,
        request: &CompareAndSet,
        on_old: bool,
    ) -> Option<Vec<u8>> {
        let CompareAndSet {
            key,
            encode,
            old,
            new,
            command,
            at,
        } = request;
        let store = &mut self.servers.of(on_old).store;
        let (found, stamp) = (store.form(self.now, key, *encode), store.stamp(self.now));
        let applied = found == *old;
        self.choices.trace.fold(14 ^ u64::from(applied) << 8);
        if applied {
            self.step(arrival, (key, command), at.at, 1, on_old);
            let store = &self.servers.of(on_old).store;
            assert!(
                store.state(key).and_then(encode).as_ref() == Some(new),
                "the client stores another state of {key} than its command makes"
            );
        }
        self.keep(Some(arrival.message), Some(arrival.client), || {
            Event::Compared {
                key: key.clone(),
                command: Box::new(command.clone()),
                step_at: at.at,
                applied,
                stamp,
            }
        });
        found
    }

    /// Executes a command at a time of the server's clock, and shows it to the observer.
    pub(crate) fn step(
        &mut self,
        arrival: &Arrival,
        (key, command): (&Key, &Command),
        at: ServerTime,
        together: usize,
        on_old: bool,
    ) -> Executed {
        let store = &mut self.servers.of(on_old).store;
        if let Some(observer) = &mut self.observer {
            observer.executes(key, store.state(key));
        }
        let executed = store.execute_at(self.now, key, command, at);
        let stamp = store.stamp(self.now);
        self.choices.trace.fold(summary(&executed.answer));
        let (answer, messages) = (&executed.answer, &executed.messages);
        self.tally
            .executed(self.now, arrival.client, (key, command), answer, messages);
        if let Some(observer) = &mut self.observer {
            observer.executed(&Execution {
                sent: arrival.sent,
                at: self.now,
                client: arrival.client,
                key,
                command,
                stamp,
                step_at: at,
                answer: &executed.answer,
                messages: &executed.messages,
                together,
                again: arrival.again,
                state: store.state(key),
            });
        }
        executed
    }

    /// Adds an executed command to the log, if there is one.
    pub(crate) fn keep_executed(
        &mut self,
        arrival: &Arrival,
        (key, command): (&Key, &Command),
        stamp: Stamp,
        answer: &ServerAnswer,
    ) {
        self.keep(Some(arrival.message), Some(arrival.client), || {
            Event::Executed {
                key: key.clone(),
                command: Box::new(command.clone()),
                stamp,
                answer: answer.clone(),
                again: arrival.again,
            }
        });
    }
}
