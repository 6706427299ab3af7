//! A holder that hangs for longer than its lease, and wakes up late.

use std::time::Duration;

use leasehold::Release;

use crate::stage::{Result, Stage};

pub(crate) async fn play(stage: &mut Stage) -> Result<()> {
    stage.scene("2. Expiry: a holder that hangs, and its late release")?;
    let (ann, bob) = (stage.enter("ann").await?, stage.enter("bob").await?);
    let key = "tour:report";
    let lease = Duration::from_secs(1);

    let anns = ann
        .locks
        .mutex(key)?
        .lease(lease)
        .fixed_lease()
        .lock()
        .await?;
    stage.tell(&ann, "locks the report for 1 s without renewal, and hangs")?;

    let bobs = bob.locks.mutex(key)?.lock().await?;
    let waited = stage.elapsed();
    stage.tell(&bob, "waited, and has it")?;
    stage.claim(
        waited >= Duration::from_millis(900) && waited < Duration::from_secs(3),
        "the lock of a dead holder is free after its lease, and not before",
    )?;
    stage.claim(
        !anns.is_valid() && bobs.is_valid(),
        "ann's guard knows by itself that it is over",
    )?;

    stage.tell(&ann, "wakes up and releases, too late")?;
    let late = anns.release().await?;
    stage.claim(
        matches!(late, Release::NotHeld(_)),
        "a late release is told that it holds nothing",
    )?;
    bobs.renew().await?;
    stage.claim(
        bobs.is_valid(),
        "and it changed nothing: bob still has the lock",
    )?;
    bobs.release().await?;

    ann.leave().await?;
    bob.leave().await
}
