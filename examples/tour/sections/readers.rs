//! Readers share the lock, a writer excludes everyone, and neither starves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{LockClient, Outcome, Upgrade};

use crate::tour::{Result, Tour};

const KEY: &str = "tour:catalog";

pub(crate) async fn run(tour: &mut Tour<'_>) -> Result<()> {
    tour.section("4. Readers and a writer")?;
    let (ann, bob) = (tour.connect("ann").await?, tour.connect("bob").await?);
    let eve = tour.connect("eve").await?;

    let anns = ann.locks.rw_lock(KEY)?.read().await?;
    let bobs = bob.locks.rw_lock(KEY)?.read().await?;
    tour.print(&ann, "reads, and so does bob")?;
    tour.check(
        anns.fencing_token() == bobs.fencing_token(),
        "readers that overlap share one token",
    )?;
    let writing = eve.locks.rw_lock(KEY)?.try_write().await?;
    tour.check(
        matches!(writing, Outcome::Contended(_)),
        "a writer cannot lock while others read",
    )?;
    anns.release().await?;
    let Upgrade::Upgraded(bobs) = bobs.try_upgrade().await? else {
        return Err("the only reader can upgrade".into());
    };
    tour.print(&bob, "is the only reader left, and upgrades to a writer")?;
    let reading = ann.locks.rw_lock(KEY)?.try_read().await?;
    tour.check(
        matches!(reading, Outcome::Contended(_)),
        "a reader cannot lock while another writes",
    )?;
    let bobs = bobs.downgrade().await?;
    tour.print(&bob, "has written, and downgrades to a reader")?;
    let anns = ann.locks.rw_lock(KEY)?.try_read().await?;
    tour.check(
        anns.is_acquired(),
        "after a downgrade, others can read again",
    )?;
    drop(anns);
    bobs.release().await?;

    no_starvation(tour, [&ann.locks, &bob.locks], &eve.locks).await?;
    for process in [ann, bob, eve] {
        process.disconnect().await?;
    }
    Ok(())
}

/// Runs two readers that overlap, so that the lock is always held, and one writer.
async fn no_starvation(
    tour: &mut Tour<'_>,
    readers: [&LockClient; 2],
    writer: &LockClient,
) -> Result<()> {
    tour.note("ann and bob now read in turns, so that the lock is never free; eve wants to write")?;
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::new(AtomicBool::new(false));
    let overtakers = Arc::new(AtomicU32::new(0));
    let mut loops = Vec::new();
    for (index, locks) in (0u64..).zip(readers) {
        let lock = locks.rw_lock(KEY)?;
        let (stop, asked) = (Arc::clone(&stop), Arc::clone(&asked));
        let overtakers = Arc::clone(&overtakers);
        loops.push(tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(150 * index)).await;
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                let was_asked = asked.load(Ordering::Relaxed);
                let reading = lock.read().await?;
                rounds += 1;
                if was_asked && !stop.load(Ordering::Relaxed) {
                    overtakers.fetch_add(1, Ordering::Relaxed);
                }
                tokio::time::sleep(Duration::from_millis(300)).await;
                reading.release().await?;
            }
            Ok::<u32, leasehold::Error>(rounds)
        }));
    }

    tokio::time::sleep(Duration::from_secs(2)).await;
    let began = tour.elapsed();
    let lock = writer.rw_lock(KEY)?;
    let writing = tokio::spawn(async move { lock.write().await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    asked.store(true, Ordering::Relaxed);
    let writing = writing.await??;
    let waited = tour.elapsed() - began;
    let overtaken = overtakers.load(Ordering::Relaxed);
    stop.store(true, Ordering::Relaxed);
    writing.release().await?;
    for reader in loops {
        let rounds = reader.await??;
        assert!(rounds > 2, "the readers kept reading");
    }
    tour.check(
        overtaken == 0 && waited < Duration::from_secs(1),
        "eve wrote as soon as the current readers were done; no reader overtook her",
    )
}
