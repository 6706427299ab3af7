//! Unreachable waiters: they said that they listen, but nobody subscribes to their channel.

use leasehold_api::PollReply;

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, want, want_eq};
use crate::families::queue::notifications::{listener, listening};
use crate::world::{Attempt, Lock, World};

pub(super) const CASES: &[Case] = cases!("unreachable";
    unreachable_waiter_is_passed_over: ["rule 9"], [Queue, Push, Reachability];
    its_ticket_is_kept: ["rule 9", "rule 7"], [Queue, Push, Reachability];
    all_unreachable_counts_as_free: ["rule 9"], [Queue, Push, Reachability];
    marked_unreachable_at_most_twice: ["rule 9"], [Queue, Push, Reachability];
    waiter_that_never_listened_is_never_unreachable: ["rule 9"], [Queue, Push];
    poll_says_whether_it_listens: ["rule 9"], [Queue, Push];
    unreachable_is_shown: ["rule 9"], [Queue, Push, Reachability, Inspect];
);

/// Queues a waiter that says it listens, in a session that doesn't.
async fn unreachable_waiter(world: &World, lock: &Lock) -> Result<Attempt, Failure> {
    listening(&world.session().await?, lock).await
}

async fn still_queued(waiter: &Attempt, listens: bool) -> Verdict {
    want!(waiter.poll_as(listens).await?.reply, PollReply::Queued(_))
        .promised("rule 9: an unreachable waiter stays in the queue")
}

async fn granted(waiter: &Attempt, listens: bool) -> Verdict {
    want!(waiter.poll_as(listens).await?.reply, PollReply::Acquired(_))
        .promised("rule 9: the first reachable waiter is granted")
}

async fn unreachable_waiter_is_passed_over(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let unreachable = unreachable_waiter(world, &lock).await?;
    let _notifications = b.listen().await?;
    let reachable = listening(&b, &lock).await?;
    held.released("S3").await?;
    granted(&reachable, true).await?;
    still_queued(&unreachable, true).await
}

async fn its_ticket_is_kept(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let unreachable = unreachable_waiter(world, &lock).await?;
    let _notifications = b.listen().await?;
    let reachable = listening(&b, &lock).await?;
    let later = listening(&b, &lock).await?;
    held.released("S3").await?;
    granted(&reachable, true).await?;
    // It subscribes again and polls, so it is first in the queue again.
    let _notifications = unreachable.session.listen().await?;
    still_queued(&unreachable, true).await?;
    reachable.released("S3").await?;
    granted(&unreachable, true).await?;
    still_queued(&later, true).await
}

async fn all_unreachable_counts_as_free(world: &World) -> Verdict {
    let (.., lock, held) = world.held(Lock::mutex("k")).await?;
    let first = unreachable_waiter(world, &lock).await?;
    let _second = unreachable_waiter(world, &lock).await?;
    held.released("S3").await?;
    let newcomer = world.session().await?.ask(&lock).acquired("rule 9").await?;
    newcomer.released("S3").await?;
    granted(&first, true).await
}

async fn marked_unreachable_at_most_twice(world: &World) -> Verdict {
    let lock = Lock::mutex("k");
    let unreachable = marked_waiter(world, &lock).await?;
    // Each release marks it as unreachable. Each poll clears the mark, but a newcomer has the key.
    // The third release grants to it anyway.
    for _ in 0..2 {
        let newcomer = world.session().await?.ask(&lock).acquired("rule 9").await?;
        still_queued(&unreachable, true).await?;
        newcomer.released("S3").await?;
    }
    let c = world.session().await?;
    c.ask(&lock).finds_contention("rule 9").await?;
    granted(&unreachable, true).await
}

/// Returns a waiter that was marked unreachable once, on a free key.
async fn marked_waiter(world: &World, lock: &Lock) -> Result<Attempt, Failure> {
    let held = world.session().await?.ask(lock).acquired("S1").await?;
    let unreachable = unreachable_waiter(world, lock).await?;
    held.released("S3").await?;
    Ok(unreachable)
}

async fn waiter_that_never_listened_is_never_unreachable(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let (polls, _) = b.ask(&lock).wait().queued("rule 7").await?;
    let (listens, _notifications) = listener(world).await?;
    let second = listening(&listens, &lock).await?;
    held.released("S3").await?;
    granted(&polls, false).await?;
    still_queued(&second, true).await
}

async fn poll_says_whether_it_listens(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let lost = unreachable_waiter(world, &lock).await?;
    // The waiter knows that its subscription is lost, and its poll says so.
    still_queued(&lost, false).await?;
    let (second, _) = b.ask(&lock).wait().queued("rule 7").await?;
    held.released("S3").await?;
    granted(&lost, false).await?;
    still_queued(&second, false).await
}

async fn unreachable_is_shown(world: &World) -> Verdict {
    let lock = Lock::mutex("k");
    let unreachable = marked_waiter(world, &lock).await?;
    let view = unreachable.session.inspect(&lock).await?.reply;
    let marks: Vec<_> = view.waiters.iter().map(|it| it.unreachable).collect();
    want_eq!(marks, [true]).promised("rule 9: an inspection shows that a waiter is unreachable")?;
    granted(&unreachable, true).await
}
