//! At most so many at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::stage::{Result, Stage};

const PERMITS: u32 = 3;
const WORKERS: u32 = 8;

pub(crate) async fn play(stage: &mut Stage) -> Result<()> {
    stage.scene("5. A semaphore: at most three downloads at a time")?;
    let ann = stage.enter("ann").await?;
    let semaphore = ann.locks.semaphore("tour:downloads", PERMITS)?;
    let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));

    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        let (semaphore, now, most) = (semaphore.clone(), Arc::clone(&now), Arc::clone(&most));
        workers.push(tokio::spawn(async move {
            let permit = semaphore.acquire(1).await?;
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
    stage.tell(&ann, format_args!("has run {WORKERS} downloads"))?;
    stage.claim(
        most.load(Ordering::Relaxed) == PERMITS,
        format_args!("there were never more than {PERMITS} at a time, and {PERMITS} were"),
    )?;
    ann.leave().await
}
