//! Hand-offs of a hold from one client to another.

use futures_util::future::join_all;
use leasehold_api::{
    Error, ForceMode, Handoff, HandoffFailed, InvalidInput, LockClient, MutexGuard, ReadGuard,
    WriteGuard, guard_kind,
};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, ensure, want, want_eq};
use crate::holding::{busy, free, got, released, valid};
use crate::world::World;

pub(super) const CASES: &[Case] = cases!("client_handoff";
    hold_is_adopted_elsewhere: ["S1", "L1"], [Reentrancy];
    sender_releases_nothing: ["S3"], [Reentrancy];
    sender_renews_nothing: ["L1"], [Reentrancy];
    copied_text_is_adopted_once: ["S1"], [Reentrancy];
    spent_handoff_is_refused: ["S1", "S3"], [Reentrancy];
    late_copy_spares_the_next_holder: ["S3"], [Reentrancy];
    revoked_handoff_is_refused: ["S1"], [Reentrancy, ForceRelease, Inspect];
    readers_and_writers_are_handed_off: ["S1", "rule 6"], [Reentrancy, RwLocks];
    other_kind_is_refused_before_any_io: ["trait contract"], [Reentrancy];
    secret_is_not_shown: ["S3"], [Reentrancy];
    guard_that_cannot_be_handed_off_is_returned: ["trait contract"], [];
);

async fn send(world: &World, locks: &LockClient) -> Result<Handoff, Failure> {
    let taken = locks.mutex("k")?.try_lock_for(world.units(60)).await;
    let handoff = got(taken, "S1")?.into_handoff().await;
    Ok(handoff.map_err(Error::from)?)
}

fn copy(handoff: &Handoff) -> Result<Handoff, Failure> {
    let read = handoff.to_secret_text().parse::<Handoff>();
    Ok(read.map_err(Error::from)?)
}

async fn adopt(locks: &LockClient, handoff: Handoff) -> Result<MutexGuard, HandoffFailed<Handoff>> {
    locks.adopt(handoff).await
}

fn adopted(result: Result<MutexGuard, HandoffFailed<Handoff>>) -> Result<MutexGuard, Failure> {
    Ok(result.map_err(Error::from)?)
}

fn spent<G: std::fmt::Debug>(result: Result<G, HandoffFailed<Handoff>>, when: &str) -> Verdict {
    want!(result.map_err(Error::from), Err(Error::HandoffSpent { .. }))
        .promised(format!("S1: a hand-off is refused {when}"))
}

async fn hold_is_adopted_elsewhere(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let guard = a.mutex("k")?.lease(world.units(10)).lock().await?;
    let token = guard.fencing_token();
    let handoff = guard.into_handoff().await.map_err(Error::from)?;
    world.pass(3).await;
    busy(b.mutex("k")?.try_lock().await, "S1")?;
    let guard = adopted(adopt(&b, copy(&handoff)?).await)?;
    want_eq!(guard.fencing_token(), token)
        .promised("rule 15: the sender and the adopter are in one epoch")?;
    world.pass(25).await;
    valid(&guard, "L4: the adopter renews the lock")?;
    busy(a.mutex("k")?.try_lock().await, "S1")?;
    released(&guard, "S3").await?;
    free(&a, "k", "S3").await
}

async fn sender_releases_nothing(world: &World) -> Verdict {
    let [a, b, c] = world.clients().await?;
    let handoff = send(world, &a).await?;
    // The sender uses other locks, then shuts down.
    drop(a.mutex("other")?.lock().await?);
    a.shutdown().await?;
    drop(a);
    world.pass(2).await;
    busy(c.mutex("k")?.try_lock().await, "S3")?;
    let guard = adopted(adopt(&b, handoff).await)?;
    world.pass(3).await;
    valid(&guard, "S3: the adopted lock stays valid")?;
    busy(c.mutex("k")?.try_lock().await, "S3")?;
    released(&guard, "S3").await
}

async fn sender_renews_nothing(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let guard = a.mutex("k")?.lease(world.units(10)).lock().await?;
    let handoff = guard.into_handoff().await.map_err(Error::from)?;
    let next = b.mutex("k")?.try_lock_for(world.units(60)).await;
    let next = got(next, "L1")?;
    spent(adopt(&a, handoff).await, "after its lease")?;
    valid(&next, "S3: the next holder is not affected")?;
    released(&next, "S3").await
}

async fn copied_text_is_adopted_once(world: &World) -> Verdict {
    let a = world.client().await?;
    let clients = world.clients::<4>().await?;
    for _ in 0..5 {
        let handoff = send(world, &a).await?;
        let mut attempts = Vec::new();
        for locks in &clients {
            attempts.push(adopt(locks, copy(&handoff)?));
        }
        let mut guards = Vec::new();
        for result in join_all(attempts).await {
            match result {
                Ok(guard) => guards.push(guard),
                other => spent(other, "for all copies but one")?,
            }
        }
        want_eq!(guards.len(), 1).promised("S1: exactly one of many copies is adopted")?;
        spent(adopt(&a, copy(&handoff)?).await, "after an adoption")?;
        valid(&guards[0], "S3: the other copies change nothing")?;
        released(&guards[0], "S3").await?;
    }
    Ok(())
}

async fn spent_handoff_is_refused(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let handoff = send(world, &a).await?;
    let text = copy(&handoff)?;
    released(&adopted(adopt(&b, handoff).await)?, "S3").await?;
    spent(adopt(&b, text).await, "after the release")?;
    free(&a, "k", "S3").await
}

async fn late_copy_spares_the_next_holder(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let handoff = send(world, &a).await?;
    released(&adopted(adopt(&b, copy(&handoff)?).await)?, "S3").await?;
    // The client that handed it off acquires the key again.
    let next = a.mutex("k")?.lock().await?;
    spent(adopt(&b, handoff).await, "under a later holder")?;
    world.pass(2).await;
    busy(b.mutex("k")?.try_lock().await, "S3")?;
    released(&next, "S3").await
}

async fn revoked_handoff_is_refused(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    for how in [ForceMode::Revoke, ForceMode::Now] {
        let guard = a.mutex("k")?.lease(world.units(10)).lock().await?;
        let handoff = guard.into_handoff().await.map_err(Error::from)?;
        let tokens = b.inspect("k").await?.held_tokens();
        b.force_release("k", tokens, how).await?;
        spent(adopt(&b, handoff).await, "after a forced release")?;
        let next = b.mutex("k")?.try_lock_for(world.units(60)).await;
        drop(got(next, "L1")?);
        world.pass(1).await;
    }
    Ok(())
}

async fn readers_and_writers_are_handed_off(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let (mine, other) = (a.rw_lock("k")?, b.rw_lock("k")?);
    let beside = other.read().await?;
    let reader = mine.read().await?;
    let handoff = reader.into_handoff().await.map_err(Error::from)?;
    let reader: ReadGuard = b.adopt(handoff).await.map_err(Error::from)?;
    released(&beside, "S3").await?;
    busy(other.try_write().await, "S1")?;
    released(&reader, "S3").await?;

    let handoff = mine.write().await?.into_handoff().await;
    let handoff = handoff.map_err(Error::from)?;
    let writer: WriteGuard = b.adopt(handoff).await.map_err(Error::from)?;
    busy(other.try_read().await, "S1")?;
    if world.capabilities().convert {
        let reader = writer.downgrade().await?;
        drop(got(other.try_read().await, "rule 6")?);
        return released(&reader, "S3").await;
    }
    released(&writer, "S3").await
}

async fn other_kind_is_refused_before_any_io(world: &World) -> Verdict {
    let a = world.client().await?;
    let (b, proxy) = world.client_on_proxy().await?;
    let handoff = send(world, &a).await?;
    let promise = "trait contract: a mutex can't be adopted as a read guard";
    let adopted_as_other = b.adopt::<guard_kind::Read>(handoff).await;
    let refused = want!(adopted_as_other, Err(refused) => refused).promised(promise)?;
    let (error, handoff) = refused.into_parts();
    want!(
        error,
        Error::InvalidInput {
            problem: InvalidInput::HandoffKind { .. },
            ..
        }
    )
    .promised(promise)?;
    want_eq!(proxy.calls(), 0).promised("trait contract: nothing was sent")?;
    released(&adopted(adopt(&b, handoff).await)?, "S3").await
}

async fn secret_is_not_shown(world: &World) -> Verdict {
    let a = world.client().await?;
    let handoff = send(world, &a).await?;
    let text = handoff.to_secret_text();
    let token = handoff.fencing_token().to_string();
    let failed = a.adopt::<guard_kind::Read>(handoff).await;
    let shown = match failed {
        Err(failed) => {
            let shown = format!("{failed:?} {failed}");
            format!("{shown} {:?}", failed.given_back())
        }
        Ok(guard) => format!("{guard:?}"),
    };
    // The token isn't a secret, but it is as long as one.
    let fields = text.split(':').skip(1).filter(|field| *field != token);
    let secrets: Vec<&str> = fields.filter(|field| field.len() > 15).collect();
    ensure!(secrets.len() > 1, secrets).promised("set-up: a hand-off contains secrets")?;
    for secret in secrets {
        ensure!(!shown.contains(secret), shown)
            .promised("S3: `Debug` doesn't print the secrets")?;
    }
    Ok(())
}

async fn guard_that_cannot_be_handed_off_is_returned(world: &World) -> Verdict {
    let (a, proxy) = world.client_on_proxy().await?;
    let guard = if world.capabilities().reentrancy {
        a.mutex("k")?.reentrant()?.lock().await?
    } else {
        a.mutex("k")?.lock().await?
    };
    let before = proxy.calls();
    let refused = want!(guard.into_handoff().await, Err(refused) => refused)
        .promised("trait contract: a guard that can't be handed off is refused")?;
    want_eq!(proxy.calls(), before).promised("trait contract: nothing was sent")?;
    let (error, guard) = refused.into_parts();
    let names_the_reason = match error {
        Error::InvalidInput {
            problem: InvalidInput::HandoffGuard { .. },
            ..
        } => world.capabilities().reentrancy,
        Error::Unsupported { .. } => !world.capabilities().reentrancy,
        _ => false,
    };
    ensure!(names_the_reason, error)
        .promised("trait contract: the error says why the guard can't be handed off")?;
    valid(&guard, "S3: the returned guard is still valid")?;
    released(&guard, "S3").await
}
