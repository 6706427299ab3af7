//! A job that all machines are told to run at midnight, and that one of them shall run.
//!
//! The trap: timers are not exact. If the job takes 20 ms and its lock is released at once, a
//! machine whose timer goes off 50 ms later runs it again. So the winner keeps the lock for longer
//! than the timers can differ.

mod common;

use std::time::Duration;

use common::Result;
use leasehold::{FencingToken, LockClient, Outcome};
use tokio::time::sleep;

/// More than the timers of two machines can differ.
const AT_LEAST: Duration = Duration::from_secs(2);

async fn at_midnight(locks: LockClient, machine: u64) -> Result<bool> {
    sleep(Duration::from_millis(50 * machine)).await; // timers are not exact
    match locks.mutex("cron:nightly-report")?.try_lock().await? {
        Outcome::Acquired(guard) => {
            let keep = sleep(AT_LEAST);
            // Stopped if the lock is lost: somebody else may be at it by then.
            guard
                .protect(write_report(machine, guard.fencing_token()?))
                .await?;
            keep.await;
            guard.release().await?;
            Ok(true)
        }
        other => {
            println!("machine {machine} has nothing to do: {other:?}");
            Ok(false)
        }
    }
}

async fn write_report(machine: u64, token: FencingToken) {
    println!("machine {machine} writes the report, under token {token}");
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
        assert_eq!(reports, 1, "one report a night");
        Ok(())
    })
}
