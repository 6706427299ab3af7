//! `tokio-cron-scheduler` doesn't tell the fire time, so the job asks how long ago it was done.
//!
//! Start it on several machines. Arguments: the URL of the lock service, and a schedule.

mod common;

use std::time::Duration;

use common::{Arguments, Result, write_report};
use tokio_cron_scheduler::{Job, JobScheduler};

#[tokio::main]
async fn main() -> Result<()> {
    let Arguments { url, schedule } = Arguments::from_command_line();
    let locks = leasehold::connect(&url).await?;
    let report = locks
        .once("report-by-tokio-cron-scheduler")?
        .max_hold(Duration::from_secs(60 * 60));
    // Shorter than the time between two fire times, and longer than the clocks of the machines differ.
    let report = report.not_within(Duration::from_secs(12 * 60 * 60));
    let job = Job::new_async(schedule, move |_id, _scheduler| {
        let report = report.clone();
        Box::pin(async move {
            let outcome = report.run(async |job| write_report(&job).await).await;
            println!("{outcome:?}");
        })
    })?;
    let scheduler = JobScheduler::new().await?;
    scheduler.add(job).await?;
    scheduler.start().await?;
    Ok(tokio::signal::ctrl_c().await?)
}
