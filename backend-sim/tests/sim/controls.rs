//! The controls of clients and of the server, at exact times.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::join;
use futures_util::{FutureExt as _, StreamExt as _};
use leasehold_api::{
    AcquireReply, BackendError, EndReason, Error, LockBackend as _, LockClient, Notification,
    ReleaseReply, RenewReply,
};
use leasehold_sim::tools::{Entry, Event, replay};
use leasehold_sim::{Data, Latency, SimOptions, SimServer, assert_deterministic};

use crate::drivers::options;
use crate::locks::{client, hold, job};
use crate::support::{MISSED, Raw, assert_is, key, ms, paused, secs, unknown};

#[tokio::test(start_paused = true)]
async fn paused_client_stops_while_its_clock_runs() {
    let (server, a) = Raw::alone();
    let runtime = a.backend.runtime();
    let ticks = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&ticks);
    let timer = a.backend.runtime();
    runtime.spawn(Box::pin(async move {
        loop {
            timer.sleep(ms(10)).await;
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }));
    server.advance(ms(35)).await;
    assert_eq!(ticks.load(Ordering::Relaxed), 3);
    a.backend.pause();
    let at_pause = runtime.now();
    server.advance(secs(60)).await;
    assert_eq!(ticks.load(Ordering::Relaxed), 3);
    assert_eq!(runtime.now().saturating_since(at_pause), secs(60));
    a.backend.resume();
    // The sleep that has expired ends at once, and only that one.
    server.advance(ms(5)).await;
    assert_eq!(ticks.load(Ordering::Relaxed), 4);
    server.advance(ms(10)).await;
    assert_eq!(ticks.load(Ordering::Relaxed), 5);
}

#[tokio::test(start_paused = true)]
async fn spawned_task_is_awaited_or_aborted_in_virtual_time() {
    let (server, a) = Raw::alone();
    let (runtime, timer) = (a.backend.runtime(), a.backend.runtime());
    let task = runtime.spawn_task(async move {
        timer.sleep(secs(5)).await;
        7
    });
    assert_eq!((task.await, server.elapsed()), (Some(7), secs(5)));
    let hanging = runtime.spawn_task(std::future::pending::<()>());
    server.advance(secs(1)).await;
    hanging.abort();
    assert_eq!(hanging.await, None);
}

#[tokio::test(start_paused = true)]
async fn reply_waits_for_a_paused_client() {
    let (server, a) = Raw::alone();
    let (operation, request) = a.ask(secs(10)).await;
    let pause = async {
        server.advance(ms(1)).await;
        a.backend.pause();
        server.advance(secs(30)).await;
        a.backend.resume();
    };
    let (result, ()) = join(a.send(&request), pause).await;
    let reply = result.expect("the reply arrived before the timeout");
    // The remaining time is true at the execution, so a client counts from before it sent the request.
    assert_is!(reply.reply => AcquireReply::Acquired(acquired) if acquired.remaining == secs(10));
    assert_eq!(server.elapsed(), ms(2 + 1 + 30_000));
    assert_is!(a.renew(operation, secs(10)).await => Ok(RenewReply::Lost(_)));
}

#[tokio::test(start_paused = true)]
async fn paused_client_sends_nothing() {
    let (server, a) = Raw::alone();
    a.backend.pause();
    assert!(a.backend.is_paused());
    let resume = async {
        server.advance(secs(5)).await;
        a.backend.resume();
    };
    let (stamp, ()) = join(a.backend.hello(), resume).await;
    stamp.expect("an answer");
    assert_eq!(server.elapsed(), ms(5_002));
}

#[tokio::test(start_paused = true)]
async fn code_run_as_the_client_stops_with_it() {
    let (server, a) = Raw::alone();
    let body = a.backend.run(async {
        for _ in 0..10 {
            tokio::time::sleep(ms(1)).await;
        }
        server.elapsed()
    });
    let pause = async {
        server.advance(ms(4)).await;
        a.backend.pause();
        server.advance(ms(100)).await;
        a.backend.resume();
    };
    let (ended, ()) = join(body, pause).await;
    // At 4 ms, the fourth sleep may or may not have ended.
    assert!(
        [ms(4 + 100 + 5), ms(4 + 100 + 6)].contains(&ended),
        "{ended:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn resumed_client_receives_its_notifications() {
    let (server, a, b) = Raw::pair();
    let (held, _) = a.acquire(secs(10)).await;
    let mut notifications = b.backend.listen(b.session).await.expect("listening");
    b.queue(secs(10)).await;
    b.backend.pause();
    a.release(held).await.expect("released");
    server.advance(secs(1)).await;
    assert!(notifications.next().now_or_never().is_none());
    b.backend.resume();
    assert_is!(notifications.next().await => Some(Notification::Granted { .. }));
}

#[tokio::test(start_paused = true)]
async fn killed_client_leaves_its_hold_until_the_lease_expires() {
    let (server, a) = Raw::alone();
    let _notifications = a.backend.listen(a.session).await.expect("listening");
    a.acquire(secs(10)).await;
    let runs = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&runs);
    a.backend.kill();
    a.backend.runtime().spawn(Box::pin(async move {
        counter.fetch_add(1, Ordering::Relaxed);
    }));
    assert_eq!(server.listeners(a.session), 0);
    server.advance(secs(9)).await;
    assert_ne!(server.left_behind(), "");
    server.advance(secs(1)).await;
    server.assert_idle();
    assert_eq!(runs.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "client \"a\" was killed")]
async fn killed_client_cannot_be_resumed() {
    let client = SimServer::new(1).client("a");
    client.kill();
    client.resume();
}

#[tokio::test(start_paused = true)]
async fn stopped_server_refuses_calls_and_breaks_connections() {
    let (server, a) = Raw::alone();
    let mut notifications = a.backend.listen(a.session).await.expect("listening");
    let (operation, _) = a.acquire(secs(10)).await;
    let first_clock = a.backend.hello().await.expect("an answer").clock;
    let stop = async {
        server.advance(ms(1)).await;
        server.stop();
    };
    let (renewed, ()) = join(a.renew(operation, secs(10)), stop).await;
    assert!(unknown(&renewed), "{renewed:?}");
    let before = server.elapsed();
    assert_is!(a.backend.hello().await => Err(BackendError::Unavailable { .. }));
    assert_eq!(server.elapsed() - before, ms(2));
    assert_eq!(notifications.next().await.as_ref(), MISSED.first());
    server.advance(secs(2)).await;
    assert_eq!(server.listeners(a.session), 0);
    let started = server.elapsed();
    server.start(Data::Kept);
    assert_eq!(notifications.next().await.as_ref(), MISSED.last());
    let took = server.elapsed() - started;
    assert!(took <= ms(102), "not subscribed again soon");
    let clock = a.backend.hello().await.expect("an answer").clock;
    assert_ne!(clock, first_clock);
    assert_is!(a.renew(operation, secs(10)).await => Ok(RenewReply::Renewed { .. }));
}

#[tokio::test(start_paused = true)]
async fn restart_keeps_or_loses_the_data() {
    for (data, kept) in [(Data::Kept, true), (Data::Lost, false)] {
        let (server, a) = Raw::alone();
        let (operation, _) = a.acquire(secs(10)).await;
        server.restart(data);
        let renewed = a.renew(operation, secs(10)).await.expect("an answer");
        match renewed {
            RenewReply::Renewed { .. } => assert!(kept),
            RenewReply::Lost(reason) => assert_eq!((kept, reason), (false, EndReason::Unknown)),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn request_in_flight_is_lost_with_the_server() {
    let (server, a) = Raw::alone();
    let (_, request) = a.ask(secs(10)).await;
    let mut call = Box::pin(a.send(&request));
    assert!((&mut call).now_or_never().is_none());
    server.restart(Data::Kept);
    assert!(unknown(&call.await));
    server.advance(secs(1)).await;
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn stepped_clock_ends_or_extends_leases() {
    let (server, a) = Raw::alone();
    let (operation, _) = a.acquire(secs(10)).await;
    server.step_clock_back(secs(60));
    server.advance(secs(20)).await;
    let renewed = a.renew(operation, secs(1)).await.expect("an answer");
    // Executed at 20.005 s. The lease expired at 10.003 s, which is now 70.003 s.
    assert_is!(renewed => RenewReply::Renewed { remaining, .. } if *remaining == ms(49_998));
    server.step_clock_forward(secs(50));
    assert_is!(a.renew(operation, secs(1)).await.expect("an answer") => RenewReply::Lost(_));
}

#[tokio::test(start_paused = true)]
async fn foreign_value_is_reported_and_kept() {
    let (server, a) = Raw::alone();
    server.plant_foreign(key(), "hash");
    let (operation, request) = a.ask(secs(10)).await;
    for found in [
        a.send(&request).await.map(drop),
        a.renew(operation, secs(1)).await.map(drop),
        a.release(operation).await.map(drop),
        a.backend.inspect(&key()).await.map(drop),
    ] {
        assert_is!(found => Err(BackendError::ForeignValue { found, .. }) if found == "hash");
    }
    let locked = job(&LockClient::new(a.backend.clone())).lock().await;
    assert_is!(locked => Err(Error::ForeignValue { found, .. }) if found == "hash");
    assert_eq!(server.foreign(key()).as_deref(), Some("hash"));
    server.remove_key(key());
    assert_eq!(server.foreign(key()), None);
    assert_is!(a.send(&request).await.expect("an answer").reply => AcquireReply::Acquired(_));
}

#[tokio::test(start_paused = true)]
async fn removed_key_has_no_holder() {
    let (server, a) = Raw::alone();
    let (operation, _) = a.acquire(secs(10)).await;
    server.remove_key(key());
    server.assert_idle();
    assert_is!(a.release(operation).await => Ok(ReleaseReply::NotHeld(EndReason::Unknown)));
}

#[tokio::test(start_paused = true)]
async fn advance_runs_everything_that_is_due() {
    let (server, a) = Raw::alone();
    let (operation, _) = a.acquire(secs(10)).await;
    let mut renew = Box::pin(a.renew(operation, secs(10)));
    assert!((&mut renew).now_or_never().is_none());
    // The request arrives after 1 ms and has been executed.
    server.advance(ms(1)).await;
    let timeline = server.timeline();
    assert!(timeline.contains("renewed"), "{timeline}");
    assert!(renew.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn advance_ends_after_everything_that_is_due() {
    for seed in 0..20 {
        let server = SimServer::new(seed);
        let runtime = server.client("a").runtime();
        let rung = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&rung);
        let timers: Vec<_> = (0..5).map(|_| runtime.sleep(ms(10))).collect();
        runtime.spawn(Box::pin(async move {
            for timer in timers {
                timer.await;
                count.fetch_add(1, Ordering::Relaxed);
            }
        }));
        let test = tokio::spawn(async move {
            server.advance(ms(10)).await;
            rung.load(Ordering::Relaxed)
        });
        assert_eq!(test.await.expect("no panic"), 5, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "something is left behind at 0.008 s:
  mutex \"job\": \"a\" holds it (exclusive), 9.995s left
  mutex \"job\": \"b\" waits for it (exclusive), 4.999s left
")]
async fn what_is_left_behind_is_listed() {
    let (server, a, b) = Raw::pair();
    a.acquire(secs(10)).await;
    b.queue(secs(10)).await;
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn latency_is_as_configured() {
    let zero = SimServer::with_options(SimOptions::new(1).latency(Latency::ZERO));
    let a = Raw::new(&zero, "a");
    for _ in 0..100 {
        a.backend.hello().await.expect("an answer");
    }
    assert_eq!(zero.elapsed(), ms(0));

    let drawn = Latency::between(ms(3), ms(5));
    let server = SimServer::with_options(SimOptions::new(1).latency(drawn));
    let a = Raw::new(&server, "a");
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let before = server.elapsed();
        a.backend.hello().await.expect("an answer");
        seen.insert((server.elapsed() - before).as_millis());
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [6, 7, 8, 9, 10]);
}

/// A run with all kinds of events.
async fn busy_run(seed: u64) -> SimServer {
    let server = SimServer::with_options(options(seed));
    let clients = ["a", "b", "c", "d"].map(|name| Arc::new(Raw::new(&server, name)));
    let tasks = clients.clone().map(|client| {
        tokio::spawn(async move {
            let _notifications = client.backend.listen(client.session).await;
            for round in 0..8 {
                let operation = client.try_queue(ms(40)).await;
                client.backend.runtime().sleep(ms(7 * round)).await;
                let _ = client.poll(operation).await;
                let _ = client.renew(operation, ms(30)).await;
                let _ = client.release(operation).await;
            }
        })
    });
    server.advance(ms(30)).await;
    clients[0].backend.pause();
    server.advance(ms(30)).await;
    clients[0].backend.resume();
    clients[1].backend.drop_connection();
    server.step_clock_forward(secs(1));
    server.plant_foreign("other", "list");
    for task in tasks {
        task.await.expect("no panic");
    }
    server
}

#[tokio::test(start_paused = true)]
async fn replayed_log_gives_the_same_answers() {
    for seed in 0..20 {
        let log = busy_run(seed).await.log();
        assert!(log.len() > 100, "{}", log.len());
        replay(&log).expect("the same answers");
    }
}

#[test]
fn seed_repeats_a_run_whose_tasks_tokio_runs() {
    for seed in 0..3 {
        assert_deterministic(|| {
            paused().block_on(async {
                let server = busy_run(seed).await;
                let log = server.log();
                (server, log)
            })
        });
    }
}

#[tokio::test(start_paused = true)]
async fn changed_log_does_not_replay() {
    let mut log = busy_run(1).await.log();
    // Without its first command, the log gives other answers.
    let executed = |entry: &Entry| matches!(entry.event, Event::Executed { .. });
    let first = log.iter().position(executed);
    log.remove(first.expect("something was executed"));
    assert!(replay(&log).is_err());
}

#[tokio::test(start_paused = true)]
async fn the_log_is_bounded() {
    let server = SimServer::with_options(SimOptions::new(1).log_limit(3));
    let a = Raw::new(&server, "a");
    for _ in 0..5 {
        a.backend.hello().await.expect("an answer");
    }
    assert_eq!(server.log().len(), 3);
    insta::assert_snapshot!(server.timeline(), @r"
    (2 earlier entries were dropped)
             s  a   server
         0.005  .*          hello
         0.007  .*          hello
         0.009  .*          hello
    ");
}

#[test]
fn guard_may_be_dropped_outside_of_a_runtime() {
    let runtime = paused();
    let (server, locks, guard) = runtime.block_on(async {
        let server = SimServer::new(1);
        let (_, locks) = client(&server, "a");
        let guard = hold(&locks).await;
        (server, locks, guard)
    });
    drop(guard);
    assert_ne!(server.left_behind(), "");
    runtime.block_on(server.advance(ms(10)));
    server.assert_idle();
    drop(locks);
}

#[tokio::test]
#[should_panic(expected = "the clock of this tokio runtime is not paused")]
async fn running_clock_is_refused() {
    SimServer::new(1);
}

#[test]
#[should_panic(expected = "leasehold-sim needs a tokio runtime")]
fn missing_runtime_is_refused() {
    SimServer::new(1);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the clock of this tokio runtime is not paused")]
async fn resumed_clock_is_refused() {
    let (_server, a) = Raw::alone();
    tokio::time::resume();
    let _ = a.backend.hello().await;
}
