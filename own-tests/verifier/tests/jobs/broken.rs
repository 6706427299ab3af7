//! Breaks the assumptions: the server loses data, and somebody sets its clock.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{Error, FireTime, JobOutcome, JobReset, LockClient, Once};
use leasehold_sim::{Data, SimBackend};

use crate::log::Watch;
use crate::operator;
use crate::plan::{Form, PERIOD};

/// By how much the clock is stepped.
pub(crate) const STEP: Duration = Duration::from_secs(50_000);

fn step_forward(watch: &Watch) {
    watch.log().ahead = true;
    watch.sim.step_clock_forward(STEP);
}

/// Sets the clock right. A failover may have done that meanwhile, because each server has a clock of its own.
/// Afterwards, only occurrences that the machines name have a record that is not ahead.
fn set_right(watch: &Watch) {
    let (now, right) = (watch.now(), watch.fire(watch.sim.elapsed()).as_millis());
    if now > right {
        watch
            .sim
            .step_clock_back(Duration::from_millis(now - right));
    }
    watch.disturb();
    let mut log = watch.log();
    log.ahead = log.form != Form::At;
}

/// Loses data, or steps the clock forward and back again. Then an operator resets the job, if its record may be
/// ahead of the clock.
pub(crate) async fn break_assumptions(watch: Arc<Watch>, admin: SimBackend) {
    let sim = &watch.sim;
    let some_time = || Duration::from_millis(sim.draw(200_000).into());
    for _ in 0..sim.draw(3) {
        sim.sleep(some_time()).await;
        watch.disturb();
        watch.log().intact = false;
        if sim.draw(2) == 0 {
            drop(watch.log().forget());
            sim.restart(Data::Lost);
            continue;
        }
        step_forward(&watch);
        sim.sleep(some_time()).await;
        set_right(&watch);
    }
    if watch.log().ahead {
        let locks = LockClient::new(admin.clone());
        let job = locks.once("job").expect("valid");
        admin.run(reset(&watch, &job)).await;
    }
}

/// Resets the job as soon as nobody runs it. The loops notice it within a period.
async fn reset(watch: &Watch, job: &Once) {
    while !operator::reset(watch, job).await {
        watch.sim.sleep(Duration::from_secs(5)).await;
    }
    let mut log = watch.log();
    log.ahead = false;
    log.quiet = log.quiet.max(watch.sim.elapsed() + PERIOD);
}

/// A job is done while the clock is ahead. Then the clock is right again: the job must not be silent, and runs again
/// after a reset.
pub(crate) async fn silenced(watch: &Watch, locks: &LockClient) {
    let sim = &watch.sim;
    let job = locks.once("other").expect("valid");
    let run = async || {
        let fire = FireTime::from_millis(watch.now());
        let occurrence = job.at(fire).start_before(PERIOD);
        occurrence.run(async |_job| Ok::<_, &str>(())).await
    };
    watch.log().intact = false;
    step_forward(watch);
    let first = run().await;
    set_right(watch);
    let second = run().await;
    let far = |fire: FireTime| fire.as_millis() > watch.now() + PERIOD.as_millis() as u64;
    // The admin may have been paused until that time had come.
    if matches!(first, Ok(JobOutcome::Done(())))
        && matches!(second, Ok(JobOutcome::AlreadyDone { fire }) if far(fire))
    {
        let text = format!("a done of another time silences the job: {second:?}");
        watch.log().problem(text);
    }
    if !matches!(second, Err(Error::FireTimeAhead { .. })) {
        return;
    }
    while !matches!(job.reset().await, Ok(JobReset::Reset)) {
        sim.sleep(Duration::from_secs(5)).await;
    }
    let began = sim.elapsed();
    let third = run().await;
    let runs = match &third {
        Ok(JobOutcome::Done(()) | JobOutcome::RanUnrecorded(()) | JobOutcome::Missed { .. }) => {
            true
        }
        // Its window was over when the admin had been paused.
        Err(error) => error.is_transient() && sim.elapsed() > began + PERIOD,
        Ok(_) => false,
    };
    if !runs {
        watch
            .log()
            .problem(format!("a reset frees no job: {third:?}"));
    }
}
