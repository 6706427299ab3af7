//! `apalis-cron` tells the fire time as the timestamp of a tick, in seconds.
//!
//! That is so for cron expressions. Its `schedule()` builder counts from the start of the process, which
//! differs from machine to machine: use `not_within` there.
//!
//! Start it on several machines. Arguments: the URL of the lock service, and a schedule.

mod common;

use std::str::FromStr;
use std::time::Duration;

use apalis::prelude::*;
use apalis_cron::{CronScheduler, Tick};
use common::{Arguments, Result, write_report};
use cron::Schedule;
use leasehold::{FireTime, LockClient};

async fn report(tick: Tick, locks: Data<LockClient>) -> Result<()> {
    let fire = FireTime::from_millis(tick.get_timestamp() * 1_000);
    let report = locks
        .once("report-by-apalis")?
        .max_hold(Duration::from_secs(60 * 60));
    let occurrence = report.at(fire);
    let outcome = occurrence.run(async |job| write_report(&job).await).await?;
    println!("{fire}: {outcome:?}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let Arguments { url, schedule } = Arguments::from_command_line();
    let worker = WorkerBuilder::new("report")
        .backend(CronScheduler::new(Schedule::from_str(&schedule)?))
        .data(leasehold::connect(&url).await?)
        .build(report);
    Ok(worker.run().await?)
}
