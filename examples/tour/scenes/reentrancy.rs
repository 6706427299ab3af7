//! Nested holds of one owner, and one whose reply is lost.

use leasehold::{Outcome, Release};

use crate::stage::{Result, Stage};

pub(crate) async fn play(stage: &mut Stage) -> Result<()> {
    stage.scene("3. Reentrancy: an owner that holds may hold again")?;
    let (ann, bob) = (stage.enter("ann").await?, stage.enter("bob").await?);
    let key = "tour:tree";

    let mutex = ann.locks.reentrant_mutex(key)?;
    let outer = mutex.lock().await?;
    let middle = mutex.lock().await?;
    let inner = mutex.lock().await?;
    stage.tell(
        &ann,
        "locks the tree three times, through one reentrant handle",
    )?;
    let token = outer.fencing_token()?;
    stage.claim(
        token == middle.fencing_token()? && token == inner.fencing_token()?,
        "a nested hold keeps the token: the holder does not fence itself off",
    )?;
    let other_owner = ann.locks.mutex(key)?.try_lock().await?;
    stage.claim(
        matches!(other_owner, Outcome::Held(_)),
        "another handle of the same process is another owner",
    )?;

    stage.tell(&ann, "releases them, the outermost first")?;
    let bobs_mutex = bob.locks.mutex(key)?;
    for (guard, left) in [(outer, 2), (inner, 1)] {
        let released = guard.release().await?;
        stage.claim(
            released == Release::Released { holds_left: left }
                && matches!(bobs_mutex.try_lock().await?, Outcome::Held(_)),
            format_args!("holds left: {left}; bob does not get in"),
        )?;
    }
    let released = middle.release().await?;
    let bobs = bobs_mutex.try_lock().await?.acquired();
    stage.claim(
        released == Release::Released { holds_left: 0 } && bobs.is_some(),
        "holds left: 0; bob gets in",
    )?;
    if let Some(bobs) = bobs {
        bobs.release().await?;
    }

    ann.cable.lose_a_reply();
    let guard = mutex.lock().await?;
    stage.tell(
        &ann,
        "locks it again; the first reply is lost, and she asks again",
    )?;
    let held = ann.locks.inspect(key).await?;
    let holds: Vec<u32> = held.holders().iter().map(|holder| holder.holds).collect();
    stage.claim(
        ann.cable.has_lost_it() && holds == [1],
        "a command that was delivered twice counts once",
    )?;
    guard.release().await?;

    ann.leave().await?;
    bob.leave().await
}
