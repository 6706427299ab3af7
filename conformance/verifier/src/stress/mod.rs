//! The project's own exploration: several clients, the production lock client in each of them,
//! everything that can go wrong, and the [checker](crate::checker) that checks.
//!
//! A seed draws a plan (how many clients, which kind of lock, which policy, leases, latency, which
//! kinds of faults), runs a faulty phase, heals everything, and then everyone who is alive must
//! get its turn.

mod chaos;
mod handle;
mod healed;
mod monitor;
mod mutants;
mod plan;
mod scope;
mod simplest;
mod stranger;
mod try_only;
mod worker;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_api::{Key, LockClient};
use leasehold_sim::{
    Ending, JoinHandle, RunReport, Scheduling, SimBackend, SimOptions, SimServer, Simulation,
};

use crate::checker::{Coverage, Model, Violation, who};
use chaos::Chaos;
use healed::Healed;
use monitor::Monitor;
use plan::Plan;
use stranger::{FOREIGN, Stranger};
use worker::Worker;

pub use mutants::{CARELESS_RESOURCE, PLANTED, Planted};
pub use scope::SmallScope;
pub use try_only::try_only;

/// How long after the last user has left nothing of the living is at the server.
const CLEAN_UP: Duration = Duration::from_secs(2);

fn key(number: u32) -> Key {
    Key::new(format!("job{number}")).expect("a valid key")
}

/// How many commands a lagging replica may lack.
const JOURNAL: usize = 64;

/// How many steps a run has at most: many times more than any that ends.
const STEP_LIMIT: u64 = 1_000_000;

/// What docs/semantics.md assumes of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assumption {
    /// A1: one write history for each key.
    OneHistory,
    /// A2: nobody evicts our keys.
    NoEviction,
    /// A3: clocks run at the same rate within the drift allowance.
    SameRate,
    /// A4: the user stops at the reported deadline.
    UserStops,
}

/// What is explored.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stress {
    out_of_model: bool,
    careless_resource: bool,
    broken: Option<Assumption>,
    size: Option<(u32, u32)>,
    until_broken: bool,
}

impl Stress {
    /// Runs in which the assumptions A1 to A4 of docs/semantics.md hold: all is checked.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs in which servers lose data and clocks are stepped: S1 and S2 are not checked.
    #[must_use]
    pub const fn out_of_model(mut self) -> Self {
        self.out_of_model = true;
        self
    }

    /// The protected resource takes older tokens: a mistake of its own that must be found.
    #[must_use]
    pub const fn with_careless_resource(mut self) -> Self {
        self.careless_resource = true;
        self
    }

    /// So many clients, up to four, take a mutex so many times, instead of what the seed draws.
    #[must_use]
    pub const fn with_size(mut self, clients: u32, rounds: u32) -> Self {
        self.size = Some((clients, rounds));
        self
    }

    /// Everything is checked as if the assumptions held, but this one does not: S1 or S2 must fail,
    /// or their check is worth nothing.
    #[must_use]
    pub const fn breaking(mut self, assumption: Assumption) -> Self {
        self.broken = Some(assumption);
        self
    }

    /// Each run [stops](Ending::Stopped) at the first promise that it breaks: for those who do not
    /// ask what else it breaks.
    #[must_use]
    pub const fn until_broken(mut self) -> Self {
        self.until_broken = true;
        self
    }

    /// Runs one seed.
    pub fn run(&self, options: SimOptions, scheduling: Scheduling) -> StressRun {
        self.run_within(STEP_LIMIT, options, scheduling)
    }

    fn run_within(&self, steps: u64, options: SimOptions, scheduling: Scheduling) -> StressRun {
        let (report, monitor) = self.run_monitored(steps, options, scheduling);
        StressRun::new(report, monitor.as_ref())
    }

    fn run_monitored(
        &self,
        steps: u64,
        options: SimOptions,
        scheduling: Scheduling,
    ) -> (RunReport<()>, Option<Monitor>) {
        let stress = self.clone();
        let options = if self.out_of_model || self.broken.is_some() {
            options.with_journal(JOURNAL)
        } else {
            options
        };
        let notes = options.log_limit() > 0;
        let mut monitor = None;
        let slot = &mut monitor;
        let mut simulation = Simulation::new(options)
            .with_scheduling(scheduling)
            .with_time_limit(Duration::from_secs(4_000))
            .with_step_limit(steps);
        let broken = Arc::default();
        if self.until_broken {
            simulation = simulation.with_stop(Arc::clone(&broken));
        }
        let report = simulation.run(|sim| {
            let monitor = slot.insert(stress.monitor(&sim, notes)).clone();
            monitor.set_on_first(&broken);
            async move { stress.scenario(monitor).await }
        });
        (report, monitor)
    }

    fn monitor(&self, sim: &SimServer, notes: bool) -> Monitor {
        let model = if self.out_of_model {
            Model::Outside
        } else {
            Model::Within
        };
        Monitor::new(sim, model, self.careless_resource, notes)
    }

    fn plan(&self, sim: &SimServer) -> Plan {
        let mut plan = Plan::draw(sim, self.out_of_model);
        if let Some(assumption) = self.broken {
            plan.break_assumption(assumption);
        }
        if let Some((clients, rounds)) = self.size {
            plan.set_size(clients, rounds);
        }
        plan
    }

    async fn scenario(&self, monitor: Monitor) {
        let sim = monitor.sim.clone();
        let plan = self.plan(&sim);
        if plan.is_slow() {
            monitor.slow_network();
        }
        if plan.foreign {
            let key = Key::new(FOREIGN).expect("a scenario's key is valid");
            sim.plant_foreign(&key, "list");
        }
        let healed = Arc::new(Healed::default());
        let clients: Vec<_> = (0..plan.clients)
            .map(|n| sim.client(["a", "b", "c", "d"][n as usize]))
            .collect();
        let keys: Vec<Key> = (0..plan.keys).map(key).collect();
        for client in &clients {
            client.set_latency(plan.latency);
            client.set_unordered_pushes(plan.unordered);
        }
        let mut users = Vec::new();
        for (client, backend) in clients.iter().enumerate() {
            let tasks = users_of(client, backend, &keys, plan, &monitor, &healed);
            users.extend(tasks.into_iter().map(|task| (client, task)));
        }
        let admin = plan.fault_mix.revokes;
        let mut chaos = Chaos {
            sim: sim.clone(),
            plan,
            dead: clients.iter().map(|_| Arc::default()).collect(),
            clients,
            admin: admin.then(|| LockClient::new(sim.client("admin"))),
            keys,
            split: false,
        };
        chaos.rage().await;
        chaos.heal();
        healed.set();
        let until = sim.elapsed() + plan.wait_limit();
        for (client, user) in users {
            if chaos.dead[client].load(Ordering::Relaxed) {
                continue;
            }
            let left = until.saturating_sub(sim.elapsed());
            if sim.timeout(left, user).await.is_none() {
                let wait_limit = plan.wait_limit();
                let text = format!("{} did not get its turn in {wait_limit:?}", who(client));
                return monitor.broken("L2", text);
            }
        }
        self.leave(&monitor, &chaos).await;
    }

    /// Nothing is left behind: of the living soon, of the dead after their leases.
    async fn leave(&self, monitor: &Monitor, chaos: &Chaos) {
        let sim = &monitor.sim;
        sim.sleep(CLEAN_UP).await;
        for (client, what) in monitor.left_by() {
            let dead = chaos.dead.get(client);
            let alive = dead.is_some_and(|dead| !dead.load(Ordering::Relaxed));
            // A server that forgot the ends of operations may have let late ones in again.
            if alive && !self.out_of_model {
                monitor.broken("no orphans", format!("{} left {what}", who(client)));
            }
        }
        sim.sleep(chaos.plan.last_lease()).await;
        let left = sim.left_behind();
        if !left.is_empty() {
            monitor.broken("no orphans", left);
        }
    }
}

/// Starts all who use one client: a worker for each key, and who asks for what is no lock.
fn users_of(
    client: usize,
    backend: &SimBackend,
    keys: &[Key],
    plan: Plan,
    monitor: &Monitor,
    healed: &Arc<Healed>,
) -> Vec<JoinHandle<()>> {
    let locks = LockClient::new(backend.clone());
    let mut tasks = Vec::new();
    for key in keys {
        let worker = Worker {
            client,
            backend: backend.clone(),
            locks: locks.clone(),
            key: key.clone(),
            plan,
            monitor: monitor.clone(),
            healed: Arc::clone(healed),
        };
        // Boxed, because it is large, and every `async` around it would copy it.
        let (backend, work) = (backend.clone(), Box::pin(worker.run()));
        tasks.push(monitor.sim.spawn(async move { backend.run(work).await }));
    }
    if plan.foreign {
        let monitor = monitor.clone();
        let stranger = Stranger {
            locks,
            plan,
            monitor,
        };
        let (sim, backend) = (stranger.monitor.sim.clone(), backend.clone());
        tasks.push(sim.spawn(async move { backend.run(stranger.run()).await }));
    }
    tasks
}

/// What one seed came to.
#[derive(Debug)]
#[non_exhaustive]
pub struct StressRun {
    /// The promises that were broken; the run is good if there are none.
    pub violations: Vec<Violation>,
    /// The rare situations that it reached.
    pub coverage: Coverage,
    /// The run itself: tape, log, trace.
    pub report: RunReport<()>,
}

impl StressRun {
    fn new(report: RunReport<()>, monitor: Option<&Monitor>) -> Self {
        let (mut violations, coverage) = monitor.map(Monitor::verdict).unwrap_or_default();
        let failed = match &report.ending {
            Ending::Completed(()) | Ending::Stopped => None,
            Ending::Deadlock => Some("nothing can go on".to_owned()),
            Ending::TimeLimit => Some("it takes too long".to_owned()),
            Ending::StepLimit => Some("it takes too many steps".to_owned()),
            Ending::Panicked(message) => Some(format!("a panic: {message}")),
            Ending::Diverged(divergence) => Some(divergence.to_string()),
        };
        violations.extend(failed.map(|text| Violation {
            promise: "L4",
            at: report.elapsed,
            text,
        }));
        Self {
            violations,
            coverage,
            report,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_run_is_left_in_memory() {
        let stress = Stress::new();
        for seed in 0..40 {
            let (report, monitor) =
                stress.run_monitored(STEP_LIMIT, SimOptions::new(seed), Scheduling::Random);
            let monitor = monitor.expect("the scenario has begun");
            // The simulation owns an observer that shares the checker.
            let left = monitor.weak();
            drop(StressRun::new(report, Some(&monitor)));
            drop(monitor);
            assert_eq!(left.strong_count(), 0, "seed {seed}");
        }
    }
}
