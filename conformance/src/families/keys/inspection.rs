//! Inspection shows a key and changes nothing.

use leasehold_api::{InspectReply, Mode};

use crate::case::{Case, cases};
use crate::failure::{Verdict, ensure, want, want_eq};
use crate::world::{Attempt, Lock, World};

pub(super) const CASES: &[Case] = cases!("inspection";
    unused_key_is_empty: ["rule 4"], [Inspect];
    holder_is_shown: ["rule 4", "rule 15"], [Inspect, WaiterLease];
    released_key_keeps_only_its_token: ["rule 15", "S3"], [Inspect];
    waiters_are_shown_in_order: ["rule 7"], [Inspect, Queue, WaiterLease];
    readers_are_counted: ["rule 4"], [Inspect, RwLocks];
    permits_are_shown: ["rule 4"], [Inspect, Semaphores];
    nested_holds_are_shown: ["rule 5"], [Inspect, Reentrancy];
    looking_extends_nothing: ["rule 4", "L1"], [Inspect];
    looking_settles_nothing: ["rule 4", "rule 7"], [Inspect, Queue];
    expired_is_not_shown: ["rule 1", "rule 4"], [Inspect];
    time_left_is_shown: ["rule 2"], [Inspect, Clock];
    nothing_is_left_behind: ["S3", "L1"], [Inspect, Queue];
);

/// What an inspection shows of a key that nobody holds.
fn only_the_token_of(held: &Attempt) -> InspectReply {
    InspectReply {
        token: Some(held.token()),
        ..InspectReply::default()
    }
}

async fn unused_key_is_empty(world: &World) -> Verdict {
    let a = world.session().await?;
    let view = a.inspect(&Lock::mutex("k")).await?.reply;
    want_eq!(view, InspectReply::default()).promised("rule 4: an unused key is empty")?;
    // The first inspection must not create anything that the second one sees.
    let view = a.inspect(&Lock::mutex("k")).await?.reply;
    want_eq!(view, InspectReply::default()).promised("rule 4: an inspection creates nothing")
}

async fn holder_is_shown(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let lock = Lock::mutex("k");
    let held = a.ask(&lock).label("alice").acquired("S1").await?;
    let view = b.inspect(&lock).await?.reply;
    want_eq!(view.spec, Some(lock.spec))
        .promised("rule 13: an inspection shows what the key is in use as")?;
    want_eq!(view.token, Some(held.token()))
        .promised("rule 15: an inspection shows the last token")?;
    want_eq!((view.holder_count, view.waiter_count), (1, 0)).promised("rule 4: one holder")?;
    let holder = want!(&view.holders[..], [holder] => holder)
        .promised("rule 4: an inspection lists the holder")?;
    want_eq!(holder.label.as_str(), "alice").promised("rule 4: by its label")?;
    want_eq!(holder.mode, Mode::Exclusive).promised("rule 4: a holder is shown with its mode")?;
    want_eq!(holder.holds, 1).promised("rule 5: a holder is shown with its holds")?;
    want_eq!(holder.token, held.token()).promised("rule 15: a holder is shown with its token")?;
    ensure!(!holder.revoked, holder).promised("rule 4: the holder is not revoked")
}

async fn released_key_keeps_only_its_token(world: &World) -> Verdict {
    let (a, _, lock, held) = world.held(Lock::mutex("k")).await?;
    held.released("S3").await?;
    let view = a.inspect(&lock).await?.reply;
    want_eq!(view, only_the_token_of(&held))
        .promised("rule 15: a free key shows only the last token")
}

async fn waiters_are_shown_in_order(world: &World) -> Verdict {
    let lock = Lock::mutex("k");
    let a = world.session().await?;
    a.ask(&lock).label("holder").acquired("S1").await?;
    for label in ["first", "second", "third"] {
        let session = world.session().await?;
        let ask = session.ask(&lock).label(label).wait();
        ask.queued("rule 7").await?;
    }
    let view = a.inspect(&lock).await?.reply;
    let labels: Vec<_> = view.waiters.iter().map(|w| w.label.as_str()).collect();
    want_eq!(labels, ["first", "second", "third"])
        .promised("rule 7: waiters are listed in the order of the queue")?;
    want_eq!((view.holder_count, view.waiter_count), (1, 3))
        .promised("rule 7: all entries are counted")?;
    for waiter in &view.waiters {
        ensure!(!waiter.unreachable, waiter)
            .promised("rule 9: a waiter that doesn't listen is never unreachable")?;
        let left = waiter.waiter_remaining;
        ensure!(!left.is_zero() && left <= lock.spec.waiter_lease(), left)
            .promised("rule 10: a waiter lasts at most one waiter lease")?;
    }
    Ok(())
}

async fn readers_are_counted(world: &World) -> Verdict {
    let lock = Lock::rw("k");
    let a = world.session().await?;
    for (label, units) in [("late", 300), ("soon", 100), ("between", 200)] {
        let ask = a.ask(&lock).shared().label(label).lease(world.units(units));
        ask.acquired("S1").await?;
    }
    let view = a.inspect(&lock).await?.reply;
    let labels: Vec<_> = view.holders.iter().map(|h| h.label.as_str()).collect();
    want_eq!(labels, ["soon", "between", "late"])
        .promised("rule 4: holders are listed by remaining time")?;
    want_eq!((view.holder_count, view.weight), (3, 3))
        .promised("rule 4: all entries are counted")?;
    for holder in &view.holders {
        want_eq!(holder.mode, Mode::Shared).promised("rule 4: each reads")?;
    }
    Ok(())
}

async fn permits_are_shown(world: &World) -> Verdict {
    let lock = Lock::semaphore("k", 4);
    let a = world.session().await?;
    a.ask(&lock).permits(3).acquired("S1").await?;
    let ask = a.ask(&lock).permits(1).lease(world.units(3));
    ask.acquired("S1").await?;
    let all = a.inspect(&lock).await?.reply;
    want_eq!((all.holder_count, all.weight), (2, 4))
        .promised("rule 4: the weight is the sum of the permits that are held")?;
    world.pass(4).await;
    let view = a.inspect(&lock).await?.reply;
    let modes: Vec<_> = view.holders.iter().map(|h| h.mode).collect();
    want_eq!(modes, [Mode::Permits(3)]).promised("rule 4: a holder is shown with its permits")?;
    want_eq!(view.weight, 3)
        .promised("rule 1: an expired holder has no weight, even before another command removes it")
}

async fn nested_holds_are_shown(world: &World) -> Verdict {
    let (a, lock) = (world.session().await?, Lock::mutex("k"));
    let owner = a.owner();
    for n in 1..=3 {
        a.ask(&lock).owner(owner).acquired("rule 5").await?;
        let view = a.inspect(&lock).await?.reply;
        let holds: Vec<_> = view.holders.iter().map(|h| h.holds).collect();
        want_eq!(holds, [n]).promised(format!("rule 5: there is one holder with {n} holds"))?;
    }
    Ok(())
}

async fn looking_extends_nothing(world: &World) -> Verdict {
    let (_, b, lock, _held) = world.held_for(4).await?;
    for _ in 0..5 {
        world.pass(1).await;
        b.inspect(&lock).await?;
    }
    b.ask(&lock).granted("L1").await
}

async fn looking_settles_nothing(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let lock = Lock::mutex("k").waiter_lease(world.units(8));
    a.ask(&lock).lease(world.units(3)).acquired("S1").await?;
    let (waiter, _) = b.ask(&lock).wait().queued("rule 7").await?;
    world.pass(4).await;
    let view = a.inspect(&lock).await?.reply;
    // The holder has expired, but the inspection must not grant to the waiter.
    want_eq!((view.holder_count, view.waiter_count), (0, 1))
        .promised("rule 4: an inspection grants nothing")?;
    waiter.poll_granted("L1").await
}

async fn expired_is_not_shown(world: &World) -> Verdict {
    let (a, _, lock, held) = world.held_for(3).await?;
    world.pass(4).await;
    let view = a.inspect(&lock).await?.reply;
    want_eq!(view, only_the_token_of(&held))
        .promised("rule 1: an expired holder is not listed, even before another command removes it")
}

async fn time_left_is_shown(world: &World) -> Verdict {
    let (a, _, lock, held) = world.held_for(50).await?;
    world.pass(2).await;
    let view = a.inspect(&lock).await?;
    let left = want!(&view.reply.holders[..], [holder] => holder.remaining)
        .promised("rule 4: an inspection lists the holder")?;
    world
        .ends_at((view.stamp, left), held.end_time())
        .promised("rule 2: the remaining time is computed when the inspection is executed")
}

async fn nothing_is_left_behind(world: &World) -> Verdict {
    let (a, _, lock, held) = world.held(Lock::mutex("k")).await?;
    let mut waiters = Vec::new();
    for _ in 0..4 {
        waiters.push(a.ask(&lock).wait().queued("rule 7").await?.0);
    }
    waiters[1].release().await?;
    held.released("S3").await?;
    for waiter in &waiters {
        waiter.release().await?;
    }
    let view = a.inspect(&lock).await?.reply;
    let left = (view.spec, view.holder_count, view.waiter_count);
    want_eq!(left, (None, 0, 0))
        .promised("S3: after all releases, the key has no holders and no waiters")
}
