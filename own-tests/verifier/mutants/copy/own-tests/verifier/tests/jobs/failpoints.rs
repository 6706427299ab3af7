//! Tasks that stop at failpoints while the others of their machine go on.

use std::time::Duration;

use leasehold_api::mutants::failpoints::{self, OF_JOBS, OF_LOCKS, reached};
use leasehold_api::mutants::{self, have_failpoints};
use leasehold_sim::SimServer;

use crate::{elections, explorations, plan};

/// The machines of a run are its first processes.
const MACHINES: u32 = 3;
/// How many failpoints are armed at most. Other faults come at most as often.
const MOST: u32 = 9;

/// Arms failpoints in the first minute or two of a run, as other faults come then.
pub(crate) fn begin(sim: &SimServer) {
    failpoints::disarm();
    if !have_failpoints() {
        return;
    }
    let sim = sim.clone();
    drop(sim.clone().spawn(async move {
        let draw = |below: usize| sim.draw(u32::try_from(below).expect("small")) as usize;
        let millis = |below: u32| Duration::from_millis(sim.draw(below).into());
        for _ in 0..sim.draw(MOST) {
            sim.sleep(millis(20_000)).await;
            let process = 1 + sim.draw(MACHINES);
            // Half of them where only jobs and elections come.
            let places = [OF_JOBS, OF_LOCKS][draw(2)];
            // For longer, an attempt would begin after its window, which a body may by the lease at most.
            let time = millis([60, 1_000, 5_000][draw(3)]);
            let (place, stopped) = (places[draw(places.len())], sim.clone());
            let stops = async move { stopped.sleep(time).await };
            failpoints::arm(process, place, Box::pin(stops));
        }
        sim.sleep(millis(20_000)).await;
        failpoints::disarm();
    }));
}

#[test]
fn tasks_stop_at_every_failpoint_of_jobs() {
    // Another test may have left one.
    mutants::clear();
    explorations(0..60).check(|sim| plan::scenario(sim, plan::Model::Within));
    explorations(0..60).check(elections::scenario);
    let left: Vec<_> = OF_JOBS
        .iter()
        .filter(|place| !reached().contains(*place))
        .collect();
    assert!(left.is_empty(), "no task has stopped at {left:?}");
}
