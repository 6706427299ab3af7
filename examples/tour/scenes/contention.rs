//! Two processes want the same mutex.

use std::time::Duration;

use leasehold::{Outcome, Release};

use crate::stage::{Result, Stage};

pub(crate) async fn play(stage: &mut Stage) -> Result<()> {
    stage.scene("1. Contention: two processes, one mutex")?;
    let (ann, bob) = (stage.enter("ann").await?, stage.enter("bob").await?);
    let key = "tour:invoice:42";

    let mutex = ann.locks.mutex(key)?;
    let anns = mutex.lock().await?;
    stage.tell(&ann, "locks the invoice")?;

    let bobs_mutex = bob.locks.mutex(key)?;
    match bobs_mutex.try_lock().await? {
        Outcome::Held(held) => {
            let by = held.by.as_ref().map_or("nobody", |label| label.as_str());
            stage.tell(&bob, format_args!("tries, and is told that {by} has it"))?;
            stage.claim(by == "ann", "contention is a value, and names the holder")?;
        }
        other => return Err(format!("bob should be told who has it, not {other:?}").into()),
    }

    let patience = Duration::from_millis(300);
    let timed_out = bobs_mutex.lock_within(patience).await?;
    stage.tell(&bob, "waits for 0.3 s, and gives up")?;
    stage.claim(
        matches!(&timed_out, Outcome::TimedOut(late) if late.waited >= patience),
        "a time-out is a value too",
    )?;

    let token = anns.fencing_token()?;
    let waiting = tokio::spawn(async move { bobs_mutex.lock().await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    stage.claim(
        !waiting.is_finished(),
        "who waits does not get in while it is held",
    )?;
    stage.tell(&ann, "releases it")?;
    let released = anns.release().await?;
    let bobs = waiting.await??;
    stage.tell(&bob, "has it")?;
    stage.claim(
        released == Release::Released { holds_left: 0 },
        "a release says what it did",
    )?;
    stage.claim(
        bobs.fencing_token()? > token,
        "the next holder's fencing token is greater",
    )?;
    bobs.release().await?;

    ann.leave().await?;
    bob.leave().await
}
