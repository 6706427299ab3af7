//! An operator, who resets the job while machines run it.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{FireTime, JobOutcome, JobReset, LockClient, Once};
use leasehold_sim::SimBackend;

use crate::log::Watch;

/// Resets the job now and then. Another job, whose name begins like its name, keeps what it has done.
pub(crate) async fn resets(watch: Arc<Watch>, backend: SimBackend) {
    let locks = LockClient::new(backend);
    let (job, other) = (locks.once("job"), locks.once("job2"));
    let (job, other) = (job.expect("valid"), other.expect("valid"));
    let fire = FireTime::from_millis(watch.now());
    let done = other.at(fire).run(async |_job| Ok::<_, &str>(())).await;
    let is_done = matches!(done, Ok(JobOutcome::Done(())));
    for _ in 0..=watch.sim.draw(2) {
        let time = watch.sim.draw(300_000);
        watch.sim.sleep(Duration::from_millis(time.into())).await;
        if reset(&watch, &job).await {
            let time = watch.sim.draw(20_000);
            watch.sim.sleep(Duration::from_millis(time.into())).await;
            check_reset(&watch, &job).await;
        }
        if let Ok(status) = other.status().await
            && is_done
            && status.done != Some(fire)
        {
            let text = format!("a reset of another job changes this one: {status:?}");
            watch.log().problem(text);
        }
    }
}

/// Returns `false` if the job is running, or the call has failed.
pub(crate) async fn reset(watch: &Watch, job: &Once) -> bool {
    let (began, on_its_clock) = (watch.sim.elapsed(), watch.now());
    let before = {
        let mut log = watch.log();
        (log.calls, log.calls_now) = (log.calls + 1, log.calls_now + 1);
        log.forget()
    };
    let result = job.reset().await;
    let mut log = watch.log();
    log.calls_now -= 1;
    match result {
        Ok(JobReset::Reset) => {
            let ran = |body: &crate::log::Body| body.began < began && body.job.guard().is_valid();
            if log.intact && log.running.values().any(ran) {
                log.problem("a job is reset while it runs");
            }
            // What happened during the call may be before the reset, or after it.
            drop(log.forget());
            log.succeeded.retain(|_, ended| *ended >= on_its_clock);
        }
        // It runs.
        Ok(_) => log.remember(before),
        Err(_) => drop(log.forget()),
    }
    // An occurrence that was forgotten here may still be open.
    let open = watch.sim.elapsed() + log.form.window();
    log.quiet = log.quiet.max(open);
    matches!(result, Ok(JobReset::Reset))
}

/// A reset stays: no late copy of an older note brings back what was done.
async fn check_reset(watch: &Watch, job: &Once) {
    let Ok(status) = job.status().await else {
        return;
    };
    let mut log = watch.log();
    if let Some(done) = status.done
        && !log.succeeded.contains_key(&done)
    {
        log.problem(format!("the reset is undone: {status:?}"));
    }
}
