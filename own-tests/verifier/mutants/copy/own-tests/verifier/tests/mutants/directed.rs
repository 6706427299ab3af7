//! Directed scenarios, each for a mutant that no conformance case finds. All of them pass without a
//! mutant.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use futures_util::FutureExt as _;
use leasehold_api::machine::Command;
use leasehold_api::mutants::failpoints;
use leasehold_api::{
    FireTime, LockBackend as _, LockClient, Loss, Mutex, MutexGuard, Notification, Outcome,
};
use leasehold_sim::tools::Event;
use leasehold_sim::{Call, Fault, Latency, Reads, SimBackend, SimServer};

const LEASE: Duration = Duration::from_secs(30);
/// The real time after which a scenario counts as hanging.
const HANGS: Duration = Duration::from_secs(20);

type Body = Pin<Box<dyn Future<Output = ()>>>;

/// A scenario, which panics if it fails.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    body: fn(SimServer) -> Body,
}

macro_rules! scenarios {
    ($($name:ident)+) => {
        pub(crate) const SCENARIOS: &[Scenario] = &[$(Scenario {
            name: stringify!($name),
            body: |server| Box::pin($name(server)),
        }),+];
    };
}

scenarios! {
    lease_counts_from_its_request
    clocks_may_drift_apart
    paused_guard_is_lost_at_its_deadline
    step_of_the_servers_clock_is_noticed
    nested_holds_are_renewed_together
    waiter_dropped_with_an_unread_grant_frees_the_next
    dropped_call_ends_no_later_hold
    hold_that_is_made_meanwhile_is_renewed
    lost_reply_is_not_a_refusal
    lost_renewal_is_retried
    grant_that_is_relayed_is_made
    relayed_grant_counts_by_the_clock_that_it_names
    replica_that_lags_upgrades_nobody
    done_ahead_of_the_clock_silences_nothing
    paused_leader_leads_no_more
}

impl Scenario {
    /// Runs the scenario. Returns whether it passed. A hang counts as a failure, and leaks its thread.
    pub(crate) fn passes(&self) -> bool {
        let (sender, result) = mpsc::channel();
        let body = self.body;
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .expect("a runtime without I/O starts");
            // The server runs its tasks on this runtime.
            let run = || runtime.block_on(async { body(SimServer::new(1)).await });
            let passed = catch_unwind(AssertUnwindSafe(run)).is_ok();
            // Nobody receives this if the scenario took too long.
            let _ = sender.send(passed);
        });
        result.recv_timeout(HANGS).unwrap_or(false)
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

fn clients<const N: usize>(server: &SimServer) -> [(SimBackend, LockClient); N] {
    std::array::from_fn(|n| client(server, ["a", "b", "c"][n]))
}

fn job(locks: &LockClient) -> Mutex {
    locks.mutex("job").expect("a valid key")
}

async fn hold(locks: &LockClient) -> MutexGuard {
    job(locks).lock().await.expect("no failure")
}

/// The number of renewals that the server has executed.
fn renewals(server: &SimServer) -> usize {
    let is_renewal = |event: &Event| match event {
        Event::Executed { command, .. } => matches!(**command, Command::Renew(_)),
        _ => false,
    };
    let log = server.log();
    log.iter().filter(|entry| is_renewal(&entry.event)).count()
}

/// Spawns a task that acquires the lock, and returns when it was granted and the guard.
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

async fn lease_counts_from_its_request(server: SimServer) {
    let (process, locks) = client(&server, "a");
    process.inject_into(Call::Acquire, Fault::DelayReply(ms(500)));
    let guard = hold(&locks).await;
    // The server granted it at 3 ms, for 30 s.
    assert!(server.elapsed() + guard.valid_for() <= ms(3) + LEASE);
}

async fn clocks_may_drift_apart(server: SimServer) {
    let (_, locks) = client(&server, "a");
    let guard = hold(&locks).await;
    assert!(guard.valid_for() <= LEASE.mul_f64(0.99) - ms(10));
}

async fn paused_guard_is_lost_at_its_deadline(server: SimServer) {
    let [(process, a), (_, b)] = clients(&server);
    let old = hold(&a).await;
    process.pause();
    let _new = hold(&b).await;
    assert!(!old.is_valid());
    process.resume();
    assert!(!old.is_valid());
}

async fn step_of_the_servers_clock_is_noticed(server: SimServer) {
    let (_, a) = client(&server, "a");
    let guard = hold(&a).await;
    server.step_clock_forward(secs(5));
    assert_eq!(guard.lost().await, Loss::ClockStepped);
}

async fn nested_holds_are_renewed_together(server: SimServer) {
    let (_, locks) = client(&server, "a");
    let mutex = locks
        .mutex("job")
        .expect("a valid key")
        .reentrant()
        .expect("supported");
    let outer = mutex.lock().await.expect("free");
    let mut inner = Vec::new();
    for _ in 0..4 {
        server.advance(secs(2)).await;
        inner.push(mutex.lock().await.expect("re-entered"));
    }
    let before = renewals(&server);
    server.advance(secs(90)).await;
    assert!(outer.is_valid());
    // Every 10 s, a little earlier each time.
    let renewals = renewals(&server) - before;
    assert!((8..=12).contains(&renewals), "{renewals}");
}

async fn waiter_dropped_with_an_unread_grant_frees_the_next(server: SimServer) {
    let [(_, a), (_, b), (_, c)] = clients(&server);
    let guard = hold(&a).await;
    let mutex = job(&b);
    let mut first = Box::pin(mutex.lock());
    while first.as_mut().now_or_never().is_none() && !server.timeline().contains("queued") {
        server.advance(ms(1)).await;
    }
    // The future reads that it is queued, and is not polled again.
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

async fn dropped_call_ends_no_later_hold(server: SimServer) {
    let [(process, a), (_, b)] = clients(&server);
    process.inject_into(Call::Acquire, Fault::DelayReply(ms(500)));
    let mutex = job(&a);
    let dropped = tokio::time::timeout(ms(100), mutex.lock()).await;
    assert!(dropped.is_err(), "granted, and nobody knows");
    process.inject_into(Call::Release, Fault::DelayRequest(ms(200)));
    let guard = hold(&a).await;
    server.advance(secs(1)).await;
    let other = job(&b).try_lock().await.expect("answered");
    assert!(guard.is_valid() && matches!(other, Outcome::Contended(_)));
}

/// Stops the next task of a client that reaches this place, for one second.
fn stop_at(process: &SimBackend, place: &'static str) {
    let runtime = process.runtime();
    failpoints::arm(runtime.process_id(), place, runtime.sleep(secs(1)));
}

async fn hold_that_is_made_meanwhile_is_renewed(server: SimServer) {
    let (process, locks) = client(&server, "a");
    stop_at(&process, "renewals armed");
    let _long = hold(&locks).await;
    let short = locks.mutex("other").expect("valid").lease(secs(3));
    server.advance(ms(100)).await;
    let short = short.lock().await.expect("free");
    server.advance(secs(6)).await;
    assert!(short.is_valid());
}

async fn lost_reply_is_not_a_refusal(server: SimServer) {
    let (process, locks) = client(&server, "a");
    process.inject_into(Call::Acquire, Fault::LoseReply);
    let tried = job(&locks).try_lock().await;
    assert!(!matches!(tried, Ok(Outcome::Acquired(_))));
    server.advance(secs(2)).await;
    assert_eq!(server.left_behind(), "");
}

async fn lost_renewal_is_retried(server: SimServer) {
    let (process, locks) = client(&server, "a");
    let guard = hold(&locks).await;
    process.inject_into(Call::Renew, Fault::LoseRequest);
    let mut lost = pin!(guard.lost());
    server.advance(secs(60)).await;
    assert!(guard.is_valid());
    assert!(lost.as_mut().now_or_never().is_none());
}

/// After a graceful failover, the first waiter's subscription is at a replica, so the server gives
/// the lock to the second. The first must not get a guard.
async fn grant_that_is_relayed_is_made(server: SimServer) {
    let [(_, a), (relayed, b), (_, c)] = clients(&server);
    let guard = hold(&a).await;
    let first = waiter(&server, b);
    server.advance(ms(100)).await;
    let second = waiter(&server, c);
    server.advance(ms(100)).await;
    server.switch_over(Duration::ZERO, &[relayed]);
    server.advance(ms(1_500)).await; // a poll brings a sample of the new clock
    guard.release().await.expect("acknowledged");
    let (_, second, _c) = second.await.expect("no panic");
    server.advance(ms(100)).await;
    assert!(!first.is_finished(), "two valid guards");
    let token = second.fencing_token();
    second.release().await.expect("acknowledged");
    let (_, first, _b) = first.await.expect("no panic");
    assert!(first.fencing_token() > token);
}

/// The new primary's clock is 410 ms ahead, and the replica relays the grant 400 ms late. By the
/// replica's clock, the grant would be as young as the message.
async fn relayed_grant_counts_by_the_clock_that_it_names(server: SimServer) {
    let [(_, a), (relayed, b)] = clients(&server);
    let guard = hold(&a).await;
    let next = waiter(&server, b);
    server.advance(ms(100)).await;
    server.refuse_count(); // so the server grants to a waiter that it can't see
    server.set_replication_lag(Latency::fixed(ms(400)));
    server.switch_over(ms(410), &[relayed]);
    server.advance(ms(1_500)).await; // a poll brings a sample of the new clock
    let released = server.elapsed();
    guard.release().await.expect("acknowledged");
    let (got, second, _b) = next.await.expect("no panic");
    assert_eq!(got - released, ms(402));
    let log = server.log();
    let pushed = log.iter().rev().find_map(|entry| match entry.event {
        Event::Notified {
            notification: Notification::Granted { remaining, .. },
        } => Some(remaining),
        _ => None,
    });
    // The server granted it 1 ms after the release was sent.
    let end = released + ms(1) + pushed.expect("it was pushed");
    assert!(got + second.valid_for() <= end, "{end:?}");
}

/// The replica knows A as the writer of an epoch that is over. Its answers must not make A a writer
/// next to B.
async fn replica_that_lags_upgrades_nobody(server: SimServer) {
    let [(machine, a), (_, b)] = clients(&server);
    let lock = |locks: &LockClient| locks.rw_lock("job").expect("valid").lease(LEASE);
    let writer = lock(&a).write().await.expect("free");
    server.cut_off_replica(Reads::Answered);
    let reader = writer.downgrade().await.expect("served");
    let other = lock(&b).read().await.expect("shared");
    machine.visit_replica();
    let upgraded = reader.try_upgrade().await;
    machine.leave_replica();
    assert!(other.is_valid());
    assert!(upgraded.is_err(), "{upgraded:?}");
}

fn fire_time(server: &SimServer) -> FireTime {
    FireTime::from_millis(server.server_time().as_micros() / 1_000)
}

async fn done_ahead_of_the_clock_silences_nothing(server: SimServer) {
    let (_, locks) = client(&server, "a");
    let once = locks.once("job").expect("a valid key");
    server.step_clock_forward(secs(100_000));
    let early = once.at(fire_time(&server));
    let first = early.run(async |_job| Ok::<_, ()>(())).await;
    assert!(first.expect("answered").is_done());
    server.step_clock_back(secs(100_000));
    let right = once.at(fire_time(&server));
    let second = right.run(async |_job| Ok::<_, ()>(())).await;
    assert!(second.is_err(), "the job is silent");
}

async fn paused_leader_leads_no_more(server: SimServer) {
    let (process, locks) = client(&server, "a");
    let term = locks
        .election("leader")
        .expect("a valid key")
        .campaign()
        .await;
    let term = term.expect("free");
    process.pause();
    server.advance(secs(60)).await;
    process.resume();
    assert!(!term.is_leader());
}
