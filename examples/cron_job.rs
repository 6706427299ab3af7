//! A nightly job that every machine starts at midnight, and that one machine runs.
//!
//! Timers are not exact, and a job may be over before the slowest timer fires. So a lock is not enough: the lock
//! service remembers that the occurrence of midnight is done.

mod common;

use std::time::Duration;

use common::Result;
use leasehold::{FireTime, JobOutcome, LockClient};
use tokio::time::sleep;

/// What the scheduler of every machine was set to: milliseconds since 1970, UTC.
async fn at_midnight(locks: LockClient, midnight: FireTime, machine: u64) -> Result<bool> {
    sleep(Duration::from_millis(50 * machine)).await; // timers are not exact
    let report = locks
        .once("cron:nightly-report")?
        .max_hold(Duration::from_secs(2 * 60 * 60));
    let outcome = report
        .at(midnight)
        .start_before(Duration::from_secs(6 * 60 * 60))
        .run(async |job| {
            println!("machine {machine}, attempt {}", job.attempt());
            write_report(machine).await
        })
        .await?;
    match outcome {
        JobOutcome::Done(()) => Ok(true),
        other => {
            println!("machine {machine} did not run the job: {other:?}");
            Ok(false)
        }
    }
}

async fn write_report(machine: u64) -> std::io::Result<()> {
    println!("machine {machine} writes the report");
    sleep(Duration::from_millis(20)).await;
    Ok(())
}

fn main() -> Result<()> {
    common::run(async |service| {
        let clock = service.client("clock").await?;
        let midnight = FireTime::from_millis(clock.backend().hello().await?.at.as_micros() / 1_000);
        let mut machines = Vec::new();
        for machine in 1..=3 {
            let locks = service.client(&format!("machine-{machine}")).await?;
            machines.push(tokio::spawn(at_midnight(locks, midnight, machine)));
        }
        let mut reports = 0;
        for machine in machines {
            reports += u32::from(machine.await??);
        }
        assert_eq!(reports, 1, "one report per night");
        Ok(())
    })
}
