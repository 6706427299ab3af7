//! Semaphores.

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, ensure, want_eq};
use crate::world::{Attempt, Lock, World};

pub(super) const CASES: &[Case] = cases!("semaphores";
    permits_add_up_to_the_capacity: ["S1"], [Semaphores];
    several_permits_at_once: ["S1"], [Semaphores];
    release_gives_back_what_it_took: ["S3"], [Semaphores];
    one_permit_excludes: ["S1"], [Semaphores];
    large_demand_at_the_head_blocks_smaller: ["rule 7"], [Semaphores, Queue];
    freed_permits_serve_several: ["rule 7", "rule 8"], [Semaphores, Queue];
    poll_revives_no_waiter_of_a_permit: ["rule 10"], [Semaphores, Queue];
    tokens_are_unique: ["rule 15"], [Semaphores, FencingTokens];
);

async fn take(world: &World, lock: &Lock, permits: u32) -> Result<Attempt, Failure> {
    let session = world.session().await?;
    session.ask(lock).permits(permits).acquired("S1").await
}

async fn permits_add_up_to_the_capacity(world: &World) -> Verdict {
    let lock = Lock::semaphore("k", 3);
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(take(world, &lock, 1).await?);
    }
    let session = world.session().await?;
    for permit in taken {
        session.ask(&lock).finds_contention("S1").await?;
        permit.released("S3").await?;
        take(world, &lock, 1).await?;
    }
    session.ask(&lock).finds_contention("S1").await
}

async fn several_permits_at_once(world: &World) -> Verdict {
    let lock = Lock::semaphore("k", 5);
    let three = take(world, &lock, 3).await?;
    let session = world.session().await?;
    session.ask(&lock).permits(3).finds_contention("S1").await?;
    let two = take(world, &lock, 2).await?;
    session.ask(&lock).finds_contention("S1").await?;
    three.released("S3").await?;
    session.ask(&lock).permits(4).finds_contention("S1").await?;
    two.released("S3").await?;
    take(world, &lock, 5).await?;
    Ok(())
}

async fn release_gives_back_what_it_took(world: &World) -> Verdict {
    let lock = Lock::semaphore("k", 4);
    let (one, three) = (take(world, &lock, 1).await?, take(world, &lock, 3).await?);
    one.released("S3").await?;
    let promise = "S3: permits are returned once, however often they are released";
    one.not_held(promise).await?;
    let session = world.session().await?;
    session.ask(&lock).permits(2).finds_contention("S1").await?;
    session.ask(&lock).permits(1).acquired("S1").await?;
    three.released("S3").await?;
    session.ask(&lock).permits(3).acquired("S1").await?;
    session.ask(&lock).finds_contention("S1").await
}

async fn one_permit_excludes(world: &World) -> Verdict {
    let lock = Lock::semaphore("k", 1);
    let held = take(world, &lock, 1).await?;
    let c = world.session().await?;
    c.ask(&lock).finds_contention("S1").await?;
    held.released("S3").await?;
    let next = take(world, &lock, 1).await?;
    ensure!(next.token() >= held.token(), next.token()).promised("S4: tokens never decrease")
}

async fn large_demand_at_the_head_blocks_smaller(world: &World) -> Verdict {
    let lock = Lock::semaphore("k", 3);
    let held = take(world, &lock, 2).await?;
    let [b, c] = world.sessions().await?;
    let (large, _) = b.ask(&lock).permits(3).wait().queued("rule 7").await?;
    // One permit is free, but it is reserved for the larger request that came first.
    let (small, _) = c.ask(&lock).wait().queued("rule 7").await?;
    c.ask(&lock).finds_contention("rule 7").await?;
    held.released("S3").await?;
    large.poll_granted("rule 7").await?;
    small.poll_queued("S1").await?;
    large.released("S3").await?;
    small.poll_granted("rule 7").await
}

async fn freed_permits_serve_several(world: &World) -> Verdict {
    let lock = Lock::semaphore("k", 3);
    let held = take(world, &lock, 3).await?;
    let session = world.session().await?;
    let mut waiters = Vec::new();
    for permits in [1, 2, 1] {
        let ask = session.ask(&lock).permits(permits).wait();
        waiters.push(ask.queued("rule 7").await?.0);
    }
    held.released("S3").await?;
    for waiter in &waiters[..2] {
        waiter.renewed(world.units(300), "rule 8").await?;
    }
    waiters[2].poll_queued("S1").await?;
    waiters[0].released("S3").await?;
    waiters[2].poll_granted("rule 7").await
}

async fn poll_revives_no_waiter_of_a_permit(world: &World) -> Verdict {
    let lock = Lock::semaphore("k", 2).waiter_lease(world.units(50));
    let session = world.session().await?;
    for _ in 0..2 {
        let ask = session.ask(&lock).lease(world.units(50));
        ask.acquired("S1").await?;
    }
    let until = session.now().await?.saturating_add(world.units(4));
    let waits = || session.ask(&lock).wait();
    waits().queued("rule 7").await?;
    let (bounded, _) = waits().wait_until(until).queued("rule 7").await?;
    let (last, _) = waits().queued("rule 7").await?;
    world.pass(5).await;
    last.poll_queued("rule 7").await?;
    bounded.poll_gone("rule 10: it has expired").await
}

async fn tokens_are_unique(world: &World) -> Verdict {
    let lock = Lock::semaphore("k", 4);
    let mut tokens = Vec::new();
    for _ in 0..4 {
        tokens.push(take(world, &lock, 1).await?.token());
    }
    let given = tokens.len();
    tokens.sort_unstable();
    tokens.dedup();
    want_eq!(tokens.len(), given)
        .promised("rule 15: each acquire of a semaphore has a different token")
}
