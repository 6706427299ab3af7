//! Connects the simulation and the workers of a run with the checker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_api::machine::{State, StateParts};
use leasehold_api::{Key, Kind};
use leasehold_sim::SimServer;
use leasehold_sim::tools::{ClientEvent, Event, Execution, Observer, ServerAnswer, ServerEvent};
use litemap::LiteMap;
use smallvec::SmallVec;

use crate::checker::{
    Checker, Coverage, GuardId, GuardReading, Holding, Model, Situation, Step, Violation,
    operation_of,
};
use crate::stress::resource::{Flaw, Refused, Resource};

/// The checker of a run, with the protected resource and the pauses of the clients.
#[derive(Clone)]
pub(crate) struct Monitor {
    pub(crate) sim: SimServer,
    shared: Arc<Mutex<Shared>>,
    /// Whether the run keeps a log, so that workers write notes.
    pub(crate) notes: bool,
}

#[derive(Debug, Default)]
struct Shared {
    checker: Checker,
    /// The number of owners so far.
    owners: u64,
    resource: Resource,
    /// The number of pauses of each client.
    pauses: LiteMap<usize, u32>,
    /// The steps of the current server's clock: when, and by how many seconds.
    steps: Vec<(Duration, f64)>,
    /// When the current server's clock took over.
    era: Duration,
    /// Whether there are two primaries. Only one of their clocks is stepped then.
    split: bool,
}

impl Shared {
    /// S5: within the model, no write of a valid guard is refused.
    fn refused(&mut self, at: Duration, token: u64, refused: &Refused, valid: bool) {
        if valid && self.checker.model == Model::Within {
            let Refused(highest) = refused;
            let text = format!("a write of a valid guard's {token} was refused after {highest}");
            self.checker.broken(at, "S5", text);
        }
    }
}

/// The tolerance of a time limit: a fiftieth of it for drifting clocks, and the timers' resolution.
const SLACK_PARTS: u32 = 50;
const SLACK: Duration = Duration::from_millis(2);

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Feeds the checker with the events of the simulation.
struct CheckingObserver {
    shared: Arc<Mutex<Shared>>,
    /// The state of the step's key before and after the step.
    before: StateParts,
    after: StateParts,
}

/// Copies the state of a key.
fn read(state: Option<&State>, parts: &mut StateParts) {
    match state {
        Some(state) => state.write_parts(parts),
        None => parts.clear(),
    }
}

impl Observer for CheckingObserver {
    fn executes(&mut self, _: &Key, state: Option<&State>) {
        read(state, &mut self.before);
    }

    fn executed(&mut self, execution: &Execution<'_>) {
        let ServerAnswer::Reply(reply) = execution.answer else {
            return;
        };
        read(execution.state, &mut self.after);
        let mut shared = lock(&self.shared);
        let step = Step {
            sent: execution.sent,
            at: execution.at,
            client: execution.client,
            key: execution.key,
            command: execution.command,
            own: operation_of(execution.command),
            reply,
            now: execution.stamp.at,
            batch_size: execution.together,
            redelivered: execution.again,
            before: &self.before,
            after: &self.after,
        };
        shared.checker.step(&step);
    }

    fn event(&mut self, at: Duration, client: Option<usize>, event: &Event) {
        let mut shared = lock(&self.shared);
        if let (Some(client), Event::Client(ClientEvent::Paused)) = (client, event) {
            *shared.pauses.entry(client).or_default() += 1;
        }
        match event {
            Event::Server(ServerEvent::ClockStepped { .. }) if shared.split => {}
            Event::Server(ServerEvent::ClockStepped { forward, by }) => {
                let by = by.as_secs_f64();
                shared.steps.push((at, if *forward { by } else { -by }));
            }
            Event::Server(
                ServerEvent::KeyRemoved { .. }
                | ServerEvent::PublishRefused
                | ServerEvent::PublishAllowed
                | ServerEvent::CountRefused
                | ServerEvent::CountAllowed
                | ServerEvent::LoadingBegan
                | ServerEvent::LoadingEnded
                | ServerEvent::ReplicaCutOff { .. },
            ) => {}
            Event::Server(event) => {
                shared.steps.clear();
                shared.era = at;
                match event {
                    ServerEvent::Split { .. } => shared.split = true,
                    ServerEvent::Healed => shared.split = false,
                    _ => {}
                }
            }
            _ => {}
        }
        shared.checker.event(at, client, event);
    }
}

impl Monitor {
    /// Makes a monitor that observes the simulation from now on.
    pub(crate) fn new(sim: &SimServer, model: Model, flaw: Option<Flaw>, notes: bool) -> Self {
        let shared = Arc::new(Mutex::new(Shared {
            checker: Checker::new(model),
            resource: Resource::new(flaw),
            ..Shared::default()
        }));
        sim.observe(CheckingObserver {
            shared: Arc::clone(&shared),
            before: StateParts::default(),
            after: StateParts::default(),
        });
        Self {
            sim: sim.clone(),
            shared,
            notes,
        }
    }

    /// Gives the checker to `act`, which must not ask the simulation meanwhile.
    pub(crate) fn checker<R>(&self, act: impl FnOnce(&mut Checker) -> R) -> R {
        act(&mut lock(&self.shared).checker)
    }

    /// Returns a number for a new owner. Guards of one owner never conflict.
    pub(crate) fn next_owner(&self) -> u64 {
        let mut shared = lock(&self.shared);
        shared.owners += 1;
        shared.owners
    }

    pub(crate) fn reached(&self, situation: Situation) {
        self.checker(|checker| checker.found.reached(situation));
    }

    pub(crate) fn broken(&self, promise: &'static str, text: String) {
        let at = self.sim.elapsed();
        self.checker(|checker| checker.broken(at, promise, text));
    }

    /// Starts to track a guard that a user received.
    pub(crate) fn track(&self, holding: Holding) -> GuardId {
        let at = self.sim.elapsed();
        let id = self.checker(|checker| checker.guards.track(at, holding));
        self.check_guards();
        id
    }

    /// Whether a client has a hold on a key at the server without a guard.
    pub(crate) fn leaks(&self, client: usize, key: &Key) -> bool {
        let at = self.sim.elapsed();
        self.checker(|checker| checker.guards.leaked(client, key, at).is_some())
    }

    /// Checks a guard that is valid after a renewal, which began at `began`. The guard was asked for at `asked`, and
    /// received at `since`.
    ///
    /// If the server's clock was stepped in between so far that every client notices, the guard must
    /// be lost.
    pub(crate) fn check_clock_step(&self, asked: Duration, since: Duration, began: Duration) {
        let net: f64 = {
            let shared = lock(&self.shared);
            // The grant may have come from the server before a restart, whose clock is another one for a client. A
            // client that is paused receives it later.
            if asked <= shared.era {
                return;
            }
            let between = shared.steps.iter();
            let between = between.filter(|(at, _)| *at > since && *at < began);
            between.map(|(_, by)| by).sum()
        };
        let unnoticed = net.abs() >= 5.0 && began - since < Duration::from_secs(10);
        if unnoticed {
            let text = format!("the server's clock was stepped by {net} s, but the guard is valid");
            self.broken("clock step", text);
        }
    }

    /// Returns whether the assumptions hold in this run.
    pub(crate) fn model(&self) -> Model {
        self.checker(|checker| checker.model)
    }

    /// Counts a client as healthy only from now on, because its own user has interfered.
    pub(crate) fn excuse(&self, client: usize) {
        let at = self.sim.elapsed();
        self.checker(|checker| checker.duties.disturb(client, at));
    }

    pub(crate) fn untrack(&self, id: GuardId) {
        self.checker(|checker| checker.guards.untrack(id));
    }

    /// Reads all guards and checks them.
    pub(crate) fn check_guards(&self) {
        let at = self.sim.elapsed();
        // Guards lock the simulation to read its clock, so don't hold the checker's lock.
        let in_use = self.checker(|checker| checker.guards.in_use());
        let readings: SmallVec<[GuardReading; 4]> = in_use
            .iter()
            .map(|(id, guard)| GuardReading {
                id: *id,
                valid_for: guard.valid_for(),
                token: guard.token(),
            })
            .collect();
        self.checker(|checker| checker.check(at, &readings));
    }

    /// Writes to the protected resource. Returns whether the write took effect. `valid` tells whether
    /// the guard is valid now.
    pub(crate) fn write(&self, key: &Key, token: u64, valid: bool, kind: Kind) -> bool {
        if kind == Kind::Semaphore {
            // The tokens of a semaphore don't order its writes.
            return true;
        }
        let at = self.sim.elapsed();
        let mut shared = lock(&self.shared);
        match shared.resource.write(key, token) {
            Ok(()) => shared.checker.written(at, key, token),
            Err(refused) => {
                shared.checker.found.reached(Situation::StaleWrite);
                shared.refused(at, token, &refused, valid);
                return false;
            }
        }
        true
    }

    /// Claims the counter of the protected resource. Returns whether the claim was accepted.
    pub(crate) fn claim(&self, key: &Key, token: u64, valid: bool) -> bool {
        let at = self.sim.elapsed();
        let mut shared = lock(&self.shared);
        let claim = shared.resource.claim(key, token);
        if let Err(refused) = &claim {
            shared.refused(at, token, refused, valid);
        }
        claim.is_ok()
    }

    pub(crate) fn read(&self, key: &Key) -> u32 {
        lock(&self.shared).resource.read(key)
    }

    /// Writes one more than was read to the counter, and checks that this loses no other addition.
    pub(crate) fn add(&self, key: &Key, token: u64, read: u32, valid: bool) {
        let at = self.sim.elapsed();
        let mut shared = lock(&self.shared);
        match shared.resource.add(key, token, read) {
            Ok(replaced) => shared.checker.added(at, key, token, (read, replaced)),
            Err(refused) => {
                shared.checker.found.reached(Situation::StaleAddition);
                shared.refused(at, token, &refused, valid);
            }
        }
    }

    /// L4: a call ends by its deadline, unless its client was paused.
    pub(crate) async fn timed<F: Future>(
        &self,
        client: usize,
        limit: Option<Duration>,
        name: &str,
        call: F,
    ) -> F::Output {
        let pauses = || lock(&self.shared).pauses.get(&client).copied();
        let (began, pauses_before) = (self.sim.elapsed(), pauses());
        let output = call.await;
        let took = self.sim.elapsed() - began;
        let Some(limit) = limit else { return output };
        let most = match self.model() {
            Model::Within => limit + limit / SLACK_PARTS + SLACK,
            // Clocks may drift by nearly a third.
            Model::Outside => limit + limit / 2 + SLACK,
        };
        if pauses() == pauses_before && took > most {
            let text = format!("{name} took {took:?}, the limit is {limit:?}");
            self.broken("L4", text);
        }
        output
    }

    /// Returns a weak reference to the shared state, to find leaks.
    #[cfg(test)]
    pub(crate) fn weak(&self) -> std::sync::Weak<impl Sized + use<>> {
        Arc::downgrade(&self.shared)
    }

    /// Returns the violations and the coverage of a run that has ended.
    pub(crate) fn verdict(&self) -> (Vec<Violation>, Coverage) {
        let mut shared = lock(&self.shared);
        let verdict = shared.checker.verdict();
        // A guard keeps the simulation alive, and the simulation keeps its observer alive.
        let guards = std::mem::take(&mut shared.checker.guards);
        drop(shared);
        drop(guards);
        verdict
    }
}
