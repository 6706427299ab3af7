//! A semaphore limits how many workers run at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::tour::{Result, Tour};

const PERMITS: u32 = 3;
const WORKERS: u32 = 8;

pub(crate) async fn run(tour: &mut Tour<'_>) -> Result<()> {
    tour.section("5. A semaphore: at most three downloads at a time")?;
    let ann = tour.connect("ann").await?;
    let semaphore = ann.locks.semaphore("tour:downloads", PERMITS)?;
    let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));

    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        let (semaphore, now, most) = (semaphore.clone(), Arc::clone(&now), Arc::clone(&most));
        workers.push(tokio::spawn(async move {
            let permit = semaphore.acquire().await?;
            let running = now.fetch_add(1, Ordering::Relaxed) + 1;
            most.fetch_max(running, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(300)).await;
            now.fetch_sub(1, Ordering::Relaxed);
            permit.release().await
        }));
    }
    for worker in workers {
        worker.await??;
    }
    tour.print(&ann, format_args!("has run {WORKERS} downloads"))?;
    tour.check(
        most.load(Ordering::Relaxed) == PERMITS,
        format_args!("the maximum was {PERMITS} downloads at a time"),
    )?;
    ann.disconnect().await
}
