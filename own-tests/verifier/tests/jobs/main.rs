//! Explores jobs that run once, and elections, under faults. `LEASEHOLD_SEEDS` sets the number of seeds, and
//! `LEASEHOLD_FIRST_SEED` the first one.

mod broken;
mod elections;
mod judge;
mod log;
mod machine;
mod operator;
mod plan;

use std::ops::Range;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use leasehold_sim::{Exploration, FaultMix, SimBackend, SimServer};

/// The number in an environment variable, or the default.
fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

fn explorations(seeds: Range<u64>) -> Exploration {
    Exploration::new()
        .seeds(seeds)
        .fault_mix(FaultMix::all())
        .time_limit(Duration::from_secs(200_000))
}

fn asked() -> Exploration {
    let first = number("LEASEHOLD_FIRST_SEED", 0);
    explorations(first..first + number("LEASEHOLD_SEEDS", 150))
}

/// Does the work of a machine, which dies at this time, if there is one. Returns whether it has died.
async fn work_until(
    sim: &SimServer,
    machine: &SimBackend,
    dies: Option<Duration>,
    work: impl Future<Output = ()>,
) -> bool {
    let work = machine.run(work);
    let Some(dies) = dies else {
        work.await;
        return false;
    };
    let death = async {
        sim.sleep(dies).await;
        machine.kill();
    };
    // Without the work, whose machine is dead.
    matches!(select(pin!(work), pin!(death)).await, Either::Right(_))
}

#[test]
fn jobs_run_once() {
    asked().check(|sim| plan::scenario(sim, plan::Model::Within));
}

#[test]
fn jobs_keep_going_outside_of_the_model() {
    asked().check(|sim| plan::scenario(sim, plan::Model::Outside));
}

#[test]
fn one_process_leads() {
    asked().check(elections::scenario);
}
