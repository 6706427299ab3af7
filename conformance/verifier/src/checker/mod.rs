//! The checker of a run, on the true timeline.
//!
//! No search is needed: the simulation knows the truth. Each step of a server is checked by the
//! states before and after it ([`holders`], [`order`], [`replies`], [`answers`], [`reasons`]) and
//! by the messages that it sends ([`pushes`]), which is a second, declarative
//! reading of docs/semantics.md that shares no code with the state machine. What the clients'
//! guards say is checked against those states and against each other ([`guards`]).
//!
//! Every finding names the promise that it breaks: S1 to S5, L1 to L4, or the rule.

mod answers;
mod coverage;
mod duties;
mod events;
mod guards;
mod history;
mod holders;
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
use leasehold_api::{AcquireReply, Key, Mode, PollReply, SessionId};
use leasehold_sim::Event;
use litemap::LiteMap;

pub use coverage::{Coverage, Situation};
pub(crate) use guards::{GuardId, Holding, Said, Watched};
pub(crate) use step::{Step, operation as operation_of};

use duties::Duties;
use guards::{Guards, InUse};
use history::History;
use reasons::Reasons;

/// More findings than these of one run tell nothing new.
const FINDINGS: usize = 8;

/// What the checker remembers is little in each run, and there are many runs: sorted vectors are
/// made, searched and dropped faster than trees.
type Set<T> = LiteMap<T, ()>;

/// What the stress runs calls its client of that index.
pub(crate) fn who(client: usize) -> String {
    let letter = ('a'..='z').nth(client).unwrap_or('?');
    format!("client {letter}")
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// Which: S1 to S5, L1 to L4, a rule of docs/semantics.md.
    pub promise: &'static str,
    /// When, on the true timeline.
    pub at: Duration,
    /// What happened.
    pub text: String,
}

/// What was found so far.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    at: Duration,
    violations: Vec<Violation>,
    /// Set by the first of them.
    broken: Arc<AtomicBool>,
}

impl Findings {
    pub(crate) fn add(&mut self, promise: &'static str, text: String) {
        if self.violations.len() < FINDINGS {
            let at = self.at;
            self.broken.store(true, Ordering::Relaxed);
            self.violations.push(Violation { promise, at, text });
        }
    }
}

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// The assumptions A1 to A4 hold: everything.
    Within,
    /// One of them does not: S3, S4 under its condition, S5, and after healing L1 to L4.
    Outside,
}

/// The checker of one run.
///
/// It is called under the lock of the simulation, and never calls back.
#[derive(Debug)]
pub(crate) struct Checker {
    model: Model,
    found: Findings,
    pub(crate) seen: Coverage,
    history: History,
    reasons: Reasons,
    guards: Guards,
    duties: Duties,
    /// The client whose last acquire was granted.
    granted: Option<usize>,
    /// How many subscriptions there are to each session's channel.
    listeners: LiteMap<SessionId, u32>,
    /// Whether the server cannot tell who listens.
    mute: bool,
    /// When the server stopped.
    stopped: Duration,
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
            mute: false,
            stopped: Duration::ZERO,
        }
    }

    /// Checks one step of a server.
    pub(crate) fn step(&mut self, step: &Step<'_>) {
        self.found.at = step.at;
        rare::note(step, &mut self.seen);
        holders::check(step, self.model, &mut self.found);
        if step.has_queue() {
            order::check(step, &mut self.found);
        }
        order::kept_out(step, &mut self.found);
        replies::check(step, &mut self.found);
        answers::check(step, &mut self.found);
        pushes::check(step, &mut self.found);
        let ended = self.history.ended(step);
        self.reasons
            .step(step, ended.is_some(), self.model, &mut self.found);
        let notes = (&mut self.seen, &mut self.found);
        self.history.step(step, ended, self.model, notes);
        self.guards.step(step, &mut self.found);
        if self.model == Model::Within {
            self.duties.step(step, &mut self.found);
        }
        if self.model == Model::Within && step.has_queue() {
            // Who may hear something counts as listening (rule 9).
            let (mute, listeners) = (self.mute, &self.listeners);
            let hears = |session: &SessionId| mute || listeners.contains_key(session);
            order::unreachable(step, hears, &mut self.found);
            pushes::woken(step, hears, &mut self.found);
        }
        let granted = matches!(
            step.reply,
            Reply::Acquire(AcquireReply::Acquired(_)) | Reply::Poll(PollReply::Acquired(_))
        );
        self.granted = granted.then_some(step.client);
    }

    /// Notes what else happens.
    pub(crate) fn event(&mut self, at: Duration, client: Option<usize>, event: &Event) {
        self.found.at = at;
        events::note(self, at, client, event);
        self.guards.event(client, event);
        self.duties.event(at, client, event, self.guards.waiting());
    }

    /// Calls may take longer than a renewal waits for.
    pub(crate) const fn slow_network(&mut self) {
        self.duties.slow_network();
    }

    /// Something is done to a client by its own user that its duties must not be checked by.
    pub(crate) fn excuse(&mut self, at: Duration, client: usize) {
        self.duties.trouble(client, at);
    }

    /// A guard was handed to a user.
    pub(crate) fn hold(&mut self, at: Duration, holding: Holding) -> GuardId {
        self.guards.hold(at, holding)
    }

    /// Its user converted it.
    pub(crate) fn set_mode(&mut self, id: GuardId, mode: Mode) {
        self.guards.set_mode(id, mode);
    }

    /// Its user ends it, or lets go of it.
    pub(crate) fn end(&mut self, id: GuardId) {
        self.guards.end(id);
    }

    /// All guards in users' hands; what they [say](Said) is then to be [checked](Self::check).
    pub(crate) fn in_use(&self) -> InUse {
        self.guards.in_use()
    }

    /// Checks what all guards say at one instant.
    pub(crate) fn check(&mut self, at: Duration, said: &[Said]) {
        self.found.at = at;
        self.guards
            .check(at, said, self.model, &mut self.seen, &mut self.found);
        if self.model == Model::Within {
            self.guards.kept(at, said, &self.duties, &mut self.found);
        }
    }

    /// A write took effect at the protected resource.
    pub(crate) fn written(&mut self, at: Duration, key: &Key, token: u64) {
        self.found.at = at;
        self.history.written(key, token, &mut self.found);
    }

    /// What stands at the server, by the client that left it there.
    pub(crate) fn left_by(&self, at: Duration) -> Vec<(usize, String)> {
        let mut left = self.guards.left_by(at);
        left.retain(|(client, _)| !self.guards.may_have_given_up(*client));
        left
    }

    /// A client's user has had nothing on a key for `time`: if the client was well for as long,
    /// nothing is there.
    pub(crate) fn left_nothing(&mut self, at: Duration, client: usize, key: &Key, time: Duration) {
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
            let text = format!("{} left {sequence} at {key:?}", who(client));
            self.found.add("no orphans", text);
        }
    }

    /// Whether a client holds a key at the server that no guard stands for.
    pub(crate) fn leaks(&self, at: Duration, client: usize, key: &Key) -> bool {
        self.guards.leaked(client, key, at).is_some()
    }

    pub(crate) const fn model(&self) -> Model {
        self.model
    }

    /// A promise was broken that is checked elsewhere.
    pub(crate) fn broken(&mut self, at: Duration, promise: &'static str, text: String) {
        self.found.at = at;
        self.found.add(promise, text);
    }

    /// Sets this when the first promise is broken.
    pub(crate) fn set_on_first(&mut self, broken: Arc<AtomicBool>) {
        self.found.broken = broken;
    }

    /// Lets go of all guards that users had.
    pub(crate) fn let_go(&mut self) -> impl Sized + use<> {
        std::mem::take(&mut self.guards)
    }

    /// The verdict: takes out what was found.
    pub(crate) fn verdict(&mut self) -> (Vec<Violation>, Coverage) {
        let found = std::mem::take(&mut self.found.violations);
        (found, std::mem::take(&mut self.seen))
    }
}
