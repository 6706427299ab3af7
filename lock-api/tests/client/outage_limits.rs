//! The limit for outages: an error soon, whoever of the client noticed the outage, and none without one.

use leasehold_api::{Error, JobOutcome, LockClient, MutexGuard, Outcome};
use leasehold_sim::{Call, Data, Fault, SimServer};

use crate::support::{
    assert_error, clients, connected, contended, held, lock, ms, mutex_of, secs, timed_out, wait,
};

/// Asserts that an outage has ended a call.
#[track_caller]
fn outage(result: Result<Outcome<MutexGuard>, Error>) {
    match result {
        Err(error) if error.is_transient() => {}
        other => panic!("no outage: {other:?}"),
    }
}

async fn timed<T>(server: &SimServer, call: impl Future<Output = T>) -> (T, std::time::Duration) {
    let begun = server.elapsed();
    let result = call.await;
    (result, server.elapsed() - begun)
}

#[tokio::test(start_paused = true)]
async fn lock_fails_after_the_limit_and_at_once_in_an_outage_that_is_known() {
    let (server, [a]) = clients();
    server.stop();
    let limited = mutex_of(&a).outage_limit(ms(500));
    let (result, took) = timed(&server, limited.lock()).await;
    assert_error!(result, Unavailable);
    assert!((ms(500)..ms(510)).contains(&took), "{took:?}");
    for limit in [ms(500), ms(0)] {
        let limited = mutex_of(&a).outage_limit(limit);
        let (result, took) = timed(&server, limited.try_lock_for(secs(60))).await;
        outage(result);
        assert_eq!(took, ms(0));
    }
}

/// The limited handles send nothing more, and yet the client learns that the server is back.
#[tokio::test(start_paused = true)]
async fn end_of_an_outage_is_found_by_a_client_whose_calls_all_fail_at_once() {
    let (server, [a]) = clients();
    server.stop();
    let limited = mutex_of(&a).outage_limit(ms(0));
    outage(limited.try_lock().await);
    server.advance(secs(60)).await;
    let (result, took) = timed(&server, limited.try_lock()).await;
    outage(result);
    assert_eq!(took, ms(0), "still known");
    server.start(Data::Kept);
    server.advance(ms(600)).await;
    drop(held(limited.try_lock().await));
}

#[tokio::test(start_paused = true)]
async fn silent_server_is_known_after_one_call_timeout() {
    let (server, [(a, network)]) = connected();
    drop(lock(&a).await);
    server.advance(secs(1)).await;
    network.isolate();
    let limited = mutex_of(&a).outage_limit(ms(0));
    let (result, took) = timed(&server, limited.try_lock_for(secs(60))).await;
    outage(result);
    assert!((secs(1)..ms(1_010)).contains(&took), "{took:?}");
    let (result, took) = timed(&server, limited.try_lock_for(secs(60))).await;
    outage(result);
    assert_eq!(took, ms(0));
    // What the first call may have taken is released in the background.
    network.rejoin();
    server.advance(secs(2)).await;
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn waiter_in_the_queue_leaves_it_with_an_error() {
    let (server, [(a, _), (b, network)]) = connected();
    let held = lock(&a).await;
    let limited = mutex_of(&b).outage_limit(secs(2));
    let queued = tokio::spawn(async move { limited.try_lock_for(secs(60)).await });
    server.advance(secs(1)).await;
    // Another task of the client notices the outage first; the waiter polls later.
    network.isolate();
    let isolated = server.elapsed();
    assert_error!(b.inspect("k").await, Unavailable);
    outage(queued.await.expect("no panic"));
    let took = server.elapsed() - isolated;
    assert!((secs(2)..ms(2_010)).contains(&took), "{took:?}");
    network.rejoin();
    server.advance(secs(2)).await;
    let left = server.left_behind();
    assert_eq!(left.lines().count(), 1, "only a's hold: {left}");
    drop(held);
}

/// The time of this wait ends before its next poll, which alone would tell it of the outage.
#[tokio::test(start_paused = true)]
async fn deadline_within_an_outage_is_no_contention() {
    for limited in [true, false] {
        let (server, [(a, _), (b, network)]) = connected();
        let _held = lock(&a).await;
        let mut mutex = mutex_of(&b);
        if limited {
            mutex = mutex.outage_limit(secs(30));
        }
        let queued = tokio::spawn(async move { mutex.try_lock_for(ms(1_500)).await });
        server.advance(ms(100)).await;
        network.isolate();
        assert_error!(b.inspect("k").await, Unavailable);
        let result = queued.await.expect("no panic");
        if limited {
            outage(result);
        } else {
            timed_out(&result, ms(1_500));
        }
    }
}

/// The server falls silent while the call waits in the queue, and nobody else notices.
#[tokio::test(start_paused = true)]
async fn turn_that_ends_in_silence_is_no_contention() {
    for (silent_after, is_noticed) in [(50, true), (400, true), (1_900, false)] {
        let (server, [(a, _), (b, network)]) = connected();
        let _held = lock(&a).await;
        let limited = mutex_of(&b).outage_limit(secs(1));
        let queued = tokio::spawn(async move { limited.try_lock_for(secs(2)).await });
        server.advance(ms(silent_after)).await;
        network.isolate();
        let result = queued.await.expect("no panic");
        if is_noticed {
            outage(result);
        } else {
            timed_out(&result, secs(2));
        }
    }
}

/// The poll is answered late, within its time: that is no outage for anybody else.
#[tokio::test(start_paused = true)]
async fn turn_that_ends_in_silence_ends_no_other_wait() {
    let (server, [(a, _), (b, network)]) = connected();
    let held_by_a = lock(&a).await;
    let limited = mutex_of(&b).outage_limit(ms(300));
    let short = limited.clone();
    let short = tokio::spawn(async move { short.try_lock_for(ms(1_700)).await });
    let long = tokio::spawn(async move { limited.lock().await });
    server.advance(ms(100)).await;
    for _ in 0..2 {
        network.inject_into(Call::Poll, Fault::DelayReply(ms(900)));
    }
    outage(short.await.expect("no panic"));
    server.advance(ms(100)).await;
    assert!(!long.is_finished());
    held_by_a.release().await.expect("released");
    drop(long.await.expect("no panic").expect("the server answers"));
}

#[tokio::test(start_paused = true)]
async fn contention_and_short_waits_are_no_outage() {
    let (server, [(a, network), (b, _)]) = connected();
    let theirs = lock(&b).await;
    let limited = mutex_of(&a).outage_limit(ms(0));
    contended(&limited.try_lock().await);
    // The answer comes after the wait, and within a call timeout.
    network.inject_into(Call::Acquire, Fault::DelayReply(ms(400)));
    timed_out(&limited.try_lock_for(ms(300)).await, ms(300));
    timed_out(&limited.try_lock_for(secs(7)).await, secs(7));
    theirs.release().await.expect("released");
    server.advance(ms(100)).await;
    drop(held(limited.try_lock().await));
}

#[tokio::test(start_paused = true)]
async fn failure_of_long_ago_is_no_outage() {
    let (server, [a]) = clients();
    server.stop();
    // Without a limit, nothing looks for the end of the outage.
    assert_error!(mutex_of(&a).try_lock().await, Unavailable);
    server.start(Data::Kept);
    server.advance(secs(4)).await;
    drop(held(mutex_of(&a).outage_limit(ms(0)).try_lock().await));
}

/// A reply was lost, and the service answers others meanwhile.
#[tokio::test(start_paused = true)]
async fn call_that_fails_while_others_are_answered_ends_no_other_wait() {
    let (server, [(a, _), (b, network)]) = connected();
    let held_by_a = lock(&a).await;
    let limited = mutex_of(&b).outage_limit(secs(1));
    let queued = tokio::spawn(async move { limited.lock().await });
    server.advance(ms(100)).await;
    network.inject_into(Call::Inspect, Fault::LoseReply);
    let unanswered = b.inspect("other");
    let answered = async {
        server.advance(ms(500)).await;
        b.ping().await
    };
    let (unanswered, answered) = tokio::join!(unanswered, answered);
    assert_error!(unanswered, Unavailable);
    answered.expect("an answer");
    server.advance(ms(10)).await;
    assert!(!queued.is_finished());
    held_by_a.release().await.expect("released");
    drop(queued.await.expect("no panic").expect("granted"));
}

/// As with one server of several that is away.
#[tokio::test(start_paused = true)]
async fn limit_ends_a_wait_whose_calls_fail_while_others_are_answered() {
    let (server, [(a, network)]) = connected();
    for _ in 0..100 {
        network.inject_into(Call::Acquire, Fault::LoseRequest);
    }
    let limited = mutex_of(&a).outage_limit(secs(5));
    let waiter = tokio::spawn(async move { limited.lock().await.map(Outcome::Acquired) });
    for _ in 0..80 {
        server.advance(ms(100)).await;
        a.ping().await.expect("an answer");
    }
    assert!(waiter.is_finished());
    outage(waiter.await.expect("no panic"));
}

/// The pauses between attempts are longer than the call timeout.
#[tokio::test(start_paused = true)]
async fn limit_ends_a_wait_with_a_short_call_timeout() {
    let (server, [(_, network)]) = connected();
    let a = LockClient::builder(network.clone()).call_timeout(ms(10));
    let a = a.build().expect("valid");
    network.isolate();
    let limited = mutex_of(&a).outage_limit(secs(2));
    let wait = limited.try_lock_for(secs(60));
    let (result, took) = timed(&server, wait).await;
    outage(result);
    assert!((secs(2)..ms(2_250)).contains(&took), "{took:?}");
    let limited = mutex_of(&a).outage_limit(ms(0));
    server.advance(secs(60)).await;
    let (result, took) = timed(&server, limited.try_lock_for(secs(60))).await;
    outage(result);
    assert_eq!(took, ms(0), "still known");
}

#[tokio::test(start_paused = true)]
async fn others_ride_out_an_outage() {
    let (server, [a]) = clients();
    server.stop();
    let unlimited = wait(&a);
    let job = a.once("job").expect("valid").not_within(secs(60));
    let job = tokio::spawn(async move { job.run(async |_| Ok::<_, String>(())).await });
    let leads = a.election("leader").expect("valid");
    let leads = tokio::spawn(async move { leads.campaign().await.map(drop) });
    assert_error!(mutex_of(&a).outage_limit(ms(0)).lock().await, Unavailable);
    server.advance(secs(30)).await;
    assert!(!unlimited.is_finished() && !job.is_finished() && !leads.is_finished());
    server.start(Data::Kept);
    let ran = job.await.expect("no panic").expect("run");
    assert!(matches!(ran, JobOutcome::Done(())), "{ran:?}");
    leads.await.expect("no panic").expect("elected");
    drop(unlimited.await.expect("no panic").expect("granted"));
}
