//! A holder hangs for longer than its lease, then releases late.

use std::time::Duration;

use leasehold::Error;

use crate::tour::{Result, Tour};

pub(crate) async fn run(tour: &mut Tour<'_>) -> Result<()> {
    tour.section("2. Expiry: a holder that hangs, and its late release")?;
    let (ann, bob) = (tour.connect("ann").await?, tour.connect("bob").await?);
    let key = "tour:report";
    let lease = Duration::from_secs(1);

    let anns_mutex = ann.locks.mutex(key)?.lease(lease).fixed_lease();
    let anns = anns_mutex.lock().await?;
    tour.print(&ann, "locks the report for 1 s without renewal, and hangs")?;

    let bobs = bob.locks.mutex(key)?.lock().await?;
    let waited = tour.elapsed();
    tour.print(&bob, "waited, and holds it now")?;
    tour.check(
        waited >= Duration::from_millis(900) && waited < Duration::from_secs(3),
        "the lock of a dead holder is free when its lease ends, and not before",
    )?;
    tour.check(
        !anns.is_valid() && bobs.is_valid(),
        "ann's guard is invalid, without asking the server",
    )?;

    tour.print(&ann, "wakes up and releases, too late")?;
    let late = anns.release().await;
    tour.check(
        matches!(late, Err(Error::Lost { .. })),
        "a late release reports that ann no longer holds the lock",
    )?;
    bobs.renew().await?;
    tour.check(
        bobs.is_valid(),
        "it changes nothing: bob still holds the lock",
    )?;
    bobs.release().await?;

    ann.disconnect().await?;
    bob.disconnect().await
}
