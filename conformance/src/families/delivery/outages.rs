//! Connections that are cut, and a server that goes silent. The harness causes both.

use std::slice::from_ref;
use std::time::Duration;

use futures_util::StreamExt;
use leasehold_api::{
    AcquireReply, BackendError, Notification, Notifications, Release, ReleaseReply, Stamped, bounds,
};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, ensure, want};
use crate::families::queue::notifications::{listener, listening, next_notification};
use crate::world::{Lock, Session, World};

pub(super) const CASES: &[Case] = cases!("outages";
    calls_work_again_after_a_cut: ["L4"], [Cut];
    cut_subscription_reports_the_gap: ["rule 11"], [Push, Cut];
    pushes_arrive_again_after_a_cut: ["rule 11", "rule 8"], [Queue, Push, Cut];
    call_to_a_silent_server_ends: ["L4"], [Freeze];
    calls_work_again_after_a_silence: ["L4", "rule 12"], [Freeze];
);

/// The number of units in which a client connects again.
const RECONNECT: u32 = 100;

/// Sends the release until it is answered, for [`RECONNECT`] units at most.
async fn answered(
    world: &World,
    attempt: &Release,
    session: &Session,
) -> Result<ReleaseReply, Failure> {
    let mut last = None;
    for _ in 0..RECONNECT {
        match only(session.backend.release(from_ref(attempt)).await) {
            Ok(reply) => return Ok(reply),
            Err(
                error @ (BackendError::Unavailable { .. } | BackendError::OutcomeUnknown { .. }),
            ) => last = Some(error),
            Err(error) => return Err(error.into()),
        }
        world.pass(1).await;
    }
    let promise = "L4: a backend connects again by itself";
    Err(Failure::new(promise, "a reply", last))
}

/// The only element of the reply to a batch of one.
fn only<T>(mut replies: Vec<Result<Stamped<T>, BackendError>>) -> Result<T, BackendError> {
    replies.remove(0).map(|it| it.reply)
}

async fn calls_work_again_after_a_cut(world: &World) -> Verdict {
    let session = world.session().await?;
    let lock = Lock::mutex("k");
    let ask = session.ask(&lock).lease(world.units(RECONNECT * 5));
    let held = ask.acquired("S1").await?;
    world.cut().await?;
    // The first try may have been executed although its reply was lost.
    want!(
        answered(world, &held.release_request(), &session).await?,
        ReleaseReply::Released { .. } | ReleaseReply::NotHeld(_)
    )
    .promised("L4: a release is answered after a cut")?;
    world.session().await?.ask(&lock).granted("S3").await
}

/// Waits for a `Missed`, for [`RECONNECT`] units at most.
async fn missed(world: &World, notifications: &mut Notifications, expected: bool) -> Verdict {
    let next = world.within(RECONNECT, notifications.next()).await;
    let next = next.flatten();
    want!(next, Some(Notification::Missed { listening }) if listening == expected).promised(format!(
        "rule 11: a subscription whose connection is cut yields `Missed` when it is lost and when it works \
         again; expected `listening: {expected}`"
    ))
}

async fn cut_subscription_reports_the_gap(world: &World) -> Verdict {
    let (_session, mut notifications) = listener(world).await?;
    for _ in 0..2 {
        world.cut().await?;
        missed(world, &mut notifications, false).await?;
        missed(world, &mut notifications, true).await?;
    }
    Ok(())
}

async fn pushes_arrive_again_after_a_cut(world: &World) -> Verdict {
    let lock = Lock::mutex("k");
    let (b, mut notifications) = listener(world).await?;
    world.cut().await?;
    missed(world, &mut notifications, false).await?;
    missed(world, &mut notifications, true).await?;
    // New clients, so that every call has a connection.
    let held = world.session().await?.ask(&lock).acquired("S1").await?;
    let nothing = Release::new(lock.key.clone(), b.operation(b.owner()));
    answered(world, &nothing, &b).await?;
    let waiter = listening(&b, &lock).await?;
    held.released("S3").await?;
    let next = next_notification(world, &mut notifications).await;
    want!(
        next,
        Some(Notification::Granted { sequence, .. }) if sequence == waiter.operation().sequence
    )
    .promised("rule 8: grants are pushed after the subscription works again")
}

/// A busy machine may be late to end a call.
fn latest(world: &World) -> Duration {
    bounds::CALL_TIMEOUT + world.units(5)
}

async fn call_to_a_silent_server_ends(world: &World) -> Verdict {
    let session = world.session().await?;
    let request = session.ask(&Lock::mutex("k")).build().await?;
    let clock = session.backend.runtime();
    world.freeze(true).await?;
    let began = clock.now();
    let call = session.backend.acquire(from_ref(&request));
    let answer = world.within_time(latest(world) * 3, call).await;
    let took = clock.now().saturating_since(began);
    world.freeze(false).await?;
    ensure!(took <= latest(world), took).promised(format!(
        "L4: a call ends within {:?}, whatever the server does",
        bounds::CALL_TIMEOUT
    ))?;
    want!(
        answer.map(only),
        Some(Err(
            BackendError::Unavailable { .. } | BackendError::OutcomeUnknown { .. }
        ))
    )
    .promised(
        "L4: a call without an answer is an error that says whether it may have been executed",
    )
}

async fn calls_work_again_after_a_silence(world: &World) -> Verdict {
    let session = world.session().await?;
    let lock = Lock::mutex("k");
    let request = [session.ask(&lock).build().await?];
    world.freeze(true).await?;
    // The server may execute it later.
    drop(session.backend.acquire(&request).await);
    world.freeze(false).await?;
    let release = Release::new(lock.key.clone(), request[0].operation);
    answered(world, &release, &session).await?;
    // A command that arrives after its release has no effect (rule 12).
    let other = world.session().await?;
    world.pass(3).await;
    want!(other.ask(&lock).send().await?.1, AcquireReply::Acquired(_))
        .promised("rule 12: an acquire that was released after a silence holds nothing")
}
