//! Batches: many commands in one call, each executed independently.

use leasehold_api::{
    Acquire, AcquireReply, BackendError, PollReply, ReleaseReply, RenewReply, ServerTime, Stamped,
    bounds,
};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, ensure, want, want_eq};
use crate::world::{Attempt, Lock, Session, World};

pub(super) const CASES: &[Case] = cases!("batches";
    empty_batches_are_answered_empty: ["trait contract"], [];
    each_renewal_by_itself: ["trait contract", "S3"], [];
    each_release_by_itself: ["trait contract", "S3"], [];
    same_attempt_twice_in_a_batch: ["rule 12"], [];
    each_poll_by_itself: ["trait contract", "rule 7"], [Queue];
    polls_of_a_long_queue: ["rule 10", "rule 7", "trait contract"], [Queue, WaiterLease, Clock];
    releases_of_one_key_in_order: ["rule 7", "rule 8"], [Queue];
    largest_batch: ["trait contract"], [];
    one_error_touches_no_other: ["rule 14", "trait contract"], [PlantForeign];
    each_acquire_by_itself: ["trait contract", "S1", "rule 12"], [];
    acquires_of_one_key_in_order: ["trait contract", "rule 7"], [Queue];
    largest_batch_of_acquires: ["trait contract", "S1"], [];
    acquire_of_a_foreign_key_touches_no_other: ["rule 14", "trait contract"], [PlantForeign];
);

async fn empty_batches_are_answered_empty(world: &World) -> Verdict {
    let backend = world.backend().await?;
    want_eq!(backend.renew(&[]).await.len(), 0)
        .promised("trait contract: an empty batch has an empty reply")?;
    want_eq!(backend.release(&[]).await.len(), 0)
        .promised("trait contract: an empty batch has an empty reply")
}

/// Expects a reply for each request.
fn one_each<T>(answers: &[T], requests: usize) -> Verdict {
    want_eq!(answers.len(), requests).promised("trait contract: a batch has one reply per request")
}

/// The replies to a batch, of which none is an error.
fn all<T>(answers: Vec<Result<Stamped<T>, BackendError>>) -> Result<Vec<T>, Failure> {
    let replies = answers.into_iter().map(|answer| Ok(answer?.reply));
    replies.collect()
}

/// Acquires `k0`, `k1`, …
async fn holds(world: &World, n: usize) -> Result<Vec<Attempt>, Failure> {
    let session = world.session().await?;
    let mut all = Vec::new();
    for number in 0..n {
        let lock = Lock::mutex(&format!("k{number}"));
        all.push(session.ask(&lock).acquired("S1").await?);
    }
    Ok(all)
}

async fn each_renewal_by_itself(world: &World) -> Verdict {
    let held = holds(world, 4).await?;
    held[1].released("S3").await?;
    let lease = world.units(300);
    let batch = held.iter().map(|hold| hold.renew_request(lease));
    let batch = batch.collect::<Result<Vec<_>, _>>()?;
    let backend = &held[0].session.backend;
    let mut answers = backend.renew(&batch).await;
    // The first renewal may have to connect within its limit, and a busy machine needs more time. So it is repeated, as
    // clients do.
    for _ in 0..10 {
        let is_unanswered = |error: &BackendError| error.is_transient();
        if !answers
            .iter()
            .any(|it| it.as_ref().is_err_and(is_unanswered))
        {
            break;
        }
        answers = backend.renew(&batch).await;
    }
    one_each(&answers, 4)?;
    for (n, answer) in answers.into_iter().enumerate() {
        match answer?.reply {
            RenewReply::Renewed { token, .. } if n != 1 => {
                want_eq!(token, held[n].token())
                    .promised("trait contract: the replies are in the order of the requests")?;
            }
            RenewReply::Lost(_) if n == 1 => {}
            other => want!(other, RenewReply::Renewed { .. }).promised(format!(
                "trait contract: reply {n} answers request {n}; only request 1 had been released"
            ))?,
        }
    }
    Ok(())
}

async fn each_release_by_itself(world: &World) -> Verdict {
    let held = holds(world, 4).await?;
    held[2].released("S3").await?;
    let batch: Vec<_> = held.iter().map(Attempt::release_request).collect();
    let answers = held[0].session.backend.release(&batch).await;
    one_each(&answers, 4)?;
    for (n, answer) in answers.into_iter().enumerate() {
        let reply = answer?.reply;
        let right = match reply {
            ReleaseReply::Released { holds_left: 0, .. } => n != 2,
            ReleaseReply::NotHeld(_) => n == 2,
            _ => false,
        };
        ensure!(right, (n, reply)).promised(
            "trait contract: the batch releases all but request 2, which was released before",
        )?;
    }
    for hold in &held {
        let session = world.session().await?;
        session.ask(&hold.lock()).acquired("S3").await?;
    }
    Ok(())
}

async fn same_attempt_twice_in_a_batch(world: &World) -> Verdict {
    let held = holds(world, 1).await?;
    let batch = [held[0].release_request(), held[0].release_request()];
    let answers = all(held[0].session.backend.release(&batch).await)?;
    want!(
        &answers[..],
        [
            ReleaseReply::Released { holds_left: 0, .. },
            ReleaseReply::NotHeld(_)
        ]
    )
    .promised(
        "rule 12: a batch is executed in order: the second release sees the effect of the first",
    )
}

async fn each_poll_by_itself(world: &World) -> Verdict {
    let held = holds(world, 3).await?;
    let session = world.session().await?;
    let mut waiters = Vec::new();
    for hold in &held {
        let ask = session.ask(&hold.lock()).wait();
        waiters.push(ask.queued("rule 7").await?.0);
    }
    held[0].released("S3").await?;
    waiters[2].release().await?;
    let batch: Vec<_> = waiters.iter().map(|w| w.poll_request(false)).collect();
    let answers = all(session.backend.poll(&batch).await)?;
    want!(
        &answers[..],
        [
            PollReply::Acquired(_),
            PollReply::Queued(_),
            PollReply::Gone(_)
        ]
    )
    .promised("trait contract: each poll is answered for its own key and attempt, in order")
}

/// A backend may serve the polls of one key together.
async fn polls_of_a_long_queue(world: &World) -> Verdict {
    const WAITERS: usize = 40;
    const BOUNDED: usize = 10;
    // Behind the other, because a backend may stop to serve polls together at an expired waiter.
    const EXPIRED: usize = 20;
    let [a, b, c] = world.sessions().await?;
    let waiter_lease = world.units(150).min(bounds::MAX_WAITER_LEASE);
    let lock = Lock::mutex("k").waiter_lease(waiter_lease);
    let held = a.ask(&lock).lease(world.units(150)).acquired("S1").await?;
    let silent = c.ask(&lock).wait().queued("rule 7").await?.0;
    let silent_end = end_of(&silent).await?;
    let bound = b.now().await?.saturating_add(world.units(100));
    let mut waiters = Vec::new();
    for number in 0..WAITERS {
        let mut ask = b.ask(&lock).wait();
        if number == EXPIRED {
            ask = ask.wait_until(b.now().await?.saturating_add(world.units(4)));
        } else if number == BOUNDED {
            ask = ask.wait_until(bound);
        }
        waiters.push(ask.queued("rule 7").await?.0);
    }
    world.pass(5).await;
    let batch: Vec<_> = waiters.iter().map(|w| w.poll_request(false)).collect();
    // The silent waiter is ahead of all.
    let mut before = 1;
    let mut ends = ServerTime::default();
    for (number, answer) in b.backend.poll(&batch).await.into_iter().enumerate() {
        let Stamped { stamp, reply } = answer?;
        if number == EXPIRED {
            want!(reply, PollReply::Gone(_))
                .promised("rule 10: a poll never revives an expired waiter")?;
            continue;
        }
        ends = stamp.at.saturating_add(waiter_lease);
        let expected = if number == BOUNDED { bound } else { ends };
        want!(
            reply,
            PollReply::Queued(queued) if queued.ahead >= before
                && stamp.at.saturating_add(queued.waiter_remaining) == expected
        )
        .promised(format!(
            "rule 10: a poll refreshes its waiter up to its deadline, and at least {before} are ahead of it"
        ))?;
        before += 1;
    }
    want_eq!(before as usize, WAITERS)
        .promised("trait contract: a batch has one reply per request")?;
    let refreshed = &waiters[WAITERS - 1];
    let stored = [
        (refreshed, ends, "the refreshed waiter is stored"),
        (&waiters[BOUNDED], bound, "its deadline is stored"),
        (
            &silent,
            silent_end,
            "polls refresh no other client's waiter",
        ),
    ];
    for (waiter, end, promise) in stored {
        want_eq!(end_of(waiter).await?, end).promised(format!("rule 10: {promise}"))?;
    }
    silent.leaves("rule 12").await?;
    held.released("S3").await?;
    waiters[0].poll_granted("rule 7").await?;
    waiters[EXPIRED].poll_gone("rule 10: it has expired").await
}

/// When a waiter expires, as a repeated acquire reports it.
async fn end_of(waiter: &Attempt) -> Result<ServerTime, Failure> {
    let Stamped { stamp, reply } = waiter.again_in_time().await?;
    let queued = want!(reply, AcquireReply::Queued(queued) => queued)
        .promised("rule 12: a repeated acquire reports the waiter")?;
    Ok(stamp.at.saturating_add(queued.waiter_remaining))
}

async fn releases_of_one_key_in_order(world: &World) -> Verdict {
    let held = holds(world, 1).await?;
    let lock = Lock::mutex("k0");
    let session = &held[0].session;
    let (first, _) = session.ask(&lock).wait().queued("rule 7").await?;
    let (second, _) = session.ask(&lock).wait().queued("rule 7").await?;
    // The second request finds the offer that the first one made.
    let batch = [held[0].release_request(), first.release_request()];
    for answer in session.backend.release(&batch).await {
        want!(answer?.reply, ReleaseReply::Released { .. })
            .promised("rule 8: each request is executed by itself, in the order of the batch")?;
    }
    second.poll_granted("rule 8").await
}

async fn largest_batch(world: &World) -> Verdict {
    let held = holds(world, bounds::MAX_BATCH).await?;
    let batch: Vec<_> = held.iter().map(Attempt::release_request).collect();
    let answers = held[0].session.backend.release(&batch).await;
    one_each(&answers, batch.len())?;
    for answer in answers {
        want!(answer?.reply, ReleaseReply::Released { .. })
            .promised("trait contract: each key was held")?;
    }
    Ok(())
}

async fn one_error_touches_no_other(world: &World) -> Verdict {
    let held = holds(world, 2).await?;
    let lock = Lock::mutex("foreign");
    world.plant_foreign(&lock.key).await?;
    let mut foreign = held[0].release_request();
    foreign.key = lock.key.clone();
    let batch = [
        held[0].release_request(),
        foreign,
        held[1].release_request(),
    ];
    let mut answers = held[0].session.backend.release(&batch).await.into_iter();
    for expected_error in [false, true, false] {
        match answers.next() {
            Some(Ok(stamped)) if !expected_error => {
                want!(stamped.reply, ReleaseReply::Released { .. })
                    .promised("trait contract: an error on one key doesn't affect the others")?;
            }
            other => want!(other, Some(Err(BackendError::ForeignValue { .. })) if expected_error)
                .promised("rule 14: an error belongs to one request only")?,
        }
    }
    Ok(())
}

/// Sends acquires in one batch and returns the replies.
async fn acquire_all(
    session: &Session,
    batch: &[Acquire],
) -> Result<Vec<Result<AcquireReply, BackendError>>, Failure> {
    let answers = session.backend.acquire(batch).await;
    one_each(&answers, batch.len())?;
    let replies = answers.into_iter().map(|it| it.map(|it| it.reply));
    Ok(replies.collect())
}

async fn each_acquire_by_itself(world: &World) -> Verdict {
    let [session, other] = world.sessions().await?;
    let ask = |name: &str| session.ask(&Lock::mutex(name));
    let held = other.ask(&Lock::mutex("held")).acquired("S1").await?;
    let long_ago = ServerTime::from_micros(1);
    let batch = [
        ask("k0").build().await?,
        ask("held").build().await?,
        ask("k1").build().await?,
        ask("late").build_until(long_ago)?,
        ask("k2").build().await?,
    ];
    let answers = acquire_all(&session, &batch).await?;
    want!(
        &answers[..],
        [
            Ok(AcquireReply::Acquired(_)),
            Ok(AcquireReply::Contended(_)),
            Ok(AcquireReply::Acquired(_)),
            Ok(AcquireReply::TooLate),
            Ok(AcquireReply::Acquired(_))
        ]
    )
    .promised("trait contract: each acquire is answered for its own key, in order")?;
    // A second delivery only reports the holds.
    let again = acquire_all(&session, &batch).await?;
    for (first, second) in answers.iter().zip(&again) {
        if let Ok(AcquireReply::Acquired(first)) = first {
            want!(
                second,
                Ok(AcquireReply::Acquired(second))
                    if (second.token, second.holds) == (first.token, 1)
            )
            .promised("rule 12: an acquire that is delivered twice has one hold")?;
        }
    }
    held.released("S3").await?;
    for request in [&batch[0], &batch[2], &batch[4]] {
        let lock = Lock::new(request.key.as_str(), request.spec);
        other.ask(&lock).finds_contention("S1").await?;
    }
    Ok(())
}

async fn acquires_of_one_key_in_order(world: &World) -> Verdict {
    let session = world.session().await?;
    let ask = |name: &str| session.ask(&Lock::mutex(name)).wait();
    let batch = [
        ask("k").build().await?,
        ask("other").build().await?,
        ask("k").build().await?,
        ask("k").build().await?,
    ];
    let answers = acquire_all(&session, &batch).await?;
    want!(
        &answers[..],
        [
            Ok(AcquireReply::Acquired(_)),
            Ok(AcquireReply::Acquired(_)),
            Ok(AcquireReply::Queued(first)),
            Ok(AcquireReply::Queued(second))
        ] if (first.ahead, second.ahead) == (0, 1)
    )
    .promised("rule 7: in a batch, the first request acquires the key and the others queue")
}

async fn largest_batch_of_acquires(world: &World) -> Verdict {
    let session = world.session().await?;
    let mut batch = Vec::new();
    let now = session.now().await?;
    let until = now.saturating_add(bounds::CALL_TIMEOUT * 5);
    for number in 0..bounds::MAX_BATCH {
        let lock = Lock::mutex(&format!("k{number}"));
        batch.push(session.ask(&lock).build_until(until)?);
    }
    for answer in acquire_all(&session, &batch).await? {
        want!(answer, Ok(AcquireReply::Acquired(_)))
            .promised("trait contract: each key was free")?;
    }
    let last = Lock::mutex(&format!("k{}", bounds::MAX_BATCH - 1));
    world
        .session()
        .await?
        .ask(&last)
        .finds_contention("S1")
        .await
}

async fn acquire_of_a_foreign_key_touches_no_other(world: &World) -> Verdict {
    let session = world.session().await?;
    let lock = Lock::mutex("foreign");
    world.plant_foreign(&lock.key).await?;
    let batch = [
        session.ask(&Lock::mutex("k0")).build().await?,
        session.ask(&lock).build().await?,
        session.ask(&Lock::mutex("k1")).build().await?,
    ];
    want!(
        &acquire_all(&session, &batch).await?[..],
        [
            Ok(AcquireReply::Acquired(_)),
            Err(BackendError::ForeignValue { .. }),
            Ok(AcquireReply::Acquired(_))
        ]
    )
    .promised("rule 14: an error belongs to one request only")
}
