//! Only the holder can release a lock, however late and often others try.

use leasehold_api::{EndReason, Release, ReleaseReply, RenewReply};

use crate::case::{Case, cases};
use crate::failure::{Verdict, want};
use crate::world::{Lock, World, one};

pub(super) const CASES: &[Case] = cases!("ownership";
    another_session_cannot_release: ["S3"], [];
    another_session_cannot_renew: ["S3"], [];
    another_attempt_of_the_owner_cannot_release: ["S3", "rule 5"], [];
    another_key_is_not_released: ["S3"], [];
    late_release_after_another_holder: ["S3", "rule 12"], [];
    late_renewal_after_another_holder: ["S3", "rule 12"], [];
    second_release_reports_not_held: ["S3", "rule 12"], [];
    second_release_spares_the_next_holder: ["S3", "rule 12"], [];
    release_of_a_free_key: ["S3"], [];
    leaving_the_queue: ["S3", "rule 7"], [Queue];
    leaving_twice_spares_the_next_waiter: ["S3", "rule 12"], [Queue];
    release_gives_up_an_offer: ["rule 8", "rule 10"], [Queue];
);

async fn another_session_cannot_release(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let thief = world.session().await?;
    let mut stolen = held.operation();
    stolen.session = thief.id;
    let promise = "S3: the same sequence and owner in another session are another owner";
    thief.releases_nothing(&lock, stolen, promise).await?;
    b.ask(&lock).finds_contention("S3").await?;
    held.released("S3").await
}

async fn another_session_cannot_renew(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held_for(4).await?;
    let mut renewal = held.renew_request(world.units(500))?;
    renewal.operation.session = b.id;
    let reply = one(b.backend.renew(&[renewal]).await)?.reply;
    want!(reply, RenewReply::Lost(_))
        .promised("S3: the same sequence and owner in another session are another owner")?;
    world.pass(5).await;
    b.ask(&lock).granted("S3").await
}

async fn another_attempt_of_the_owner_cannot_release(world: &World) -> Verdict {
    let (a, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let other = a.operation(held.operation().owner);
    let promise = "S3: an attempt that holds nothing releases nothing, even for the same owner";
    a.releases_nothing(&lock, other, promise).await?;
    b.ask(&lock).finds_contention("S3").await?;
    held.released("S3").await
}

async fn another_key_is_not_released(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let (lock, other) = (Lock::mutex("k1"), Lock::mutex("k2"));
    let held = a.ask(&lock).acquired("S1").await?;
    let others = b.ask(&other).acquired("S1").await?;
    let promise = "S3: an attempt holds only the key that it acquired";
    a.releases_nothing(&other, held.operation(), promise)
        .await?;
    a.ask(&other).finds_contention("S3").await?;
    b.ask(&lock).finds_contention("S3").await?;
    others.released("S3").await?;
    held.released("S3").await
}

async fn late_release_after_another_holder(world: &World) -> Verdict {
    let (a, b, lock, late) = world.held_for(3).await?;
    world.pass(4).await;
    let held = b.ask(&lock).acquired("L1").await?;
    want!(
        late.release().await?,
        ReleaseReply::NotHeld(EndReason::Expired | EndReason::Unknown)
    )
    .promised("S3: a release after the end of the lease releases nothing")?;
    a.ask(&lock).finds_contention("S3").await?;
    held.renewed(world.units(10), "S3").await?;
    held.released("S3").await
}

async fn late_renewal_after_another_holder(world: &World) -> Verdict {
    let (a, b, lock, late) = world.held_for(3).await?;
    world.pass(4).await;
    let held = b.ask(&lock).lease(world.units(6)).acquired("L1").await?;
    let promise = "S3: a renewal after the end of the lease renews nothing";
    late.renewal_lost(world.units(500), promise).await?;
    world.pass(7).await;
    a.ask(&lock).acquired("S3").await?;
    let promise = "S3: a late renewal doesn't renew the next holder's lease";
    held.renewal_lost(world.units(5), promise).await
}

async fn second_release_reports_not_held(world: &World) -> Verdict {
    let a = world.session().await?;
    let held = a.ask(&Lock::mutex("k")).acquired("S1").await?;
    held.released("S3").await?;
    for _ in 0..2 {
        want!(
            held.release().await?,
            ReleaseReply::NotHeld(EndReason::Released | EndReason::Unknown)
        )
        .promised("rule 12: a second release reports that the attempt was already released")?;
    }
    Ok(())
}

async fn second_release_spares_the_next_holder(world: &World) -> Verdict {
    let (a, b, lock, first) = world.held(Lock::mutex("k")).await?;
    first.released("S3").await?;
    let second = b.ask(&lock).acquired("S1").await?;
    let promise = "S3: a duplicate release only affects the holder that it was sent for";
    first.not_held(promise).await?;
    // The same holds within one session, because its next attempt has another sequence.
    a.ask(&lock).finds_contention("S3").await?;
    second.released("S3").await?;
    let third = a.ask(&lock).acquired("S1").await?;
    let promise = "S3: a duplicate release spares a later hold of the same session";
    first.not_held(promise).await?;
    b.ask(&lock).finds_contention("S3").await?;
    third.released("S3").await
}

async fn release_of_a_free_key(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let lock = Lock::mutex("k");
    let batch = [Release::new(lock.key.clone(), a.operation(a.owner()))];
    want!(
        one(a.backend.release(&batch).await)?.reply,
        ReleaseReply::NotHeld(EndReason::Unknown | EndReason::Released)
    )
    .promised("S3: a release of an unknown attempt reports that it holds nothing")?;
    b.ask(&lock).granted("S1").await
}

async fn leaving_the_queue(world: &World) -> Verdict {
    let (a, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let (waiter, _) = b.ask(&lock).wait().queued("rule 7").await?;
    waiter.leaves("S3").await?;
    held.released("S3").await?;
    // The queue is empty, so nobody was granted.
    a.ask(&lock).granted("rule 8").await
}

async fn leaving_twice_spares_the_next_waiter(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let (first, _) = b.ask(&lock).wait().queued("rule 7").await?;
    let (second, _) = b.ask(&lock).wait().queued("rule 7").await?;
    first.leaves("S3").await?;
    let promise = "rule 12: a duplicate release finds nothing to remove";
    first.not_held(promise).await?;
    held.released("S3").await?;
    second.poll_granted("S3").await
}

async fn release_gives_up_an_offer(world: &World) -> Verdict {
    let (a, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let (first, _) = b.ask(&lock).wait().queued("rule 7").await?;
    let (second, _) = a.ask(&lock).wait().queued("rule 7").await?;
    held.released("S3").await?;
    // The waiter doesn't know of the grant yet and gives up at the same time.
    first.released("rule 10").await?;
    second.poll_granted("rule 8").await
}
