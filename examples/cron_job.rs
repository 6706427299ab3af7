//! A nightly job that every machine starts at midnight, but only one machine should run.
//!
//! Timers are not exact. If the job takes 20 ms and releases its lock at once, a machine whose
//! timer fires 50 ms later runs the job again. So the winner holds the lock for longer than the
//! timers can differ.

mod common;

use std::time::Duration;

use common::Result;
use leasehold::{FencingToken, LockClient, Outcome};
use tokio::time::sleep;

/// The minimum time to hold the lock: longer than the timers of two machines can differ.
const MIN_HOLD: Duration = Duration::from_secs(2);

async fn at_midnight(locks: LockClient, machine: u64) -> Result<bool> {
    sleep(Duration::from_millis(50 * machine)).await; // timers are not exact
    match locks.mutex("cron:nightly-report")?.try_lock().await? {
        Outcome::Acquired(guard) => {
            let min_hold = sleep(MIN_HOLD);
            // Stops the job if the lock is lost, because another machine may run it by then.
            guard
                .protect(write_report(machine, guard.fencing_token()))
                .await?;
            min_hold.await;
            guard.release().await?;
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
