//! Pushed grants: a push hands the lock over, and no waiter depends on it.

use std::pin::pin;

use futures_util::future::{join, join_all};
use leasehold_api::{LockClient, MutexGuard, Notification};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, ensure, want_eq};
use crate::holding::{got, released, valid};
use crate::proxy::{ProxyBackend, Pushes};
use crate::world::World;

pub(super) const CASES: &[Case] = cases!("client_push";
    one_subscription_carries_all_waiters: ["rule 8"], [Queue, Push];
    grant_comes_without_another_call: ["rule 8"], [Queue, Push];
    push_may_come_before_the_reply: ["rule 11"], [Queue, Push];
    push_may_come_after_a_poll: ["rule 11"], [Queue, Push];
    doubled_push_changes_nothing: ["rule 11"], [Queue, Push];
    lost_subscription_makes_everyone_poll: ["rule 11", "L2"], [Queue, Push];
    waiters_outlive_a_lost_subscription: ["rule 11", "rule 7"], [Queue, Push];
    unreachable_client_keeps_its_turn: ["rule 9", "L2"], [Queue, Push];
);

/// The number of hand-overs of which at least one must come by push: a poll may always happen at
/// the same time.
const ROUNDS: u32 = 5;

/// Lets time pass until `done`, for at most `units` units.
async fn until(world: &World, units: u32, mut done: impl FnMut() -> bool) -> bool {
    for _ in 0..units * 4 {
        if done() {
            return true;
        }
        world.pass_for(world.units(1) / 4).await;
    }
    done()
}

/// Connects a client through a proxy and waits for its subscription.
async fn listening(world: &World) -> Result<(LockClient, ProxyBackend), Failure> {
    let holder = world.client().await?;
    let (locks, proxy) = world.client_on_proxy().await?;
    let held = holder.mutex("warm-up")?.lock().await?;
    let mutex = locks.mutex("warm-up")?;
    let waits = pin!(mutex.lock());
    // A poll after the subscription reports that the session listens.
    let subscribed = until(world, 40, || proxy.listens() > 0 && proxy.polled() > 1);
    let (guard, ready) = join(waits, async {
        let ready = subscribed.await;
        released(&held, "S3").await?;
        Ok::<_, Failure>(ready)
    })
    .await;
    ensure!(ready?, proxy)
        .promised("rule 11: a client that has subscribed reports it with a poll")?;
    released(&guard?, "S3").await?;
    Ok((locks, proxy))
}

async fn taken(world: &World, locks: &LockClient, key: &str) -> Result<MutexGuard, Failure> {
    let outcome = locks.mutex(key)?.try_lock_for(world.units(60)).await;
    got(outcome, "L2")
}

async fn one_subscription_carries_all_waiters(world: &World) -> Verdict {
    let a = world.client().await?;
    let (b, proxy) = world.client_on_proxy().await?;
    let keys = ["k1", "k2", "k3", "k4", "k5"];
    let mut held = Vec::new();
    for key in keys {
        held.push(a.mutex(key)?.lock().await?);
    }
    let waits = join_all(keys.map(|key| taken(world, &b, key)));
    let guards = world.meanwhile(2, waits, async || {
        for guard in &held {
            released(guard, "S3").await?;
        }
        Ok(())
    });
    for guard in guards.await? {
        released(&guard?, "S3").await?;
    }
    want_eq!(proxy.listens(), 1).promised("rule 8: one subscription serves all waiters of a client")
}

async fn grant_comes_without_another_call(world: &World) -> Verdict {
    let a = world.client().await?;
    let (b, proxy) = listening(world).await?;
    let mut without = 0;
    for _ in 0..ROUNDS {
        let held = taken(world, &a, "k").await?;
        let mut before = 0;
        let waits = async {
            let guard = taken(world, &b, "k").await;
            (guard, proxy.attempts_and_polls())
        };
        let releases = async || {
            before = proxy.attempts_and_polls();
            released(&held, "S3").await
        };
        let (guard, after) = world.meanwhile(2, waits, releases).await?;
        without += u32::from(before == after);
        released(&guard?, "S3").await?;
    }
    ensure!(without > 0, without)
        .promised("rule 8: a pushed grant hands the lock over without another call")
}

async fn push_may_come_before_the_reply(world: &World) -> Verdict {
    let a = world.client().await?;
    let (b, proxy) = listening(world).await?;
    let mut without = 0;
    for _ in 0..ROUNDS {
        let held = taken(world, &a, "k").await?;
        let before = proxy.polled();
        proxy.hold_replies(true);
        let waits = async {
            let guard = taken(world, &b, "k").await;
            (guard, proxy.polled())
        };
        let releases = async || {
            released(&held, "S3").await?;
            world.pass(2).await;
            proxy.hold_replies(false);
            Ok(())
        };
        let (guard, after) = world.meanwhile(2, waits, releases).await?;
        without += u32::from(before == after);
        let guard = guard?;
        valid(&guard, "S2: the guard is valid")?;
        released(&guard, "rule 11").await?;
    }
    ensure!(without > 0, without)
        .promised("rule 11: a push that arrives before the reply is used when the reply arrives")
}

async fn push_may_come_after_a_poll(world: &World) -> Verdict {
    handed_over(world, Pushes::Hold).await
}

async fn doubled_push_changes_nothing(world: &World) -> Verdict {
    handed_over(world, Pushes::Duplicate).await
}

/// Hands the lock over to a client that gets a push late, or late once more.
async fn handed_over(world: &World, pushes: Pushes) -> Verdict {
    let a = world.client().await?;
    let (b, proxy) = listening(world).await?;
    let held = taken(world, &a, "k").await?;
    proxy.set_pushes(pushes);
    let releases = async || released(&held, "S3").await;
    let guard = world.meanwhile(2, taken(world, &b, "k"), releases);
    let guard = guard.await??;
    proxy.deliver_held_pushes();
    stays_held(world, &a, &guard).await
}

/// Expects that a late or duplicate push doesn't change the hold.
async fn stays_held(world: &World, others: &LockClient, guard: &MutexGuard) -> Verdict {
    world.pass(3).await;
    valid(guard, "rule 11: a duplicate push changes nothing")?;
    let tried = others.mutex("k")?.try_lock().await?;
    ensure!(!tried.is_acquired(), tried).promised("S1: the lock has one hold")?;
    released(guard, "rule 11").await?;
    drop(taken(world, others, "k").await?);
    Ok(())
}

async fn lost_subscription_makes_everyone_poll(world: &World) -> Verdict {
    let a = world.client().await?;
    let (b, proxy) = listening(world).await?;
    let (one, two) = (a.mutex("k1")?.lock().await?, a.mutex("k2")?.lock().await?);
    let waits = join(taken(world, &b, "k1"), taken(world, &b, "k2"));
    let guards = world.meanwhile(2, waits, async || {
        for listening in [false, true] {
            let before = proxy.polled();
            proxy.push(Notification::Missed { listening });
            let polled = until(world, 4, || proxy.polled() >= before + 2).await;
            ensure!(polled, proxy).promised(
                "rule 11: every waiter polls at once when the subscription is lost or restored",
            )?;
        }
        released(&one, "S3").await?;
        released(&two, "S3").await
    });
    let (one, two) = guards.await?;
    released(&one?, "S3").await?;
    released(&two?, "S3").await
}

async fn waiters_outlive_a_lost_subscription(world: &World) -> Verdict {
    let [a, c] = world.clients().await?;
    let (b, proxy) = listening(world).await?;
    let held = taken(world, &a, "k").await?;
    let given_back = async |guard: MutexGuard| {
        released(&guard, "S3").await?;
        Ok::<_, Failure>(guard.fencing_token())
    };
    let first = async {
        let guard = taken(world, &b, "k").await?;
        world.pass(2).await;
        given_back(guard).await
    };
    let second = async {
        world.pass(2).await;
        given_back(taken(world, &c, "k").await?).await
    };
    let tokens = world.meanwhile(2, join(first, second), async || {
        world.pass(2).await;
        proxy.push(Notification::Missed { listening: false });
        world.pass(1).await;
        released(&held, "S3").await
    });
    let (first, second) = tokens.await?;
    let (first, second) = (first?, second?);
    if world.has_tokens() {
        ensure!(first < second, (first, second))
            .promised("rule 7: no waiter loses its turn by a lost subscription")?;
    }
    Ok(())
}

async fn unreachable_client_keeps_its_turn(world: &World) -> Verdict {
    let a = world.client().await?;
    let (b, proxy) = world.client_on_proxy().await?;
    proxy.fake_subscriptions();
    let (c, _) = listening(world).await?;
    let held = taken(world, &a, "k").await?;
    let unreachable = async {
        let guard = taken(world, &b, "k").await?;
        released(&guard, "S3").await
    };
    let reachable = async {
        // It queues behind the other waiter, which has reported by then that it listens.
        let polled = until(world, 30, || proxy.polled() > 1).await;
        ensure!(polled, proxy).promised("rule 3: a waiter polls")?;
        let behind = taken(world, &c, "k");
        let releases = async || released(&held, "S3").await;
        let guard = world.meanwhile(2, behind, releases).await??;
        let before = b.mutex("k")?.try_lock().await?;
        ensure!(!before.is_acquired(), before).promised("S1: the key is held")?;
        released(&guard, "S3").await
    };
    let (unreachable, reachable) = join(unreachable, reachable).await;
    unreachable?;
    reachable
}
