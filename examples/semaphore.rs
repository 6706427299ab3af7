//! A limit on concurrent calls across machines: a partner allows four requests at a time in total.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::Result;
use leasehold::{Error, LockClient};
use tokio::time::sleep;

const ALLOWED: u32 = 4;

/// The number of requests in flight, and its maximum so far.
#[derive(Debug, Default)]
struct Partner {
    now: AtomicU32,
    most: AtomicU32,
}

impl Partner {
    async fn request(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        sleep(Duration::from_millis(200)).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn machine(locks: LockClient, partner: Arc<Partner>) -> Result<(), Error> {
    let slots = locks.semaphore("partner:requests", ALLOWED)?;
    for _ in 0..5 {
        slots.with(async |_permit| partner.request().await).await?;
    }
    locks.shutdown().await
}

fn main() -> Result<()> {
    common::run(async |service| {
        let partner = Arc::new(Partner::default());
        let mut machines = Vec::new();
        for number in 1..=6 {
            let locks = service.client(&format!("machine-{number}")).await?;
            machines.push(tokio::spawn(machine(locks, Arc::clone(&partner))));
        }
        for machine in machines {
            machine.await??;
        }
        let most = partner.most.load(Ordering::SeqCst);
        println!("30 requests by 6 machines, at most {most} at a time");
        assert_eq!(most, ALLOWED);
        Ok(())
    })
}
