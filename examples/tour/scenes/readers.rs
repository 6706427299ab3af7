//! Readers share, writers are alone, and neither starves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{LockClient, Outcome, Upgrade};

use crate::stage::{Result, Stage};

const KEY: &str = "tour:catalog";

pub(crate) async fn play(stage: &mut Stage) -> Result<()> {
    stage.scene("4. Readers and a writer")?;
    let (ann, bob) = (stage.enter("ann").await?, stage.enter("bob").await?);
    let eve = stage.enter("eve").await?;

    let anns = ann.locks.rw_lock(KEY)?.read().await?;
    let bobs = bob.locks.rw_lock(KEY)?.read().await?;
    stage.tell(&ann, "reads, and so does bob")?;
    stage.claim(
        anns.fencing_token()? == bobs.fencing_token()?,
        "readers that overlap share one token",
    )?;
    let writing = eve.locks.rw_lock(KEY)?.try_write().await?;
    stage.claim(
        matches!(writing, Outcome::Held(_)),
        "a writer does not get in beside readers",
    )?;
    anns.release().await?;
    let Upgrade::Upgraded(bobs) = bobs.try_upgrade().await? else {
        return Err("the only reader may become the writer".into());
    };
    stage.tell(&bob, "is the only reader left, and becomes the writer")?;
    let reading = ann.locks.rw_lock(KEY)?.try_read().await?;
    stage.claim(
        matches!(reading, Outcome::Held(_)),
        "readers do not get in beside a writer",
    )?;
    let bobs = bobs.downgrade().await?;
    stage.tell(&bob, "has written, and goes on reading")?;
    let anns = ann.locks.rw_lock(KEY)?.try_read().await?;
    stage.claim(anns.is_acquired(), "after a downgrade readers get in again")?;
    drop(anns);
    bobs.release().await?;

    no_starvation(stage, [&ann.locks, &bob.locks], &eve.locks).await?;
    for actor in [ann, bob, eve] {
        actor.leave().await?;
    }
    Ok(())
}

/// Two readers that take turns, so that somebody is always reading, and one writer.
async fn no_starvation(
    stage: &mut Stage,
    readers: [&LockClient; 2],
    writer: &LockClient,
) -> Result<()> {
    stage.note("ann and bob now read without a pause between them; eve wants to write")?;
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
    let began = stage.elapsed();
    let lock = writer.rw_lock(KEY)?;
    let writing = tokio::spawn(async move { lock.write().await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    asked.store(true, Ordering::Relaxed);
    let writing = writing.await??;
    let waited = stage.elapsed() - began;
    let overtaken = overtakers.load(Ordering::Relaxed);
    stop.store(true, Ordering::Relaxed);
    writing.release().await?;
    for reader in loops {
        let rounds = reader.await??;
        assert!(rounds > 2, "the readers kept reading");
    }
    stage.claim(
        overtaken == 0 && waited < Duration::from_secs(1),
        "eve got in as soon as the readers of that moment had gone; nobody overtook her",
    )
}
