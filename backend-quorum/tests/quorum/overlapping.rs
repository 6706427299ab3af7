//! Several calls for one attempt. An operation has one fate, whichever of its calls decides it.

use std::pin::pin;

use futures_util::future::{join, join_all, poll_immediate};
use leasehold_api::{AcquireReply, BackendError, Release};
use leasehold_sim::{Call, Fault, Latency};

use crate::support::{Process, Servers, granted, ms, secs};

/// Two servers miss the next acquires.
fn lose_acquires(process: &Process, count: usize) {
    for link in &process.links[1..] {
        for _ in 0..count {
            link.inject_into(Call::Acquire, Fault::LoseRequest);
        }
    }
}

/// A call goes on when its caller has given up, because it is part of a batch. Its caller tries again
/// before the call takes the attempt back.
#[tokio::test(start_paused = true)]
async fn attempt_does_not_win_while_an_earlier_call_may_take_it_back() {
    let (servers, a, b) = Servers::start_with_two(61).await;
    lose_acquires(&a, 1);
    let again = async {
        servers.advance(ms(100)).await;
        a.ask("k", 1).await
    };
    let (first, second) = join(a.ask("k", 1), again).await;
    let is_unknown = |answer| matches!(answer, Err(BackendError::OutcomeUnknown { .. }));
    assert!(is_unknown(first), "two servers were silent");
    assert!(is_unknown(second), "the first call is under way");
    assert!(b.gets("k").await);
    let third = a.ask("k", 1).await.expect("an answer");
    assert_eq!(third, AcquireReply::Stale);
}

/// The same with the client's defaults. Three calls at once make a batch, and a blocked runtime delays
/// it, so it outlives its callers.
#[tokio::test(start_paused = true)]
async fn batch_that_outlives_its_callers_ends_no_guard() {
    for blocked in [ms(480), ms(520), ms(560), ms(600)] {
        let (servers, a, b) = Servers::start_with_two(62).await;
        let keys = ["k0", "k1", "k2"];
        lose_acquires(&a, keys.len());
        let process = a.links[0].clone();
        let mut waiting = pin!(process.run(join_all(keys.map(|key| a.lock(key)))));
        assert!(poll_immediate(&mut waiting).await.is_none());
        process.pause();
        servers.advance(blocked).await;
        process.resume();
        let guards = waiting.await;
        for _ in 0..20 {
            for (key, guard) in keys.iter().zip(&guards) {
                let both = b.gets(key).await && guard.is_valid();
                assert!(!both, "{blocked:?} {key}");
            }
            servers.advance(ms(100)).await;
        }
    }
}

/// The doubt about an attempt outlasts any number of later attempts. Two servers are out of reach until
/// they have missed the acquires and the first releases.
#[tokio::test(start_paused = true)]
async fn doubt_is_not_forgotten() {
    const WAITERS: usize = 600;
    let (servers, a, b) = Servers::start_with_two(63).await;
    a.links[1..].iter().for_each(|link| link.isolate());
    let keys: Vec<String> = (0..WAITERS).map(|n| format!("k{n}")).collect();
    let waiting = join_all(keys.iter().map(|key| a.lock(key)));
    let back = async {
        servers.advance(ms(505)).await;
        a.links[1..].iter().for_each(|link| link.rejoin());
    };
    let (guards, ()) = join(waiting, back).await;
    servers.advance(secs(2)).await;
    let rivals = join_all(keys.iter().map(|key| b.gets(key))).await;
    for (guard, rival) in guards.iter().zip(rivals) {
        assert!(!(rival && guard.is_valid()), "two hold {}", guard.key());
    }
}

/// A copy of an acquire reports the hold. It doesn't end it, even if it reaches too few servers.
#[tokio::test(start_paused = true)]
async fn late_copy_of_an_acquire_ends_no_hold() {
    let (servers, a, b) = Servers::start_with_two(64).await;
    assert!(granted(&a.ask("k", 1).await));
    assert!(granted(&a.ask("k", 1).await), "the hold is reported");
    lose_acquires(&a, 1);
    let late = a.ask("k", 1).await;
    assert!(late.is_err(), "{late:?}");
    servers.advance(secs(2)).await;
    assert!(!b.gets("k").await);
    assert!(granted(&a.ask("k", 1).await));
}

/// An acquire that is still under way when its operation is released does not win, and leaves nothing.
#[tokio::test(start_paused = true)]
async fn released_attempt_does_not_win() {
    let servers = Servers::start(65);
    let a = servers.acquainted("a").await;
    for link in &a.links {
        link.inject_into(Call::Acquire, Fault::DelayReply(ms(100)));
        link.inject_into(Call::Release, Fault::LoseRequest);
    }
    let request = a.request("k", 1);
    let release = async {
        servers.advance(ms(50)).await;
        let release = Release::new(request.key.clone(), request.operation);
        a.quorum.release(&[release]).await
    };
    let (answer, released) = join(a.ask("k", 1), release).await;
    let stale = AcquireReply::Stale;
    assert_eq!(answer.expect("an answer"), stale);
    assert!(released[0].is_err(), "{released:?}");
    for link in &a.links {
        link.set_latency(Latency::fixed(ms(1)));
    }
    servers.advance(secs(2)).await;
    servers.assert_idle();
}
