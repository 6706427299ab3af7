//! The steps of a server: commands that it executes.

use leasehold_api::machine::Command;
use leasehold_api::{Key, Stamp};

use crate::network::Network;
use crate::network::event::Arrival;
use crate::network::observer::Execution;
use crate::network::transport::summary;
use crate::record::{Event, ServerAnswer};
use crate::server::store::Executed;

impl Network {
    /// Executes a command, and shows it to the observer.
    pub(crate) fn step(
        &mut self,
        arrival: &Arrival,
        (key, command): (&Key, &Command),
        together: usize,
        on_old: bool,
    ) -> Executed {
        let store = &mut self.servers.of(on_old).store;
        if let Some(observer) = &mut self.observer {
            observer.executes(key, store.state(key));
        }
        let executed = store.execute(self.now, key, command);
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
                stamp: executed.stamp,
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
