//! A nightly job that every machine starts at midnight, but only one machine should run.
//!
//! Timers are not exact. If the job takes 20 ms and releases its lock at once, a machine whose
//! timer fires 50 ms later runs the job again. So the winner lets its lease expire instead.

mod common;

use std::time::Duration;

use common::Result;
use leasehold::{FencingToken, LockClient, Outcome};
use tokio::time::sleep;

/// Longer than the timers of two machines can differ, and shorter than the time between two runs.
const LEASE: Duration = Duration::from_secs(2);

async fn at_midnight(locks: LockClient, machine: u64) -> Result<bool> {
    sleep(Duration::from_millis(50 * machine)).await; // timers are not exact
    let job = locks.mutex("cron:nightly-report")?.lease(LEASE);
    match job.try_lock().await? {
        Outcome::Acquired(guard) => {
            // Stops the job if the lock is lost, because another machine may run it by then.
            guard
                .protect(write_report(machine, guard.fencing_token()))
                .await?;
            guard.let_expire().await?;
            Ok(true)
        }
        other => {
            println!("machine {machine} skips the job: {other:?}");
            Ok(false)
        }
    }
}

async fn write_report(machine: u64, token: FencingToken) {
    println!("machine {machine} writes the report with token {token}");
    sleep(Duration::from_millis(20)).await;
}

fn main() -> Result<()> {
    common::run(async |service| {
        let mut machines = Vec::new();
        for machine in 1..=3 {
            let locks = service.client(&format!("machine-{machine}")).await?;
            machines.push(tokio::spawn(at_midnight(locks, machine)));
        }
        let mut reports = 0;
        for machine in machines {
            reports += u32::from(machine.await??);
        }
        assert_eq!(reports, 1, "one report per night");
        Ok(())
    })
}
