//! How the workers of a run tell the checker what they see.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_api::machine::{StateParts, State};
use leasehold_api::{Key, Kind, Mode};
use leasehold_sim::{Answer, ClientEvent, Event, Execution, Observer, ServerEvent, SimServer};
use litemap::LiteMap;
use smallvec::SmallVec;

use crate::checker::{Checker, GuardId, Holding, Model, Said, Situation, Step, operation_of};

/// The checker of a run, and what it cannot see by itself: the protected resource, and who was
/// paused when.
#[derive(Clone)]
pub(crate) struct Monitor {
    pub(crate) sim: SimServer,
    shared: Arc<Mutex<Shared>>,
    /// Whether somebody reads what workers note.
    pub(crate) notes: bool,
}

#[derive(Debug)]
struct Shared {
    checker: Checker,
    /// How many owners have been named.
    owners: u64,
    /// The highest token that the resource of each key has accepted.
    highest: LiteMap<Key, u64>,
    /// The resource takes older tokens, by mistake.
    careless: bool,
    /// How often each client was paused.
    pauses: LiteMap<usize, u32>,
    retention: Duration,
    /// When the server's clock was set, and how far, in seconds; since it last was another's.
    steps: Vec<(Duration, f64)>,
    /// Since when it is the same clock.
    era: Duration,
    /// Whether there are two primaries: only the clock of one is set then.
    split: bool,
}

/// A moment from which a call of a client is timed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    at: Duration,
    pauses: u32,
}

/// Clients' clocks may be off by so much of the time that a call takes, and by a timer's grain.
const SLACK_PARTS: u32 = 50;
const SLACK: Duration = Duration::from_millis(2);

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The checker as the simulation calls it.
struct Watcher {
    shared: Arc<Mutex<Shared>>,
    /// What was under the key of the step that is executed, and what is left there.
    before: StateParts,
    after: StateParts,
}

/// Reads what is under a key.
fn read(state: Option<&State>, facts: &mut StateParts) {
    match state {
        Some(state) => state.write_parts(facts),
        None => facts.clear(),
    }
}

impl Observer for Watcher {
    fn executes(&mut self, _: &Key, state: Option<&State>) {
        read(state, &mut self.before);
    }

    fn executed(&mut self, execution: &Execution<'_>) {
        let Answer::Reply(reply) = execution.answer else {
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
            messages: execution.messages,
            now: execution.stamp.at,
            together: execution.together,
            again: execution.again,
            before: &self.before,
            after: &self.after,
            retention: shared.retention,
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
                | ServerEvent::PublishAllowed,
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
    /// A monitor who watches from now on.
    pub(crate) fn new(sim: &SimServer, model: Model, careless: bool, notes: bool) -> Self {
        let shared = Arc::new(Mutex::new(Shared {
            checker: Checker::new(model),
            owners: 0,
            highest: LiteMap::new_vec(),
            careless,
            pauses: LiteMap::new_vec(),
            retention: leasehold_api::bounds::TOKEN_RETENTION,
            steps: Vec::new(),
            era: Duration::ZERO,
            split: false,
        }));
        sim.observe(Watcher {
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

    fn checker<R>(&self, act: impl FnOnce(&mut Checker) -> R) -> R {
        act(&mut lock(&self.shared).checker)
    }

    /// Names an owner, so that guards of one owner are known.
    pub(crate) fn next_owner(&self) -> u64 {
        let mut shared = lock(&self.shared);
        shared.owners += 1;
        shared.owners
    }

    pub(crate) fn reached(&self, situation: Situation) {
        self.checker(|checker| checker.seen.reached(situation));
    }

    pub(crate) fn broken(&self, promise: &'static str, text: String) {
        let at = self.sim.elapsed();
        self.checker(|checker| checker.broken(at, promise, text));
    }

    /// A guard was handed out.
    pub(crate) fn hold(&self, holding: Holding) -> GuardId {
        let at = self.sim.elapsed();
        let id = self.checker(|checker| checker.hold(at, holding));
        self.look();
        id
    }

    /// Calls may take longer than a renewal waits for.
    pub(crate) fn slow_network(&self) {
        self.checker(Checker::slow_network);
    }

    /// A client's user has had nothing on a key for `time`.
    pub(crate) fn left_nothing(&self, client: usize, key: &Key, time: Duration) {
        let at = self.sim.elapsed();
        self.checker(|checker| checker.left_nothing(at, client, key, time));
    }

    /// Whether a client holds a key at the server that no guard stands for.
    pub(crate) fn leaks(&self, client: usize, key: &Key) -> bool {
        let at = self.sim.elapsed();
        self.checker(|checker| checker.leaks(at, client, key))
    }

    /// A call was answered after the server's clock had been set by so much that no client can
    /// miss it: a guard from before must be lost.
    pub(crate) fn answered(&self, since: Duration, began: Duration) {
        let net: f64 = {
            let shared = lock(&self.shared);
            // What was granted in the very instant of a restart was granted by the server before it.
            if since <= shared.era {
                return;
            }
            let between = shared.steps.iter();
            let between = between.filter(|(at, _)| *at > since && *at < began);
            between.map(|(_, by)| by).sum()
        };
        let unnoticed = net.abs() >= 5.0 && began - since < Duration::from_secs(10);
        if unnoticed {
            let text = format!("the server's clock moved by {net} s, and the guard is valid");
            self.broken("A3 is watched", text);
        }
    }

    /// What is checked.
    pub(crate) fn model(&self) -> Model {
        self.checker(|checker| checker.model())
    }

    /// A client's duties are not checked by what its user does now.
    pub(crate) fn excuse(&self, client: usize) {
        let at = self.sim.elapsed();
        self.checker(|checker| checker.excuse(at, client));
    }

    pub(crate) fn set_mode(&self, id: GuardId, mode: Mode) {
        self.checker(|checker| checker.set_mode(id, mode));
    }

    pub(crate) fn end(&self, id: GuardId) {
        self.checker(|checker| checker.end(id));
    }

    /// Asks all guards and checks what they say.
    pub(crate) fn look(&self) {
        let at = self.sim.elapsed();
        // Guards read the clock of the simulation: not under the checker's lock.
        let in_use = self.checker(|checker| checker.in_use());
        let said: SmallVec<[Said; 4]> = in_use
            .iter()
            .map(|(id, guard)| Said {
                id: *id,
                valid_for: guard.valid_for(),
                token: guard.token(),
            })
            .collect();
        self.checker(|checker| checker.check(at, &said));
    }

    /// A write reaches the protected resource, which refuses every token lower than the highest
    /// that it has accepted; whether it took effect. `valid` is whether its guard is valid at this
    /// very instant.
    pub(crate) fn write(&self, key: &Key, token: u64, valid: bool, kind: Kind) -> bool {
        if kind == Kind::Semaphore {
            // Its tokens promise no order.
            return true;
        }
        let at = self.sim.elapsed();
        let mut shared = lock(&self.shared);
        let highest = shared.highest.get(key).copied().unwrap_or(0);
        if token >= highest || shared.careless {
            shared.highest.insert(key.clone(), token.max(highest));
            shared.checker.written(at, key, token);
            return true;
        }
        shared.checker.seen.reached(Situation::StaleWrite);
        if valid && shared.checker.model() == Model::Within {
            let text = format!("a valid guard's {token} was refused after {highest}");
            shared.checker.broken(at, "S5", text);
        }
        false
    }

    /// Starts to time a call of a client.
    pub(crate) fn watch(&self, client: usize) -> Watch {
        let at = self.sim.elapsed();
        let pauses = lock(&self.shared).pauses.get(&client).copied();
        let pauses = pauses.unwrap_or(0);
        Watch { at, pauses }
    }

    /// L4: a call ends by its deadline, unless its client stood still.
    pub(crate) fn took(&self, client: usize, from: Watch, limit: Option<Duration>, doing: &str) {
        let Some(limit) = limit else { return };
        let to = self.watch(client);
        let model = self.model();
        let most = match model {
            Model::Within => limit + limit / SLACK_PARTS + SLACK,
            // Clocks may be off by nearly a third.
            Model::Outside => limit + limit / 2 + SLACK,
        };
        if to.pauses == from.pauses && to.at - from.at > most {
            let took = to.at - from.at;
            self.broken("L4", format!("{doing} took {took:?}, at most {limit:?}"));
        }
    }

    /// Which clients have left something at the server.
    pub(crate) fn left_by(&self) -> Vec<(usize, String)> {
        let at = self.sim.elapsed();
        self.checker(|checker| checker.left_by(at))
    }

    /// Sets this when the first promise is broken.
    pub(crate) fn set_on_first(&self, broken: &Arc<AtomicBool>) {
        self.checker(|checker| checker.set_on_first(Arc::clone(broken)));
    }

    /// Tells whether anything of the run is left in memory.
    #[cfg(test)]
    pub(crate) fn weak(&self) -> std::sync::Weak<impl Sized + use<>> {
        Arc::downgrade(&self.shared)
    }

    /// The verdict on the run, which is over.
    pub(crate) fn verdict(&self) -> (Vec<crate::checker::Violation>, crate::checker::Coverage) {
        let mut shared = lock(&self.shared);
        let verdict = shared.checker.verdict();
        // A guard keeps the simulation alive, and the simulation its monitor.
        let guards = shared.checker.let_go();
        drop(shared);
        drop(guards);
        verdict
    }
}
