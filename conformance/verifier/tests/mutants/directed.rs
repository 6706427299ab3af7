//! Situations made on purpose, each for a fault that few other tests would notice. Every one of
//! them passes as long as nothing is planted.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use futures_util::FutureExt as _;
use leasehold_api::machine::Command;
use leasehold_api::{EndReason, LockClient, Loss, Mutex, MutexGuard, Outcome, ReleaseOutcome};
use leasehold_sim::{Call, Event, Fault, Latency, SimBackend, SimOptions, SimServer};

const LEASE: Duration = Duration::from_secs(30);
/// Real time after which a scenario counts as hanging.
const HANGS: Duration = Duration::from_secs(20);

type Body = Pin<Box<dyn Future<Output = ()>>>;

/// A situation, and what must come of it: it panics otherwise.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    body: fn() -> Body,
}

macro_rules! scenarios {
    ($($name:ident)+) => {
        pub(crate) const SCENARIOS: &[Scenario] = &[$(Scenario {
            name: stringify!($name),
            body: || Box::pin($name()),
        }),+];
    };
}

scenarios! {
    a_lease_counts_from_its_request
    clocks_may_drift_apart
    a_pause_is_noticed_by_whoever_looks
    a_step_of_the_servers_clock_is_noticed
    a_renewal_says_what_is_left
    a_lost_push_costs_one_poll
    nested_holds_are_renewed_together
    a_dead_waiter_is_passed
    who_goes_unreachable_while_it_is_granted_frees_the_next
    who_goes_unreachable_with_a_grant_unread_frees_the_next
    a_gap_makes_everyone_poll
    a_push_that_comes_twice_changes_nothing
    a_lost_reply_is_no_refusal
    nothing_is_renewed_after_its_release
    one_lost_renewal_is_tried_again
    who_is_kept_out_is_told_of_the_first_to_end
    the_first_in_line_is_there_when_a_lease_ends
    a_release_after_the_lease_says_so
    who_may_listen_is_not_passed
}

impl Scenario {
    /// Whether it came out as it must; a hang counts as a failure, and leaves its thread behind.
    pub(crate) fn passes(&self) -> bool {
        let (result, ended) = mpsc::channel();
        let body = self.body;
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .expect("a runtime without I/O starts");
            let passed = catch_unwind(AssertUnwindSafe(|| runtime.block_on(body()))).is_ok();
            // Nobody waits any more if it took too long.
            let _ = result.send(passed);
        });
        ended.recv_timeout(HANGS).unwrap_or(false)
    }
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn client(server: &SimServer, name: &str) -> (SimBackend, LockClient) {
    let backend = server.client(name);
    (backend.clone(), LockClient::new(backend))
}

fn job(locks: &LockClient) -> Mutex {
    locks.mutex("job").expect("a valid key")
}

async fn hold(locks: &LockClient) -> MutexGuard {
    job(locks).lock().await.expect("no failure")
}

/// How many commands of one sort the server has executed.
fn executed(server: &SimServer, sort: fn(&Command) -> bool) -> usize {
    let is = |event: &Event| matches!(event, Event::Executed { command, .. } if sort(command));
    server.log().iter().filter(|entry| is(&entry.event)).count()
}

fn renewals(server: &SimServer) -> usize {
    executed(server, |command| matches!(command, Command::Renew(_)))
}

/// A task that takes the lock and tells when, and keeps it.
fn waiter(
    server: &SimServer,
    locks: LockClient,
) -> tokio::task::JoinHandle<(Duration, MutexGuard, LockClient)> {
    let time = server.clone();
    tokio::spawn(async move {
        let guard = hold(&locks).await;
        (time.elapsed(), guard, locks)
    })
}

async fn a_lease_counts_from_its_request() {
    let server = SimServer::new(1);
    let (process, locks) = client(&server, "a");
    process.inject_into(Call::Acquire, Fault::DelayReply(ms(500)));
    let guard = hold(&locks).await;
    // The server has it since 3 ms, for 30 s.
    assert!(server.elapsed() + guard.valid_for() <= ms(3) + LEASE);
}

async fn clocks_may_drift_apart() {
    let server = SimServer::new(1);
    let (_, locks) = client(&server, "a");
    let guard = hold(&locks).await;
    assert!(guard.valid_for() <= LEASE.mul_f64(0.99) - ms(10));
}

async fn a_pause_is_noticed_by_whoever_looks() {
    let server = SimServer::new(1);
    let (process, a) = client(&server, "a");
    let (_, b) = client(&server, "b");
    let old = hold(&a).await;
    process.pause();
    let _new = hold(&b).await;
    assert!(!old.is_valid());
    process.resume();
    assert!(!old.is_valid());
}

async fn a_step_of_the_servers_clock_is_noticed() {
    let server = SimServer::new(1);
    let (_, a) = client(&server, "a");
    let guard = hold(&a).await;
    server.step_clock_forward(secs(5));
    assert_eq!(guard.lost().await, Loss::ClockStepped);
}

async fn a_renewal_says_what_is_left() {
    let server = SimServer::new(1);
    let (process, a) = client(&server, "a");
    let (_, b) = client(&server, "b");
    let guard = hold(&a).await;
    server.advance(secs(3)).await;
    guard.renew().await.expect("held");
    process.isolate();
    let _next = hold(&b).await;
    assert!(!guard.is_valid());
}

async fn a_lost_push_costs_one_poll() {
    let server = SimServer::new(1);
    let (_, a) = client(&server, "a");
    let (process, b) = client(&server, "b");
    let guard = hold(&a).await;
    let next = waiter(&server, b);
    server.advance(ms(500)).await;
    process.inject(Fault::LosePush);
    let freed = server.elapsed();
    guard.release().await.expect("acknowledged");
    let (got, ..) = next.await.expect("no panic");
    assert!(got - freed <= ms(1_100));
}

async fn nested_holds_are_renewed_together() {
    let server = SimServer::new(1);
    let (_, locks) = client(&server, "a");
    let mutex = locks.reentrant_mutex("job").expect("a valid key");
    let outer = mutex.lock().await.expect("free");
    let mut inner = Vec::new();
    for _ in 0..4 {
        server.advance(secs(2)).await;
        inner.push(mutex.lock().await.expect("its own"));
    }
    let before = renewals(&server);
    server.advance(secs(90)).await;
    assert!(outer.is_valid());
    // Every 10 s, a little earlier each time.
    let renewals = renewals(&server) - before;
    assert!((8..=12).contains(&renewals), "{renewals}");
}

async fn a_dead_waiter_is_passed() {
    let server = SimServer::new(1);
    let (_, a) = client(&server, "a");
    let (dead, b) = client(&server, "b");
    let (_, c) = client(&server, "c");
    let guard = hold(&a).await;
    let first = waiter(&server, b);
    server.advance(ms(100)).await;
    let second = waiter(&server, c);
    server.advance(ms(100)).await;
    dead.kill();
    let died = server.elapsed();
    guard.release().await.expect("acknowledged");
    let (got, ..) = second.await.expect("no panic");
    assert!(got - died <= secs(6) + ms(100));
    first.abort();
}

async fn who_goes_unreachable_while_it_is_granted_frees_the_next() {
    let server = SimServer::new(1);
    let (_, a) = client(&server, "a");
    let (_, b) = client(&server, "b");
    let (_, c) = client(&server, "c");
    let guard = hold(&a).await;
    let first = waiter(&server, b);
    server.advance(ms(100)).await;
    let second = waiter(&server, c);
    server.advance(ms(100)).await;
    // Both ends are on their way at once; the release arrives first.
    drop(guard);
    server.advance(Duration::ZERO).await;
    first.abort();
    let freed = server.elapsed();
    let (got, ..) = second.await.expect("no panic");
    assert!(got - freed <= ms(10));
}

async fn who_goes_unreachable_with_a_grant_unread_frees_the_next() {
    let server = SimServer::new(1);
    let (_, a) = client(&server, "a");
    let (_, b) = client(&server, "b");
    let (_, c) = client(&server, "c");
    let guard = hold(&a).await;
    let mutex = job(&b);
    let mut first = Box::pin(mutex.lock());
    while first.as_mut().now_or_never().is_none() && !server.timeline().contains("queued") {
        server.advance(ms(1)).await;
    }
    // It reads that it is queued, and is not asked again.
    server.advance(ms(2)).await;
    assert!(first.as_mut().now_or_never().is_none());
    let second = waiter(&server, c);
    server.advance(ms(100)).await;
    let freed = server.elapsed();
    guard.release().await.expect("acknowledged");
    server.advance(ms(5)).await;
    drop(first);
    let (got, ..) = second.await.expect("no panic");
    assert!(got - freed <= ms(20));
}

async fn a_gap_makes_everyone_poll() {
    let server = SimServer::new(1);
    let (_, a) = client(&server, "a");
    let (process, b) = client(&server, "b");
    let guard = hold(&a).await;
    let next = waiter(&server, b);
    server.advance(ms(300)).await;
    process.inject(Fault::LosePush);
    guard.release().await.expect("acknowledged");
    let freed = server.elapsed();
    process.drop_connection();
    let (got, ..) = next.await.expect("no panic");
    assert!(got - freed <= ms(50));
}

async fn a_push_that_comes_twice_changes_nothing() {
    // The copies travel apart, and one in many comes when the first has been taken.
    for seed in 0..20 {
        let latency = Latency::between(ms(1), ms(20));
        let server = SimServer::with_options(SimOptions::new(seed).with_latency(latency));
        let (_, a) = client(&server, "a");
        let (process, b) = client(&server, "b");
        let guard = hold(&a).await;
        let next = waiter(&server, b);
        server.advance(ms(300)).await;
        process.inject(Fault::DuplicatePush);
        guard.release().await.expect("acknowledged");
        let (_, guard, _b) = next.await.expect("no panic");
        server.advance(secs(60)).await;
        assert_eq!(process.pending_faults(), 0);
        assert!(guard.is_valid());
    }
}

async fn a_lost_reply_is_no_refusal() {
    let server = SimServer::new(1);
    let (process, locks) = client(&server, "a");
    process.inject_into(Call::Acquire, Fault::LoseReply);
    let tried = job(&locks).try_lock().await;
    assert!(!matches!(tried, Ok(Outcome::Acquired(_))));
    server.advance(secs(2)).await;
    assert_eq!(server.left_behind(), "");
}

async fn nothing_is_renewed_after_its_release() {
    let server = SimServer::new(1);
    let (_, locks) = client(&server, "a");
    let guard = hold(&locks).await;
    server.advance(secs(15)).await;
    guard.release().await.expect("acknowledged");
    let before = renewals(&server);
    server.advance(secs(60)).await;
    assert_eq!(renewals(&server), before);
}

async fn one_lost_renewal_is_tried_again() {
    let server = SimServer::new(1);
    let (process, locks) = client(&server, "a");
    let guard = hold(&locks).await;
    process.inject_into(Call::Renew, Fault::LoseRequest);
    let mut lost = pin!(guard.lost());
    server.advance(secs(60)).await;
    assert!(guard.is_valid());
    assert!(lost.as_mut().now_or_never().is_none());
}

async fn who_is_kept_out_is_told_of_the_first_to_end() {
    let server = SimServer::new(1);
    let mut readers = Vec::new();
    for (name, lease) in [("a", LEASE), ("b", secs(2)), ("c", LEASE)] {
        let (_, locks) = client(&server, name);
        let lock = locks.rw_lock("job").expect("a valid key").lease(lease);
        readers.push((lock.read().await.expect("readers only"), locks));
    }
    let (_, locks) = client(&server, "d");
    let lock = locks.rw_lock("job").expect("a valid key");
    let Outcome::Held(held) = lock.try_write().await.expect("no failure") else {
        panic!("a writer beside readers");
    };
    assert_eq!(held.holder.expect("they are few").as_str(), "b");
    assert!(held.retry_after <= secs(2));
}

async fn the_first_in_line_is_there_when_a_lease_ends() {
    let server = SimServer::new(1);
    let (holder, a) = client(&server, "a");
    let (_, b) = client(&server, "b");
    let _guard = job(&a).lease(ms(2_750)).lock().await.expect("free");
    holder.kill();
    let ends = server.elapsed() + ms(2_750);
    let (got, ..) = waiter(&server, b).await.expect("no panic");
    assert!(got <= ends + ms(100), "{got:?}, {ends:?}");
}

async fn a_release_after_the_lease_says_so() {
    let server = SimServer::new(1);
    let (_, locks) = client(&server, "a");
    let mutex = job(&locks).lease(secs(2)).fixed_lease();
    let guard = mutex.lock().await.expect("free");
    server.advance(secs(3)).await;
    let released = guard.release().await.expect("acknowledged");
    assert_eq!(released, ReleaseOutcome::NotHeld(EndReason::Expired));
}

async fn who_may_listen_is_not_passed() {
    let server = SimServer::new(1);
    let (_, a) = client(&server, "a");
    let (_, b) = client(&server, "b");
    let (_, c) = client(&server, "c");
    let guard = hold(&a).await;
    let next = waiter(&server, b);
    server.advance(ms(100)).await;
    server.refuse_publish();
    guard.release().await.expect("acknowledged");
    let tried = job(&c).try_lock().await.expect("no failure");
    assert!(matches!(tried, Outcome::Held(_)));
    // Nobody told it, so it asks.
    let freed = server.elapsed();
    let (got, ..) = next.await.expect("no panic");
    assert!(got - freed <= ms(1_300));
}
