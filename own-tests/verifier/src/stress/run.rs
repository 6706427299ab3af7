//! One stress run: its clients, its faults, and what must hold at its end.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{Key, LockClient};
use leasehold_sim::tools::Scheduling;
use leasehold_sim::{JoinHandle, Reads, RunReport, SimOptions, SimServer, Simulation};

use crate::checker::{Model, client_name};
use crate::stress::chaos::Chaos;
use crate::stress::foreign::{FOREIGN, try_foreign};
use crate::stress::healed::Healed;
use crate::stress::machine::Machine;
use crate::stress::monitor::Monitor;
use crate::stress::outcome::StressRun;
use crate::stress::plan::{Assumption, Plan};
use crate::stress::resource::Flaw;
use crate::stress::worker::Worker;

/// How soon live clients have left nothing at the server after their last release.
const CLEAN_UP: Duration = Duration::from_secs(2);

fn key(number: u32) -> Key {
    Key::new(format!("job{number}")).expect("a valid key")
}

/// The maximum number of commands that a lagging replica may lack.
const JOURNAL: usize = 64;

/// The maximum number of steps of a run: many times more than any run needs.
pub(super) const STEP_LIMIT: u64 = 1_000_000;

/// A configuration of stress runs.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stress {
    out_of_model: bool,
    flaw: Option<Flaw>,
    broken: Option<Assumption>,
    until_broken: bool,
    replicas_answer: bool,
    promises: &'static [&'static str],
}

impl Stress {
    /// Configures runs in which the assumptions A1 to A4 of docs/semantics.md hold. Every promise
    /// is checked.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets servers lose data and steps their clocks. S1 and S2 are not checked.
    #[must_use]
    pub const fn out_of_model(mut self) -> Self {
        self.out_of_model = true;
        self
    }

    /// Lets the protected resource accept older tokens, which the checker must find.
    #[must_use]
    pub const fn with_careless_resource(mut self) -> Self {
        self.flaw = Some(Flaw::TakesOlderTokens);
        self
    }

    /// Lets users read the protected resource without claiming it first, which loses additions. The
    /// checker must find that.
    #[must_use]
    pub const fn without_claims(mut self) -> Self {
        self.flaw = Some(Flaw::ReadsWithoutClaim);
        self
    }

    /// Lets a replica that lags answer commands that write nothing, as a Redis replica does unless the
    /// script refuses. Exclusion and fencing hold all the same, but a guard may be lost for no reason.
    #[must_use]
    pub const fn with_answering_replicas(mut self) -> Self {
        self.replicas_answer = true;
        self
    }

    /// Breaks one assumption, and checks the runs as if it held. The checker must then find that S1
    /// or S2 is broken.
    #[must_use]
    pub const fn breaking(mut self, assumption: Assumption) -> Self {
        self.broken = Some(assumption);
        self
    }

    /// Reports only violations of these promises; of all, if there are none.
    #[must_use]
    pub const fn only(mut self, promises: &'static [&'static str]) -> Self {
        self.promises = promises;
        self
    }

    /// [Stops](leasehold_sim::Ending::Stopped) each run at the first broken promise.
    #[must_use]
    pub const fn until_broken(mut self) -> Self {
        self.until_broken = true;
        self
    }

    /// Runs the seed of `options`.
    pub fn run(&self, options: SimOptions, scheduling: Scheduling) -> StressRun {
        self.run_within(STEP_LIMIT, options, scheduling)
    }

    pub(super) fn run_within(
        &self,
        steps: u64,
        options: SimOptions,
        scheduling: Scheduling,
    ) -> StressRun {
        let (report, monitor) = self.run_monitored(steps, options, scheduling);
        let mut run = StressRun::new(report, monitor.as_ref());
        let wanted = |promise| self.promises.is_empty() || self.promises.contains(&promise);
        run.violations.retain(|found| wanted(found.promise));
        run
    }

    fn run_monitored(
        &self,
        steps: u64,
        mut options: SimOptions,
        scheduling: Scheduling,
    ) -> (RunReport<()>, Option<Monitor>) {
        let stress = self.clone();
        if self.out_of_model || self.broken.is_some() {
            options = options.journal(JOURNAL);
        }
        let notes = options.is_logged();
        let mut monitor = None;
        let slot = &mut monitor;
        let mut simulation = Simulation::new(options)
            .scheduling(scheduling)
            .time_limit(Duration::from_secs(4_000))
            .step_limit(steps);
        let broken = Arc::default();
        if self.until_broken {
            simulation = simulation.stop_flag(Arc::clone(&broken));
        }
        let report = simulation.run(|sim| {
            let monitor = slot.insert(stress.monitor(&sim, notes)).clone();
            monitor.checker(|it| it.found.broken = Arc::clone(&broken));
            async move { stress.scenario(monitor).await }
        });
        (report, monitor)
    }

    fn monitor(&self, sim: &SimServer, notes: bool) -> Monitor {
        let model = match self.out_of_model {
            true => Model::Outside,
            false => Model::Within,
        };
        let monitor = Monitor::new(sim, model, self.flaw, notes);
        monitor.checker(|it| it.found.promises = self.promises);
        monitor
    }

    fn plan(&self, sim: &SimServer) -> Plan {
        let mut plan = Plan::draw(sim, self.out_of_model);
        if let Some(assumption) = self.broken {
            plan.break_assumption(assumption);
        }
        if self.replicas_answer {
            plan.reads = Reads::Answered;
        }
        plan
    }

    async fn scenario(&self, monitor: Monitor) {
        let sim = monitor.sim.clone();
        let plan = self.plan(&sim);
        if plan.is_slow() {
            monitor.checker(|it| it.duties.slow_network());
        }
        if plan.fault_mix.count_refused {
            sim.refuse_count();
        }
        if plan.fault_mix.replicas {
            sim.cut_off_replica(plan.reads);
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
        let mut machines = Vec::new();
        for (client, backend) in clients.iter().enumerate() {
            let machine = Machine::new(client, backend.clone(), plan, monitor.clone());
            let machine = Arc::new(machine);
            let tasks = users_of(&machine, &keys, &healed);
            users.extend(tasks.into_iter().map(|task| (client, task)));
            machines.push(machine);
        }
        let admin = plan.fault_mix.revokes;
        let mut chaos = Chaos {
            sim: sim.clone(),
            plan,
            dead: clients.iter().map(|_| Arc::default()).collect(),
            clients,
            machines,
            admin: admin.then(|| LockClient::new(sim.client("admin"))),
            keys,
            healed: Arc::clone(&healed),
            split: false,
            region: Duration::ZERO,
        };
        chaos.run().await;
        chaos.heal();
        healed.set();
        let until = sim.elapsed() + plan.wait_limit();
        for (client, user) in users {
            if chaos.is_dead(client) {
                continue;
            }
            let left = until.saturating_sub(sim.elapsed());
            if sim.timeout(left, user).await.is_none() {
                let (who, limit) = (client_name(client), plan.wait_limit());
                let text = format!("{who} did not get the lock in {limit:?}");
                return monitor.broken("L2", text);
            }
        }
        self.leave(&monitor, &chaos).await;
    }

    /// Checks that nothing is left behind: by live clients soon, by dead ones after their leases.
    async fn leave(&self, monitor: &Monitor, chaos: &Chaos) {
        let sim = &monitor.sim;
        sim.sleep(CLEAN_UP).await;
        let at = sim.elapsed();
        for (client, left) in monitor.checker(|it| it.guards.left_by(at)) {
            // The operator is no client of the plan.
            let alive = client < chaos.clients.len() && !chaos.is_dead(client);
            // A server that lost its watermarks may have executed a late acquire again.
            if alive && !self.out_of_model {
                monitor.broken("no orphans", format!("{} left {left}", client_name(client)));
            }
        }
        sim.sleep(chaos.plan.last_lease()).await;
        let left = sim.left_behind();
        if !left.is_empty() {
            monitor.broken("no orphans", left);
        }
    }
}

/// Starts the users of one client: a worker for each key, and perhaps a user of the foreign key.
fn users_of(machine: &Arc<Machine>, keys: &[Key], healed: &Arc<Healed>) -> Vec<JoinHandle<()>> {
    let (plan, monitor) = (machine.plan, &machine.monitor);
    let mut tasks = Vec::new();
    for key in keys {
        let worker = Worker {
            client: machine.client,
            backend: machine.backend.clone(),
            machine: Arc::clone(machine),
            key: key.clone(),
            plan,
            monitor: monitor.clone(),
            healed: Arc::clone(healed),
        };
        // Boxed, because the future is large, and every `async` block around it would copy it.
        let (backend, work) = (machine.backend.clone(), Box::pin(worker.run()));
        tasks.push(monitor.sim.spawn(async move { backend.run(work).await }));
    }
    if plan.foreign {
        let (backend, user) = (machine.backend.clone(), try_foreign(Arc::clone(machine)));
        tasks.push(monitor.sim.spawn(async move { backend.run(user).await }));
    }
    tasks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_leaks_no_memory() {
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
