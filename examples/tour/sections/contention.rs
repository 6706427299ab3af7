//! Two processes contend for one mutex.

use std::time::Duration;

use leasehold::Outcome;

use crate::tour::{Result, Tour};

pub(crate) async fn run(tour: &mut Tour<'_>) -> Result<()> {
    tour.section("1. Contention: two processes, one mutex")?;
    let (ann, bob) = (tour.connect("ann").await?, tour.connect("bob").await?);
    let key = "tour:invoice:42";

    let mutex = ann.locks.mutex(key)?;
    let anns = mutex.lock().await?;
    tour.print(&ann, "locks the invoice")?;

    let bobs_mutex = bob.locks.mutex(key)?;
    match bobs_mutex.try_lock().await? {
        Outcome::Contended(contention) => {
            let holder = contention
                .holder
                .as_ref()
                .map_or("nobody", |label| label.as_str());
            tour.print(
                &bob,
                format_args!("tries, and learns that {holder} holds it"),
            )?;
            tour.check(
                holder == "ann",
                "contention is a value, and names the holder",
            )?;
        }
        other => return Err(format!("bob should learn who holds it, not {other:?}").into()),
    }

    let limit = Duration::from_millis(300);
    let timed_out = bobs_mutex.try_lock_for(limit).await?;
    tour.print(&bob, "waits for 0.3 s, then gives up")?;
    tour.check(
        matches!(&timed_out, Outcome::Contended(late) if late.timed_out && late.waited >= limit),
        "a timeout is a value too",
    )?;

    let token = anns.fencing_token();
    let waiting = tokio::spawn(async move { bobs_mutex.lock().await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    tour.check(
        !waiting.is_finished(),
        "a waiter does not get the lock while another process holds it",
    )?;
    tour.print(&ann, "releases the invoice")?;
    anns.release().await?;
    let bobs = waiting.await??;
    tour.print(&bob, "holds it")?;
    tour.check(anns.holds_left() == Some(0), "a release reports its result")?;
    tour.check(
        bobs.fencing_token() > token,
        "the next holder's fencing token is greater",
    )?;
    bobs.release().await?;

    ann.disconnect().await?;
    bob.disconnect().await
}
