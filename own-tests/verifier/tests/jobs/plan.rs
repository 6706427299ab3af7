//! What the machines of a run do.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::LockClient;
use leasehold_sim::SimServer;

use crate::log::{SLACK, Watch};
use crate::machine::Machine;
use crate::{broken, operator};

/// From one occurrence to the next, and the window to start one.
pub(crate) const PERIOD: Duration = Duration::from_secs(200);
/// The window of `not_within`, which a run and its delays must fit beside in a period.
pub(crate) const WINDOW: Duration = Duration::from_secs(100);
pub(crate) const OCCURRENCES: u32 = 3;
pub(crate) const ATTEMPTS: u32 = 3;
pub(crate) const LEASE: Duration = Duration::from_secs(6);
/// The first occurrence of `at`.
const FIRST: Duration = Duration::from_secs(1);
/// When the loops of `every` end.
const LOOPS: Duration = Duration::from_secs(605);
/// The same outside of the model, where assumptions are broken for 800 s.
const LONG_LOOPS: Duration = Duration::from_secs(1_205);

/// Whether the assumptions hold. Outside, the server loses data, and its clock is stepped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    Within,
    Outside,
}

/// How the machines name the occurrences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Form {
    #[default]
    At,
    NotWithin,
    Every,
}

impl Form {
    /// From the fire time of an occurrence until it can't start any more.
    pub(crate) const fn window(self) -> Duration {
        match self {
            Self::At | Self::Every => PERIOD,
            Self::NotWithin => WINDOW,
        }
    }
}

/// When the occurrence with this number is due.
pub(crate) fn due(number: u32) -> Duration {
    FIRST + PERIOD * number
}

pub(crate) async fn scenario(sim: SimServer, model: Model) -> Result<(), String> {
    let form = [Form::At, Form::NotWithin, Form::Every][sim.draw(3) as usize];
    let watch = Arc::new(Watch::new(sim.clone(), form));
    let machines = ["ann", "bob", "eve"].map(|name| sim.client(name));
    let admin = sim.client("admin");
    if sim.draw(2) == 0 {
        let clients = machines.iter().chain([&admin]).cloned();
        watch.end_faults(clients.collect());
    }
    let poison = sim.draw(OCCURRENCES);
    let ends = match model {
        Model::Within => LOOPS,
        Model::Outside => LONG_LOOPS,
    };
    // At most one machine dies, and the others live on.
    let dies = (sim.draw(4) == 1).then(|| Duration::from_millis(sim.draw(600_000).into()));
    let (mut tasks, mut others) = (Vec::new(), Vec::new());
    for (number, backend) in machines.into_iter().enumerate() {
        let machine = Machine {
            number,
            backend,
            watch: Arc::clone(&watch),
            form,
            poison: due(poison)..due(poison + 1),
            ends,
        };
        let dies = dies.filter(|_| number == 2);
        tasks.push(sim.spawn(machine.run(dies)));
    }
    if model == Model::Outside {
        // Nobody else steps the clock meanwhile.
        if sim.draw(2) == 0 {
            broken::silenced(&watch, &LockClient::new(admin.clone())).await;
        }
        others.push(sim.spawn(broken::break_assumptions(Arc::clone(&watch), admin)));
    } else if sim.draw(3) == 1 {
        let operator = operator::resets(Arc::clone(&watch), admin.clone());
        others.push(sim.spawn(async move { admin.run(operator).await }));
    }
    for task in tasks {
        task.await;
    }
    // Else a machine was paused: until the end of a lease, when the clock was set back.
    let awake = sim.elapsed() <= ends + SLACK;
    for task in others {
        task.await;
    }
    let mut log = watch.log();
    if form == Form::Every && awake {
        log.check_all_done(&watch, ends);
    }
    log.problems.first().cloned().map_or(Ok(()), Err)
}
