//! Lock clients on the simulator, at exact times.
//!
//! The latency is 1 ms each way. The first acquire of a client takes 4 ms, because the client asks
//! for the server's time first. With a lease of 30 s and a drift allowance of 310 ms, a guard whose
//! request was sent at t is valid until t + 29.69 s.

use std::time::Duration;

use futures_util::FutureExt as _;
use leasehold_api::{Error, LockClient, Loss, Mutex, MutexGuard, Outcome};
use leasehold_sim::{Call, Fault, SimBackend, SimServer};

use crate::support::{assert_is, ms, secs};

const VALIDITY: Duration = ms(29_690);

type Client = (SimBackend, LockClient);

pub(crate) fn client(server: &SimServer, name: &str) -> Client {
    let backend = server.client(name);
    (backend.clone(), LockClient::new(backend))
}

/// A server and a client, `a`.
pub(crate) fn one_client() -> (SimServer, Client) {
    let server = SimServer::new(1);
    let a = client(&server, "a");
    (server, a)
}

/// A server and two clients, `a` and `b`.
pub(crate) fn two_clients() -> (SimServer, Client, Client) {
    let (server, a) = one_client();
    let b = client(&server, "b");
    (server, a, b)
}

pub(crate) fn job(locks: &LockClient) -> Mutex {
    locks.mutex("job").expect("a valid key")
}

pub(crate) async fn hold(locks: &LockClient) -> MutexGuard {
    job(locks).lock().await.expect("no failure")
}

pub(crate) fn released(release: &Result<(), Error>) -> bool {
    matches!(release, Ok(()))
}

#[tokio::test(start_paused = true)]
async fn validity_counts_from_the_request() {
    let server = SimServer::new(1);
    let (_, locks) = client(&server, "a");
    let guard = hold(&locks).await;
    assert_eq!(server.elapsed(), ms(4));
    assert_eq!(guard.valid_for(), VALIDITY - ms(2));
    assert_eq!(guard.fencing_token().get(), 1_000_000_000_003_000);
    assert!(released(&guard.release().await));
    assert_eq!(server.elapsed(), ms(6));
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn contended_try_names_the_holder() {
    let (server, (_, a), (_, b)) = two_clients();
    let _guard = hold(&a).await;
    let asked = server.elapsed();
    let Outcome::Contended(held) = job(&b).try_lock().await.expect("an answer") else {
        panic!("{}", server.timeline());
    };
    assert_eq!(held.holder.expect("a label").as_str(), "a");
    // Granted at 3 ms, tried at 7 ms.
    assert_eq!(held.retry_after, secs(30) - ms(4));
    assert_eq!(server.elapsed() - asked, ms(4));
}

#[tokio::test(start_paused = true)]
async fn grants_take_one_round_trip_and_keep_the_order() {
    let server = SimServer::new(1);
    let (_, first) = client(&server, "first");
    let guard = hold(&first).await;
    let mut waiters = Vec::new();
    for n in 0..5 {
        let (_, locks) = client(&server, &format!("waiter {n}"));
        let time = server.clone();
        waiters.push(tokio::spawn(async move {
            let guard = hold(&locks).await;
            let got = time.elapsed();
            time.advance(ms(98)).await;
            assert!(released(&guard.release().await));
            (got, guard.fencing_token())
        }));
        server.advance(ms(50)).await;
    }
    let mut expected = server.elapsed();
    let mut token = guard.fencing_token();
    assert!(released(&guard.release().await));
    for waiter in waiters {
        let (got, its_token) = waiter.await.expect("no panic");
        expected += ms(2);
        assert_eq!(got, expected, "{}", server.timeline());
        assert!(its_token > token);
        token = its_token;
        expected += ms(98);
    }
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn wait_times_out_even_if_it_polls_all_the_time() {
    let (server, (_, a), (backend, b)) = two_clients();
    let guard = hold(&a).await;
    // With this rate, the 500 ms end between two milliseconds, and timers end at the later one.
    backend.set_clock_rate(-1_000);
    let chaos = server.clone();
    let breaks = server.spawn(async move {
        chaos.sleep(ms(501)).await;
        loop {
            // The waiter polls at once.
            backend.drop_connection();
            chaos.sleep(ms(1)).await;
        }
    });
    let asked = server.elapsed();
    let outcome = job(&b).try_lock_for(ms(500)).await;
    assert_eq!(server.elapsed() - asked, ms(501), "{outcome:?}");
    drop((breaks, guard));
}

#[tokio::test(start_paused = true)]
async fn renewal_keeps_a_lock_for_hours() {
    let (server, (_, a)) = one_client();
    let guard = hold(&a).await;
    for _ in 0..6 {
        server.advance(secs(3_600)).await;
        assert!(guard.valid_for() > secs(19), "{:?}", guard.valid_for());
    }
    assert!(guard.lost().now_or_never().is_none());
    assert!(released(&guard.release().await));
}

#[tokio::test(start_paused = true)]
async fn with_stops_its_body_when_the_lock_is_lost() {
    let (server, (process, a)) = one_client();
    let time = server.clone();
    let body = async |_: &MutexGuard| {
        process.isolate();
        time.advance(secs(3_600)).await;
    };
    let result = job(&a).with(body).await;
    assert_is!(result => Err(Error::Lost { reason: Loss::Deadline, .. }));
    // The release then got no reply within its limit of 3 s.
    let took = server.elapsed();
    assert!(took <= ms(2) + VALIDITY + secs(3), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_counts_once() {
    let (server, (process, a)) = one_client();
    process.inject_into(Call::Acquire, Fault::LoseReply);
    let guard = hold(&a).await;
    assert_eq!(process.pending_faults(), 0);
    assert!(server.elapsed() <= ms(1_200), "{:?}", server.elapsed());
    assert!(released(&guard.release().await));
    server.assert_idle();
    insta::assert_snapshot!(server.timeline());
}
