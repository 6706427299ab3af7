//! Several keys under one guard: acquired in order, all or none.

use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::{join, join_all};
use leasehold_api::{
    Error, FencingToken, ForceMode, ForceReply, LockClient, Loss, MultiGuard, MultiLock, Outcome,
    bounds,
};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, ensure, want, want_eq};
use crate::holding::{busy, free, got, released};
use crate::proxy::Pushes;
use crate::world::World;

pub(super) const CASES: &[Case] = cases!("client_many";
    keys_are_taken_in_order: ["L4"], [];
    all_are_held_until_released: ["S1", "S3"], [];
    bad_sets_of_keys: ["trait contract"], [];
    held_key_is_named_and_the_rest_given_back: ["S3"], [];
    one_budget_for_all: ["L4", "S3"], [];
    wait_ends_when_all_are_free: ["S1", "L2"], [];
    dropped_midway_gives_back: ["S3", "rule 11"], [];
    opposite_order_does_not_deadlock: ["L4", "S1"], [];
    loss_of_one_is_the_loss_of_all: ["S2"], [ForceRelease, Inspect];
    loss_while_waiting_takes_all_anew: ["S2"], [ForceRelease, Inspect, Queue];
    removed_key_is_not_in_the_guard: ["S2"], [ForceRelease, Inspect, Queue];
    drop_gives_all_back: ["S3", "L1"], [];
);

fn mutexes(locks: &LockClient, keys: &[&str]) -> Result<MultiLock, Failure> {
    Ok(locks.mutexes(keys)?)
}

fn all(outcome: Result<Outcome<MultiGuard>, Error>) -> Result<MultiGuard, Failure> {
    want!(outcome?, Outcome::Acquired(guard) => guard)
        .promised("L2: free keys are acquired together")
}

/// Expects that another client holds every key.
async fn all_busy(locks: &LockClient, keys: &[&str]) -> Verdict {
    for key in keys {
        busy(locks.mutex(*key)?.try_lock().await, "S1")?;
    }
    Ok(())
}

/// Expects that every key becomes free soon; keys are released in the background.
async fn free_soon(world: &World, locks: &LockClient, keys: &[&str]) -> Verdict {
    for key in keys {
        let limit = world.units_and_a_poll(5);
        drop(got(locks.mutex(key)?.try_lock_for(limit).await, "S3")?);
    }
    Ok(())
}

async fn released_all(guard: &MultiGuard) -> Verdict {
    let released = guard.release().await;
    ensure!(released.is_ok(), released).promised("S3: a release reports that all keys were held")
}

async fn keys_are_taken_in_order(world: &World) -> Verdict {
    let (a, proxy) = world.client_on_proxy().await?;
    let guard = mutexes(&a, &["c", "a", "ü", "B", "aa"])?.lock().await?;
    let order = ["B", "a", "aa", "c", "ü"];
    let sent: Vec<String> = proxy.acquired().iter().map(ToString::to_string).collect();
    want_eq!(sent, order)
        .promised("L4: keys are acquired one at a time, in the order of their bytes")?;
    let held: Vec<String> = guard.keys().map(ToString::to_string).collect();
    want_eq!(held, order).promised("L4: the guard lists its keys in that order")?;
    released_all(&guard).await
}

async fn all_are_held_until_released(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let keys = ["k1", "k2", "k3"];
    let guard = a.lock_all(keys).await?;
    all_busy(&b, &keys).await?;
    for key in keys {
        let token = guard.fencing_token(key)?;
        ensure!(token > FencingToken::default(), token)
            .promised("rule 15: each key has a token")?;
    }
    want!(guard.fencing_token("k4"), Err(Error::InvalidInput { .. }))
        .promised("rule 15: other keys have no token")?;
    ensure!(guard.is_valid(), guard).promised("S2: all are held")?;
    released_all(&guard).await?;
    want!(guard.renew().await, Err(Error::Released { .. }))
        .promised("S3: a released guard can't be renewed")?;
    for key in keys {
        free(&b, key, "S3").await?;
    }
    Ok(())
}

async fn bad_sets_of_keys(world: &World) -> Verdict {
    let (a, proxy) = world.client_on_proxy().await?;
    want!(
        a.mutexes([""; 0]).map(|_| ()),
        Err(Error::InvalidInput { .. })
    )
    .promised("trait contract: an empty set of keys is refused")?;
    want!(
        a.mutexes(["k", "j", "k"]).map(|_| ()),
        Err(Error::InvalidInput { .. })
    )
    .promised("trait contract: a duplicate key is refused")?;
    let names: Vec<String> = (0..65).map(|n| format!("k{n}")).collect();
    want!(
        a.mutexes(&names).map(|_| ()),
        Err(Error::InvalidInput { .. })
    )
    .promised("trait contract: too many keys are refused")?;
    want_eq!(proxy.calls(), 0).promised("trait contract: invalid input is refused before any I/O")
}

async fn held_key_is_named_and_the_rest_given_back(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let guard = b.mutex("k2")?.lock().await?;
    let tried = mutexes(&a, &["k1", "k2", "k3"])?.try_lock().await?;
    want!(tried, Outcome::Contended(held) if held.key.as_str() == "k2")
        .promised("S1: a try names the key that is held")?;
    free_soon(world, &b, &["k1", "k3"]).await?;
    drop(guard);
    Ok(())
}

async fn one_budget_for_all(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let (first, second) = (b.mutex("k1")?.lock().await?, b.mutex("k2")?.lock().await?);
    let many = mutexes(&a, &["k1", "k2"])?;
    let waits = many.try_lock_for(world.units(8));
    let releases = async || released(&first, "S3").await;
    let outcome = world.meanwhile(4, waits, releases).await?;
    let timed_out = want!(outcome?, Outcome::Contended(timed_out) => timed_out)
        .promised("L4: one time limit applies to all keys together")?;
    ensure!(timed_out.waited < world.units(12), timed_out)
        .promised("L4: one time limit applies to all keys together")?;
    free_soon(world, &b, &["k1"]).await?;
    drop(second);
    free_soon(world, &b, &["k2"]).await
}

async fn wait_ends_when_all_are_free(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let (first, second) = (b.mutex("k1")?.lock().await?, b.mutex("k3")?.lock().await?);
    let many = mutexes(&a, &["k1", "k2", "k3"])?;
    let waits = many.try_lock_for(world.units(60));
    let releases = async || {
        released(&first, "S3").await?;
        world.pass(2).await;
        released(&second, "S3").await
    };
    let guard = all(world.meanwhile(2, waits, releases).await?)?;
    all_busy(&b, &["k1", "k2", "k3"]).await?;
    released_all(&guard).await
}

async fn dropped_midway_gives_back(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let held = b.mutex("k3")?.lock().await?;
    let many = mutexes(&a, &["k1", "k2", "k3"])?;
    let waited = world.within(4, many.lock()).await;
    ensure!(waited.is_none(), waited).promised("S1: one of the keys is held")?;
    free_soon(world, &b, &["k1", "k2"]).await?;
    held.release().await?;
    free_soon(world, &b, &["k3"]).await
}

/// Clients that name the same keys in opposite order acquire them one after the other.
async fn opposite_order_does_not_deadlock(world: &World) -> Verdict {
    let inside = AtomicU32::new(0);
    let orders = [["k1", "k2", "k3"], ["k3", "k2", "k1"], ["k2", "k3", "k1"]];
    let mut workers = Vec::new();
    for order in orders {
        let many = mutexes(&world.client().await?, &order)?;
        let inside = &inside;
        workers.push(async move {
            for _ in 0..4 {
                let guard = many.lock().await?;
                let others = inside.fetch_add(1, Ordering::SeqCst);
                want_eq!(others, 0).promised("S1: one client at a time holds all keys")?;
                world.pass_for(world.units(1) / 20).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                released_all(&guard).await?;
            }
            Ok::<_, Failure>(())
        });
    }
    // Each hand-over may take a poll.
    let limit = world.units(250) + bounds::MAX_POLL_INTERVAL * 36;
    let ended = world.within_time(limit, join_all(workers)).await;
    let ended = want!(ended, Some(ended) => ended).promised(format!(
        "L4: clients that name the same keys in opposite order never deadlock: all end within {limit:?}"
    ))?;
    ended.into_iter().collect()
}

async fn force(locks: &LockClient, key: &str) -> Verdict {
    let tokens = locks.inspect(key).await?.held_tokens();
    want!(
        locks.force_release(key, tokens, ForceMode::Now).await?,
        ForceReply::Forced { .. }
    )
    .promised("S3: a forced release ends the holders that it names")
}

async fn loss_of_one_is_the_loss_of_all(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let many = mutexes(&a, &["k1", "k2"])?.lease(world.units(10));
    let guard = many.lock().await?;
    let body = guard.protect(std::future::pending::<()>());
    let waits = world.within(30, join(body, guard.lost()));
    let forces = async || force(&b, "k2").await;
    let ended = world.meanwhile(1, waits, forces).await?;
    let (stopped, (key, loss)) = want!(ended, Some(ended) => ended)
        .promised("S2: `lost` completes within 30 units when one key is lost")?;
    want_eq!(key.as_str(), "k2").promised("S2: the lost key is named")?;
    ensure!(matches!(loss, Loss::Forced | Loss::Unknown), loss)
        .promised("S2: the loss has a reason")?;
    want!(stopped, Err(Error::Lost { key, .. }) if key.as_str() == "k2")
        .promised("S2: `with` stops the body")?;
    ensure!(!guard.is_valid(), guard).promised("S2: the loss of one key ends the whole guard")?;
    drop(guard);
    free_soon(world, &b, &["k1", "k2"]).await
}

async fn loss_while_waiting_takes_all_anew(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let last = b.mutex("k2")?.lock().await?;
    let many = mutexes(&a, &["k1", "k2"])?.lease(world.units(10));
    let interference = async {
        world.pass(2).await;
        // The thief waits already, so that it is the next.
        let thief = b.mutex("k1")?;
        let waits = thief.try_lock_for(world.units_and_a_poll(20));
        let forces = async || force(&b, "k1").await;
        let thief = got(world.meanwhile(1, waits, forces).await?, "S3")?;
        world.pass(15).await;
        last.release().await?;
        // If the loss were not noticed, all keys would count as held now.
        world.pass(3).await;
        let view = b.inspect("k2").await?;
        want_eq!(view.holder_count(), 0)
            .promised("S2: a client that loses one key while it waits for another starts over")?;
        thief.release().await?;
        Ok::<_, Failure>(thief.fencing_token())
    };
    let (outcome, stolen) = join(many.try_lock_for(world.units(150)), interference).await;
    let guard = all(outcome)?;
    let stolen = stolen?;
    if world.has_tokens() {
        let token = guard.fencing_token("k1")?;
        ensure!(token > stolen, token).promised("S4: the key was acquired again")?;
    }
    all_busy(&b, &["k1", "k2"]).await?;
    released_all(&guard).await
}

/// A key is removed by force while the call waits for the next one, which is released right after that. The news
/// of both comes late.
async fn removed_key_is_not_in_the_guard(world: &World) -> Verdict {
    let (a, proxy) = world.client_on_proxy().await?;
    let b = world.client().await?;
    let last = b.mutex("k2")?.lock().await?;
    proxy.set_pushes(Pushes::Hold);
    let many = mutexes(&a, &["k1", "k2"])?;
    let waits = many.try_lock_for(world.units_and_a_poll(60));
    let interference = async || {
        let forced = force(&b, "k1").await;
        last.release().await?;
        forced
    };
    let guard = all(world.meanwhile(2, waits, interference).await?)?;
    ensure!(guard.is_valid(), guard).promised("S2: all keys are held")?;
    all_busy(&b, &["k1", "k2"]).await?;
    released_all(&guard).await
}

async fn drop_gives_all_back(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    drop(a.lock_all(["k1", "k2", "k3"]).await?);
    free_soon(world, &b, &["k3", "k2", "k1"]).await?;
    let many = mutexes(&a, &["k1", "k2"])?;
    let keys = many.with(async |guard| guard.keys().len()).await?;
    want_eq!(keys, 2).promised("S3: the body runs while all keys are held")?;
    for key in ["k1", "k2"] {
        free(&b, key, "S3").await?;
    }
    Ok(())
}
