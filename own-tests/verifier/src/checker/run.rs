//! The checker of one run: it gives each step and each event to its parts.

use std::time::Duration;

use leasehold_api::{Key, SessionId};
use leasehold_sim::tools::Event;

use crate::checker::coverage::Coverage;
use crate::checker::duties::Duties;
use crate::checker::events::Events;
use crate::checker::findings::{Findings, Model, Violation, client_name};
use crate::checker::guards::{GuardReading, Guards};
use crate::checker::history::History;
use crate::checker::order::Upgrades;
use crate::checker::step::Step;
use crate::checker::{holders, order, rare};

/// The checker of one run.
///
/// The simulation calls it under its lock; the checker never calls back.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    pub(crate) model: Model,
    pub(crate) found: Findings,
    history: History,
    upgrades: Upgrades,
    pub(crate) guards: Guards,
    pub(crate) duties: Duties,
    events: Events,
}

impl Checker {
    pub(crate) fn new(model: Model) -> Self {
        Self {
            model,
            ..Self::default()
        }
    }

    /// Checks one step of a server.
    pub(crate) fn step(&mut self, step: &Step<'_>) {
        self.found.at = step.at;
        rare::note(step, &mut self.found.seen);
        let within = self.model == Model::Within;
        let forgets = !within || self.events.clock_moved;
        holders::check(step, forgets, &mut self.found);
        if step.has_queue() {
            order::check(step, &mut self.found);
        }
        order::blocked(step, &mut self.found);
        self.history.step(step, self.model, &mut self.found);
        self.guards.step(step, &mut self.found);
        if within {
            // A server that lost data may have forgotten an upgrade.
            self.upgrades.step(step, &mut self.found);
            self.duties.step(step, &mut self.found);
            if step.has_queue() {
                let hears = |session: &SessionId| self.events.may_listen(session);
                order::unreachable(step, hears, &mut self.found);
            }
        }
        self.events.step(step);
    }

    /// Records an event outside of the servers' steps.
    pub(crate) fn event(&mut self, at: Duration, client: Option<usize>, event: &Event) {
        self.found.at = at;
        let known = (&mut self.guards, &mut self.found.seen);
        self.events.event(at, client, event, self.model, known);
        self.guards.event(client, event);
        self.duties.event(at, client, event, self.guards.waiting());
    }

    /// Checks the readings of all guards at one instant.
    pub(crate) fn check(&mut self, at: Duration, readings: &[GuardReading]) {
        self.found.at = at;
        self.guards.check(at, readings, self.model, &mut self.found);
        if self.model == Model::Within {
            self.guards
                .kept(at, readings, &self.duties, &mut self.found);
        }
    }

    /// Checks a write that took effect at the protected resource.
    pub(crate) fn written(&mut self, at: Duration, key: &Key, token: u64) {
        self.found.at = at;
        self.history.written(key, token, &mut self.found);
    }

    /// Checks an addition to the protected resource: the value that it read and the value that it
    /// replaced are the same.
    pub(crate) fn added(&mut self, at: Duration, key: &Key, token: u64, values: (u32, u32)) {
        self.found.at = at;
        self.history.added(key, token, values, &mut self.found);
    }

    /// Checks that a client has nothing left on a key.
    ///
    /// Its user has had no guard and no wait on the key for `time`. The check applies if the client
    /// was healthy for as long.
    pub(crate) fn check_nothing_left(
        &mut self,
        at: Duration,
        client: usize,
        key: &Key,
        time: Duration,
    ) {
        let healthy = self.duties.healthy_since(client);
        if self.model == Model::Outside
            || healthy.is_none_or(|since| since + time > at)
            || self.guards.may_have_given_up(client)
        {
            return;
        }
        self.found.at = at;
        let hold = self.guards.leaked(client, key, at);
        let waiter = self.guards.waits(client, key, at);
        if let Some((_, sequence)) = hold.or(waiter) {
            let text = format!("{} left {sequence} at {key:?}", client_name(client));
            self.found.add("no orphans", text);
        }
    }

    /// Adds a violation that was found elsewhere.
    pub(crate) fn broken(&mut self, at: Duration, promise: &'static str, text: String) {
        self.found.at = at;
        self.found.add(promise, text);
    }

    /// Takes out the violations and the coverage of the run.
    pub(crate) fn verdict(&mut self) -> (Vec<Violation>, Coverage) {
        let found = std::mem::take(&mut self.found.violations);
        (found, std::mem::take(&mut self.found.seen))
    }
}
