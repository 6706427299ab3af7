//! Readers share a lock; a writer excludes everyone.

use crate::case::{Case, cases};
use crate::failure::{Verdict, want_eq};
use crate::world::{Lock, World};

pub(super) const CASES: &[Case] = cases!("readers_writers";
    readers_share: ["S1"], [RwLocks];
    writer_keeps_readers_out: ["S1"], [RwLocks];
    readers_keep_a_writer_out: ["S1"], [RwLocks];
    writers_exclude_each_other: ["S1"], [RwLocks];
    last_reader_lets_the_writer_in: ["S1", "rule 8"], [RwLocks, Queue];
    neighbouring_readers_are_granted_together: ["rule 7", "rule 8"], [RwLocks, Queue];
    readers_behind_a_writer_wait_for_it: ["rule 7"], [RwLocks, Queue];
    writer_that_leaves_frees_the_readers: ["rule 7", "rule 8"], [RwLocks, Queue];
    dead_writer_lets_the_readers_in: ["L1", "rule 7"], [RwLocks, Queue];
    readers_release_in_any_order: ["S3"], [RwLocks];
);

async fn readers_share(world: &World) -> Verdict {
    let lock = Lock::rw("k");
    for reader in world.readers(&lock, 5).await? {
        want_eq!(reader.holds(), 1).promised("rule 5: each reader is a separate holder")?;
        reader.renewed(world.units(300), "rule 4").await?;
    }
    Ok(())
}

async fn writer_keeps_readers_out(world: &World) -> Verdict {
    let (a, b, lock, writer) = world.held(Lock::rw("k")).await?;
    b.ask(&lock).shared().finds_contention("S1").await?;
    a.ask(&lock).shared().finds_contention("S1").await?;
    writer.released("S3").await?;
    b.ask(&lock).shared().granted("S1").await
}

async fn readers_keep_a_writer_out(world: &World) -> Verdict {
    let lock = Lock::rw("k");
    let writer = world.session().await?;
    for reader in world.readers(&lock, 3).await? {
        writer.ask(&lock).finds_contention("S1").await?;
        reader.released("S3").await?;
    }
    writer.ask(&lock).granted("S1").await
}

async fn writers_exclude_each_other(world: &World) -> Verdict {
    let (_, b, lock, writer) = world.held(Lock::rw("k")).await?;
    b.ask(&lock).finds_contention("S1").await?;
    writer.released("S3").await?;
    b.ask(&lock).granted("S1").await
}

async fn last_reader_lets_the_writer_in(world: &World) -> Verdict {
    let lock = Lock::rw("k");
    let all = world.readers(&lock, 3).await?;
    let session = world.session().await?;
    let (writer, _) = session.ask(&lock).wait().queued("rule 7").await?;
    for reader in &all {
        writer.poll_queued("S1").await?;
        reader.released("S3").await?;
    }
    writer.poll_granted("rule 8").await?;
    world
        .session()
        .await?
        .ask(&lock)
        .shared()
        .finds_contention("S1")
        .await
}

async fn neighbouring_readers_are_granted_together(world: &World) -> Verdict {
    // A writer holds, and behind it wait readers, a writer and another reader.
    let (.., lock, writer) = world.held(Lock::rw("k")).await?;
    let queue = world.queue(&lock, "rrrwr").await?;
    writer.released("S3").await?;
    for reader in &queue[..3] {
        reader.renewed(world.units(300), "rule 8").await?;
    }
    queue[3].poll_queued("rule 7").await?;
    queue[4].poll_queued("rule 7").await?;
    for reader in &queue[..3] {
        queue[3].poll_queued("S1").await?;
        reader.released("S3").await?;
    }
    queue[3].poll_granted("rule 7").await?;
    queue[4].poll_queued("S1").await?;
    queue[3].released("S3").await?;
    queue[4].poll_granted("rule 7").await
}

async fn readers_behind_a_writer_wait_for_it(world: &World) -> Verdict {
    let (_, b, lock, reading) = world.held_shared(Lock::rw("k")).await?;
    let c = world.session().await?;
    let (writer, _) = b.ask(&lock).wait().queued("rule 7").await?;
    c.ask(&lock).shared().finds_contention("rule 7").await?;
    let (reader, _) = c.ask(&lock).shared().wait().queued("rule 7").await?;
    reading.released("S3").await?;
    writer.poll_granted("rule 7").await?;
    reader.poll_queued("S1").await?;
    writer.released("S3").await?;
    reader.poll_granted("rule 7").await
}

async fn writer_that_leaves_frees_the_readers(world: &World) -> Verdict {
    let (_, b, lock, reading) = world.held_shared(Lock::rw("k")).await?;
    let c = world.session().await?;
    let (writer, _) = b.ask(&lock).wait().queued("rule 7").await?;
    let (reader, _) = c.ask(&lock).shared().wait().queued("rule 7").await?;
    writer.leaves("S3").await?;
    // The step that removes the writer also grants to the readers behind it.
    reader.renewed(world.units(300), "rule 8").await?;
    reading.renewed(world.units(300), "S1").await.map(drop)
}

async fn dead_writer_lets_the_readers_in(world: &World) -> Verdict {
    let lock = Lock::rw("k").waiter_lease(world.units(4));
    world.readers(&lock, 1).await?;
    let [b, c] = world.sessions().await?;
    b.ask(&lock).wait().queued("rule 7").await?;
    let (reader, _) = c.ask(&lock).shared().wait().queued("rule 7").await?;
    world.pass(2).await;
    reader.poll_queued("rule 7").await?;
    world.pass(3).await;
    reader.poll_granted("L1").await
}

async fn readers_release_in_any_order(world: &World) -> Verdict {
    let lock = Lock::rw("k");
    let all = world.readers(&lock, 4).await?;
    let writer = world.session().await?;
    for n in [2, 0, 3, 1] {
        writer.ask(&lock).finds_contention("S1").await?;
        all[n].released("S3").await?;
        let promise = "S3: a duplicate release doesn't release another reader";
        all[n].not_held(promise).await?;
    }
    writer.ask(&lock).granted("S1").await
}
