//! One owner nests holds, and an acquire loses its reply.

use leasehold::Outcome;

use crate::tour::{Result, Tour};

pub(crate) async fn run(tour: &mut Tour<'_>) -> Result<()> {
    tour.section("3. Reentrancy: a holder may acquire its lock again")?;
    let (ann, bob) = (tour.connect("ann").await?, tour.connect("bob").await?);
    let key = "tour:tree";

    let mutex = ann.locks.mutex(key)?.reentrant()?;
    let outer = mutex.lock().await?;
    let middle = mutex.lock().await?;
    let inner = mutex.lock().await?;
    tour.print(
        &ann,
        "locks the tree three times, through one reentrant handle",
    )?;
    let token = outer.fencing_token();
    tour.check(
        token == middle.fencing_token() && token == inner.fencing_token(),
        "nested holds share one token, so a holder does not fence itself off",
    )?;
    let other_owner = ann.locks.mutex(key)?.try_lock().await?;
    tour.check(
        matches!(other_owner, Outcome::Contended(_)),
        "another handle in the same process is another owner",
    )?;

    tour.print(&ann, "releases the outermost hold first")?;
    let bobs_mutex = bob.locks.mutex(key)?;
    for (guard, left) in [(outer, 2), (inner, 1)] {
        guard.release().await?;
        tour.check(
            guard.holds_left() == Some(left)
                && matches!(bobs_mutex.try_lock().await?, Outcome::Contended(_)),
            format_args!("holds left: {left}; bob cannot lock it"),
        )?;
    }
    middle.release().await?;
    let bobs = bobs_mutex.try_lock().await?.into_guard();
    tour.check(
        middle.holds_left() == Some(0) && bobs.is_some(),
        "holds left: 0; bob can lock it",
    )?;
    if let Some(bobs) = bobs {
        bobs.release().await?;
    }

    ann.connection.lose_next_reply();
    let guard = mutex.lock().await?;
    tour.print(&ann, "locks it again; the reply is lost, and she retries")?;
    let seen = ann.locks.inspect(key).await?;
    let holds: Vec<u32> = seen.holders().iter().map(|holder| holder.holds).collect();
    tour.check(
        ann.connection.has_lost_reply() && holds == [1],
        "a command that arrives twice counts once",
    )?;
    guard.release().await?;

    ann.disconnect().await?;
    bob.disconnect().await
}
