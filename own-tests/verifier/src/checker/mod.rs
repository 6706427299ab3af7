//! Checks the promises of docs/semantics.md during a run, on the true timeline.
//!
//! The checker needs no search, because the simulation knows the truth. It compares the states
//! before and after each step of a server ([`holders`], [`order`], [`replies`], [`answers`],
//! [`reasons`], [`notes`]) and checks the messages that the step sends ([`pushes`]). This is a second,
//! declarative reading of docs/semantics.md, and shares no code with the state machine. The
//! checker also compares the clients' guards with the servers and with each other ([`guards`]).
//!
//! Every finding names the broken promise: S1 to S5, L1 to L4, or a rule.

mod answers;
mod coverage;
mod duties;
mod events;
mod guards;
mod history;
mod holders;
mod notes;
mod order;
mod pushes;
mod rare;
mod reasons;
mod replies;
mod small_map;
mod step;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_api::machine::Reply;
use leasehold_api::{AcquireReply, Key, Mode, Operation, PollReply, SessionId};
use leasehold_sim::Event;
use litemap::LiteMap;

pub use coverage::{Coverage, Situation};
pub(crate) use guards::{GuardId, GuardReading, Holding, TrackableGuard};
pub(crate) use step::{Step, operation as operation_of};

use duties::Duties;
use guards::{Guards, InUse};
use history::History;
use reasons::Reasons;

/// The maximum number of findings of one run; more would tell nothing new.
const FINDINGS: usize = 8;

/// A small set. The checker stores few elements per run, and there are many runs: sorted vectors
/// are built, searched and dropped faster than trees.
type Set<T> = LiteMap<T, ()>;

/// The name of a client in findings.
pub(crate) fn client_name(client: usize) -> String {
    let letter = ('a'..='z').nth(client).unwrap_or('?');
    format!("client {letter}")
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The promise: S1 to S5, L1 to L4, a rule of docs/semantics.md, or a plain word.
    pub promise: &'static str,
    /// The time since the run began, on the true timeline.
    pub at: Duration,
    /// What happened.
    pub text: String,
}

/// The violations found so far.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    at: Duration,
    violations: Vec<Violation>,
    /// The promises to report; all, if there are none.
    promises: &'static [&'static str],
    /// Set by the first violation.
    broken: Arc<AtomicBool>,
}

impl Findings {
    pub(crate) fn add(&mut self, promise: &'static str, text: String) {
        let wanted = self.promises.is_empty() || self.promises.contains(&promise);
        if wanted && self.violations.len() < FINDINGS {
            let at = self.at;
            self.broken.store(true, Ordering::Relaxed);
            self.violations.push(Violation { promise, at, text });
        }
    }
}

/// Whether the assumptions A1 to A4 hold, which decides what is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// They hold. Everything is checked.
    Within,
    /// One of them fails. Checks S3, S4 under its condition, S5, and after recovery L1 to L4.
    Outside,
}

/// The checker of one run.
///
/// The simulation calls it under its lock; the checker never calls back.
#[derive(Debug)]
pub(crate) struct Checker {
    model: Model,
    found: Findings,
    pub(crate) seen: Coverage,
    history: History,
    reasons: Reasons,
    guards: Guards,
    duties: Duties,
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
    clock_moved: bool,
}

impl Checker {
    pub(crate) fn new(model: Model) -> Self {
        Self {
            model,
            found: Findings::default(),
            seen: Coverage::default(),
            history: History::default(),
            reasons: Reasons::default(),
            guards: Guards::default(),
            duties: Duties::default(),
            granted: None,
            listeners: LiteMap::new_vec(),
            publish_refused: false,
            count_refused: false,
            stopped: Duration::ZERO,
            switched_over: None,
            clock_moved: false,
        }
    }

    /// Checks one step of a server.
    pub(crate) fn step(&mut self, step: &Step<'_>) {
        self.found.at = step.at;
        rare::note(step, &mut self.seen);
        let forgets = self.model == Model::Outside || self.clock_moved;
        holders::check(step, forgets, &mut self.found);
        if step.has_queue() {
            order::check(step, &mut self.found);
        }
        order::blocked(step, &mut self.found);
        replies::check(step, &mut self.found);
        answers::check(step, &mut self.found);
        pushes::check(step, &mut self.found);
        notes::check(step, &mut self.found);
        let released = self.history.released(step);
        self.reasons
            .step(step, released.is_some(), self.model, &mut self.found);
        let notes = (&mut self.seen, &mut self.found);
        self.history.step(step, released, self.model, notes);
        self.guards.step(step, &mut self.found);
        if self.model == Model::Within {
            self.duties.step(step, &mut self.found);
        }
        if self.model == Model::Within && step.has_queue() {
            // If the server cannot tell who listens, everybody counts as listening (rule 9).
            let unknown = self.publish_refused || self.count_refused;
            let listeners = &self.listeners;
            let hears = |session: &SessionId| unknown || listeners.contains_key(session);
            order::unreachable(step, hears, &mut self.found);
            pushes::woken(step, hears, &mut self.found);
        }
        let granted = matches!(
            step.reply,
            Reply::Acquire(AcquireReply::Acquired(_)) | Reply::Poll(PollReply::Acquired(_))
        );
        self.granted = granted.then_some(step.client);
    }

    /// Records an event outside of the servers' steps.
    pub(crate) fn event(&mut self, at: Duration, client: Option<usize>, event: &Event) {
        self.found.at = at;
        events::note(self, at, client, event);
        self.guards.event(client, event);
        self.duties.event(at, client, event, self.guards.waiting());
    }

    /// Whether the primary counts a subscription of a client among its listeners.
    fn is_counted(&self, client: usize) -> bool {
        let mut listeners = self.listeners.keys();
        listeners.any(|session| self.guards.client_of(session) == Some(client))
    }

    /// Turns off the checks of [`Duties`], because calls may take longer than a renewal waits.
    pub(crate) const fn slow_network(&mut self) {
        self.duties.slow_network();
    }

    /// Restarts the time for which a client has been healthy, because its own user interfered.
    pub(crate) fn excuse(&mut self, at: Duration, client: usize) {
        self.duties.disturb(client, at);
    }

    /// Starts to track a guard that a user received.
    pub(crate) fn track(&mut self, at: Duration, holding: Holding) -> GuardId {
        self.guards.track(at, holding)
    }

    /// The operation that holds a tracked guard, as long as the server has it.
    pub(crate) fn operation(&self, id: GuardId) -> Option<Operation> {
        self.guards.operation(id)
    }

    /// Records that the user converted the guard.
    pub(crate) fn set_mode(&mut self, id: GuardId, mode: Mode) {
        self.guards.set_mode(id, mode);
    }

    /// Stops tracking a guard, because its user releases or drops it.
    pub(crate) fn untrack(&mut self, id: GuardId) {
        self.guards.untrack(id);
    }

    /// Returns the tracked guards, to be [read](GuardReading) and [checked](Self::check).
    pub(crate) fn in_use(&self) -> InUse {
        self.guards.in_use()
    }

    /// Checks the readings of all guards at one instant.
    pub(crate) fn check(&mut self, at: Duration, readings: &[GuardReading]) {
        self.found.at = at;
        self.guards
            .check(at, readings, self.model, &mut self.seen, &mut self.found);
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

    /// Returns the live holds and waiters at the servers, each with its client.
    pub(crate) fn left_by(&self, at: Duration) -> Vec<(usize, String)> {
        let mut left = self.guards.left_by(at);
        left.retain(|(client, _)| !self.guards.may_have_given_up(*client));
        left
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

    /// Whether a client has a hold on a key at the server without a guard.
    pub(crate) fn leaks(&self, at: Duration, client: usize, key: &Key) -> bool {
        self.guards.leaked(client, key, at).is_some()
    }

    pub(crate) const fn model(&self) -> Model {
        self.model
    }

    /// Adds a violation that was found elsewhere.
    pub(crate) fn broken(&mut self, at: Duration, promise: &'static str, text: String) {
        self.found.at = at;
        self.found.add(promise, text);
    }

    /// Reports only violations of these promises; of all, if there are none.
    pub(crate) const fn look_only_for(&mut self, promises: &'static [&'static str]) {
        self.found.promises = promises;
    }

    /// Sets `broken` when the first promise is broken.
    pub(crate) fn set_on_first(&mut self, broken: Arc<AtomicBool>) {
        self.found.broken = broken;
    }

    /// Takes out all guards, so that the caller can drop them.
    pub(crate) fn take_guards(&mut self) -> impl Sized + use<> {
        std::mem::take(&mut self.guards)
    }

    /// Takes out the violations and the coverage of the run.
    pub(crate) fn verdict(&mut self) -> (Vec<Violation>, Coverage) {
        let found = std::mem::take(&mut self.found.violations);
        (found, std::mem::take(&mut self.seen))
    }
}
