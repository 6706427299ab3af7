//! Notifications that the server pushes to subscribed sessions.

use std::time::Duration;

use futures_util::StreamExt;
use leasehold_api::{
    FencingToken, ForceMode, ForceReply, Notification, Notifications, PollReply, Stamp, Wait,
};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, ensure, want, want_eq};
use crate::world::{Attempt, Lock, Session, World};

pub(super) const CASES: &[Case] = cases!("notifications";
    grant_is_pushed: ["rule 8"], [Queue, Push, FencingTokens];
    pushed_grant_is_the_offer: ["rule 8", "rule 10", "S2"], [Queue, Push, Clock];
    pushed_offer_expires_unless_confirmed: ["rule 10", "L1"], [Queue, Push, Clock];
    only_the_head_wakes: ["rule 8"], [Queue, Push];
    group_is_notified_together: ["rule 8", "rule 7"], [Queue, Push, RwLocks];
    last_reader_notifies_the_writer: ["rule 8", "S1"], [Queue, Push, RwLocks];
    leaving_writer_lets_readers_in: ["rule 8"], [Queue, Push, RwLocks];
    permits_change_hands_in_order: ["rule 7", "rule 8", "S3"], [Queue, Push, Semaphores];
    leaving_notifies_the_next: ["rule 8"], [Queue, Push];
    sessions_that_do_not_listen_are_not_notified: ["rule 8", "L2"], [Queue, Push];
    sessions_receive_only_their_own: ["rule 8"], [Queue, Push];
    two_subscriptions_are_harmless: ["rule 11"], [Queue, Push];
    ended_subscription_leaves_the_other: ["rule 8", "rule 9"], [Queue, Push];
    grant_after_the_release_is_not_pushed: ["rule 11", "S3"], [Queue, Push];
    revocation_is_pushed: ["S3"], [Push, ForceRelease];
);

/// Connects a session and subscribes it.
pub(in crate::families) async fn listener(
    world: &World,
) -> Result<(Session, Notifications), Failure> {
    let session = world.session().await?;
    let notifications = session.listen().await?;
    Ok((session, notifications))
}

/// Returns the next notification, or `None` after ten units.
pub(in crate::families) async fn next_notification(
    world: &World,
    notifications: &mut Notifications,
) -> Option<Notification> {
    world.within(10, notifications.next()).await.flatten()
}

async fn expect_silence(world: &World, notifications: &mut Notifications, reason: &str) -> Verdict {
    let notification = next_notification(world, notifications).await;
    ensure!(notification.is_none(), notification).promised(format!("rule 8: {reason}"))
}

/// Expects a pushed grant of this attempt.
async fn granted(
    world: &World,
    notifications: &mut Notifications,
    waiter: &Attempt,
) -> Result<(FencingToken, (Stamp, Duration)), Failure> {
    let expected = waiter.operation().sequence;
    want!(
        next_notification(world, notifications).await,
        Some(Notification::Granted { sequence, token, remaining, stamp }) if sequence == expected
            => (token, (stamp, remaining))
    )
    .promised(format!(
        "rule 8: a grant is pushed to a waiter that listens (attempt {expected})"
    ))
}

pub(in crate::families) async fn listening(
    session: &Session,
    lock: &Lock,
) -> Result<Attempt, Failure> {
    let ask = session.ask(lock).wait_as(Wait::new(true));
    Ok(ask.queued("rule 7").await?.0)
}

async fn grant_is_pushed(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let mut notifications = b.listen().await?;
    let waiter = listening(&b, &lock).await?;
    held.released("S3").await?;
    let (token, _) = granted(world, &mut notifications, &waiter).await?;
    ensure!(token > held.token(), token).promised("S4: a grant starts an epoch")?;
    let reply = waiter.poll_as(true).await?.reply;
    let polled = want!(reply, PollReply::Acquired(acquired) => acquired)
        .promised("rule 8: a poll reports the grant that was pushed")?;
    want_eq!(polled.token, token).promised("rule 8: the push and the poll report the same token")
}

async fn pushed_offer_expires_unless_confirmed(world: &World) -> Verdict {
    let lock = Lock::mutex("k").waiter_lease(world.units(6));
    let (_, b, lock, held) = world.held(lock).await?;
    let mut notifications = b.listen().await?;
    let waiter = listening(&b, &lock).await?;
    held.released("S3").await?;
    granted(world, &mut notifications, &waiter).await?;
    world.pass(7).await;
    world.session().await?.ask(&lock).granted("rule 10").await
}

async fn pushed_grant_is_the_offer(world: &World) -> Verdict {
    let lock = Lock::mutex("k").waiter_lease(world.units(50));
    let (_, b, lock, held) = world.held(lock).await?;
    let mut notifications = b.listen().await?;
    let ask = b.ask(&lock).wait_as(Wait::new(true));
    let (waiter, queued) = ask.queued("rule 7").await?;
    let end = waiter.stamp.at.saturating_add(queued.waiter_remaining);
    world.pass(2).await;
    held.released("S3").await?;
    let (_, left) = granted(world, &mut notifications, &waiter).await?;
    world
        .ends_at(left, end)
        .promised("rule 10: a pushed offer expires when its waiter would have")
}

async fn only_the_head_wakes(world: &World) -> Verdict {
    let lock = Lock::mutex("k").waiter_lease(world.units(30));
    let (_, b, lock, held) = world.held(lock).await?;
    let mut of_first = b.listen().await?;
    let (c, mut of_second) = listener(world).await?;
    let first = listening(&b, &lock).await?;
    let second = listening(&c, &lock).await?;
    held.released("S3").await?;
    granted(world, &mut of_first, &first).await?;
    let reason = "a release notifies only the head of the queue";
    expect_silence(world, &mut of_second, reason).await?;
    first.released("S3").await?;
    granted(world, &mut of_second, &second).await?;
    let reason = "a session without locks receives nothing";
    expect_silence(world, &mut of_first, reason).await
}

async fn group_is_notified_together(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::rw("k")).await?;
    let mut of_b = b.listen().await?;
    let (c, mut of_c) = listener(world).await?;
    let mut waiters = Vec::new();
    for session in [&b, &b, &c] {
        let ask = session.ask(&lock).shared().wait_as(Wait::new(true));
        waiters.push(ask.queued("rule 7").await?.0);
    }
    held.released("S3").await?;
    let mut received_by_b = Vec::new();
    for _ in 0..2 {
        want!(
            next_notification(world, &mut of_b).await,
            Some(Notification::Granted { sequence, token, .. })
                => received_by_b.push((sequence, token))
        )
        .promised("rule 8: each of the adjacent readers is notified of its grant")?;
    }
    received_by_b.sort_unstable();
    let (token, _) = granted(world, &mut of_c, &waiters[2]).await?;
    let expected = [&waiters[0], &waiters[1]].map(|w| (w.operation().sequence, token));
    want_eq!(received_by_b, expected)
        .promised("rule 15: readers that are granted together share the token")
}

async fn last_reader_notifies_the_writer(world: &World) -> Verdict {
    let lock = Lock::rw("k").waiter_lease(world.units(50));
    let readers = world.readers(&lock, 3).await?;
    let (b, mut notifications) = listener(world).await?;
    let writer = listening(&b, &lock).await?;
    let c = world.session().await?;
    let (later, _) = c.ask(&lock).shared().wait().queued("rule 7").await?;
    for n in [0, 2, 1] {
        later.poll_queued("rule 7").await?;
        readers[n].released("S3").await?;
    }
    granted(world, &mut notifications, &writer).await?;
    later.poll_queued("S1").await?;
    c.ask(&lock).shared().finds_contention("S1").await?;
    writer.released("S3").await?;
    later.poll_granted("rule 8").await
}

async fn leaving_writer_lets_readers_in(world: &World) -> Verdict {
    let lock = Lock::rw("k").waiter_lease(world.units(50));
    let a = world.session().await?;
    a.ask(&lock).shared().acquired("S1").await?;
    let (writer, _) = a.ask(&lock).wait().queued("rule 7").await?;
    let (b, mut notifications) = listener(world).await?;
    let ask = b.ask(&lock).shared().wait_as(Wait::new(true));
    let (reader, _) = ask.queued("rule 7").await?;
    writer.leaves("S3").await?;
    granted(world, &mut notifications, &reader).await.map(drop)
}

async fn permits_change_hands_in_order(world: &World) -> Verdict {
    let lock = Lock::semaphore("k", 2).waiter_lease(world.units(50));
    let (a, mut notifications) = listener(world).await?;
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(a.ask(&lock).acquired("S1").await?);
    }
    let mut waiters = Vec::new();
    for _ in 0..5 {
        waiters.push(listening(&a, &lock).await?);
    }
    // Neighbours in the middle of the queue leave it.
    for _ in 0..2 {
        waiters.remove(1).leaves("S3").await?;
    }
    for waiter in waiters {
        let holder = held.remove(0);
        holder.released("S3").await?;
        granted(world, &mut notifications, &waiter).await?;
        let promise = "S3: its permit is another attempt's";
        holder.not_held(promise).await?;
        held.push(waiter);
    }
    Ok(())
}

async fn leaving_notifies_the_next(world: &World) -> Verdict {
    let (a, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let (first, _) = a.ask(&lock).wait().queued("rule 7").await?;
    let mut notifications = b.listen().await?;
    let second = listening(&b, &lock).await?;
    held.released("S3").await?;
    // A client that no longer wants the lock gives up its offer.
    first.released("rule 10").await?;
    granted(world, &mut notifications, &second).await.map(drop)
}

async fn sessions_that_do_not_listen_are_not_notified(world: &World) -> Verdict {
    let lock = Lock::mutex("k").waiter_lease(world.units(30));
    let (_, b, lock, held) = world.held(lock).await?;
    let mut notifications = b.listen().await?;
    let (waiter, _) = b.ask(&lock).wait().queued("rule 7").await?;
    held.released("S3").await?;
    let reason = "an attempt that doesn't listen is not notified";
    expect_silence(world, &mut notifications, reason).await?;
    waiter.poll_granted("L2").await
}

async fn sessions_receive_only_their_own(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let (_, mut others) = listener(world).await?;
    let mut notifications = b.listen().await?;
    let waiter = listening(&b, &lock).await?;
    held.released("S3").await?;
    granted(world, &mut notifications, &waiter).await?;
    let reason = "a session receives no notifications of other sessions";
    expect_silence(world, &mut others, reason).await
}

async fn two_subscriptions_are_harmless(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let (mut first, mut second) = (b.listen().await?, b.listen().await?);
    let waiter = listening(&b, &lock).await?;
    held.released("S3").await?;
    let (token, _) = granted(world, &mut first, &waiter).await?;
    let (same, _) = granted(world, &mut second, &waiter).await?;
    want_eq!(same, token).promised("rule 11: both subscriptions receive the same grant")?;
    let acquired = waiter.poll_granted_at("rule 8").await?.reply;
    want_eq!(acquired.holds, 1).promised("rule 11: two notifications of one grant are one hold")?;
    waiter.released("rule 11").await
}

async fn ended_subscription_leaves_the_other(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let older = b.listen().await?;
    let mut stays = b.listen().await?;
    let newer = b.listen().await?;
    drop((older, newer));
    // The server notices.
    world.pass(2).await;
    let waiter = listening(&b, &lock).await?;
    held.released("S3").await?;
    granted(world, &mut stays, &waiter).await.map(drop)
}

async fn grant_after_the_release_is_not_pushed(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let mut notifications = b.listen().await?;
    let waiter = listening(&b, &lock).await?;
    waiter.leaves("S3").await?;
    held.released("S3").await?;
    let reason = "a released attempt is not granted";
    expect_silence(world, &mut notifications, reason).await
}

async fn revocation_is_pushed(world: &World) -> Verdict {
    for how in [ForceMode::Revoke, ForceMode::Now] {
        let lock = Lock::mutex(&format!("{how:?}"));
        let (a, mut notifications) = listener(world).await?;
        let held = a.ask(&lock).acquired("S1").await?;
        let b = world.session().await?;
        want!(b.force(&held, how).await?, ForceReply::Forced { .. })
            .promised("rule 11: a forced release names the holder")?;
        let expected = held.operation().sequence;
        want!(
            next_notification(world, &mut notifications).await,
            Some(Notification::Revoked { sequence, .. }) if sequence == expected
        )
        .promised(format!(
            "S3: a holder that listens is notified of a forced release ({how:?})"
        ))?;
    }
    Ok(())
}
