//! Cancel safety: every async method is dropped at each of its await points, under several network
//! conditions. It leaves nothing behind, and doesn't wait for a lease to expire.
//!
//! A test repeats its method, and drops the future one poll later each time, until the method
//! completes first.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join;
use leasehold_api::{ForceMode, LockClient, MultiGuard, MutexGuard, RwLock, guard_kind};
use leasehold_sim::{Call, Data, Fault, Latency, SimBackend, SimServer};

use crate::counted::Counted;
use crate::locks::{client, hold, job, released, two_clients};
use crate::support::{ms, secs};

/// How long another client holds the locks that the dropped call waits for.
const HELD_FOR: Duration = ms(2_500);
/// How long the client is isolated.
const SILENT_FOR: Duration = ms(2_500);
const DOWN_FOR: Duration = secs(1);
/// How soon calls succeed again under every network condition.
const RECOVERED: Duration = secs(3);
/// How soon nothing is left: a quarter of a lease. The last call to an isolated server times out, and
/// is retried half a second later at most.
const SOON: Duration = ms(7_500);
/// A dropped hand-off may stay until its lease expires.
const AFTER_A_LEASE: Duration = secs(35);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Lock,
    TryLock,
    /// Another client holds the lock.
    LockWaiting,
    LockWithin,
    With,
    Protect,
    Release,
    Renew,
    ReadWaiting,
    WriteWaiting,
    Downgrade,
    TryUpgrade,
    AcquireWaiting,
    Inspect,
    ForceRelease,
    Shutdown,
    ManyLock,
    ManyWaiting,
    ManyTryLock,
    ManyRenew,
    ManyRelease,
    IntoHandoff,
    Adopt,
}

/// The condition of the network during the method's calls.
#[derive(Clone, Copy, Debug)]
enum Network {
    Fine,
    /// A fault of the first call of this kind.
    One(Call, Fault),
    PushLost,
    /// The server is down for some time. Calls fail at once, and are not executed.
    Down,
    /// The connection breaks while the call is in flight.
    Broken,
    Slow,
    /// The client is isolated for some time.
    Silent,
}

impl Method {
    const fn waits(self) -> bool {
        matches!(
            self,
            Self::LockWaiting
                | Self::LockWithin
                | Self::ReadWaiting
                | Self::WriteWaiting
                | Self::AcquireWaiting
                | Self::ManyWaiting
        )
    }

    /// The calls that it makes.
    const fn calls(self) -> &'static [Call] {
        match self {
            Self::Lock | Self::TryLock => &[Call::Hello, Call::Acquire],
            _ if self.waits() => &[Call::Acquire, Call::Poll, Call::Renew, Call::Listen],
            Self::With | Self::ManyLock | Self::ManyTryLock => &[Call::Acquire, Call::Release],
            Self::Release | Self::Shutdown | Self::ManyRelease => &[Call::Release],
            Self::Protect | Self::Renew | Self::ManyRenew => &[Call::Renew],
            Self::Downgrade | Self::TryUpgrade => &[Call::Convert],
            Self::Inspect => &[Call::Inspect],
            Self::ForceRelease => &[Call::Inspect, Call::ForceRelease],
            Self::IntoHandoff => &[Call::Acquire, Call::Release],
            Self::Adopt => &[Call::Release, Call::Renew],
            // The methods that wait are handled above.
            _ => &[],
        }
    }

    fn networks(self) -> Vec<Network> {
        let mut networks = vec![
            Network::Fine,
            Network::Down,
            Network::Broken,
            Network::Slow,
            Network::Silent,
        ];
        for call in self.calls() {
            let faults = [
                Fault::LoseRequest,
                Fault::LoseReply,
                Fault::DelayRequest(ms(300)),
                Fault::DelayReply(ms(300)),
                Fault::DuplicateRequest(ms(300)),
            ];
            networks.extend(faults.map(|fault| Network::One(*call, fault)));
        }
        if self.waits() {
            networks.push(Network::PushLost);
        }
        networks
    }

    const fn gone_by(self) -> Duration {
        match self {
            Self::IntoHandoff | Self::Adopt => AFTER_A_LEASE,
            _ => SOON,
        }
    }
}

/// The point at which a future is dropped.
#[derive(Clone, Copy, Debug)]
enum Drop {
    /// After this many polls that returned `Pending`.
    After(u32),
    /// After this many polls and one more wake-up, before the future is polled again. The result is
    /// there, but the future has not seen it.
    Before(u32),
}

/// Polls a future until it completes, or drops it. Returns `None` if the future was dropped.
async fn dropped<F: Future>(at: Drop, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|cx| {
        if matches!(at, Drop::Before(limit) if polls == limit) {
            return Poll::Ready(None);
        }
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if matches!(at, Drop::After(limit) if polls == limit) => {
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// A server, another client, and the client whose future is dropped.
struct Fixture {
    server: SimServer,
    other: LockClient,
    process: SimBackend,
    backend: Counted,
    locks: LockClient,
    network: Network,
    at: Drop,
}

impl Fixture {
    /// With `fresh`, the dropped call is the client's first.
    async fn new(network: Network, fresh: bool, at: Drop) -> Self {
        let server = SimServer::new(7);
        let (_, other) = client(&server, "other");
        let process = server.client("dropper");
        let backend = Counted::new(process.clone());
        let locks = LockClient::new(backend.clone());
        if !fresh {
            let warm = locks.mutex("warm").expect("a valid key").lock().await;
            assert!(released(&warm.expect("free").release().await));
        }
        Self {
            server,
            other,
            process,
            backend,
            locks,
            network,
            at,
        }
    }

    /// Runs `then` after a time, in a new task.
    fn later(&self, after: Duration, then: impl FnOnce() + Send + 'static) {
        let server = self.server.clone();
        tokio::spawn(async move {
            server.advance(after).await;
            then();
        });
    }

    /// Makes the other client hold every lock that a waiting method waits for.
    async fn occupy(&self) {
        let many = self.other.multi().mutexes(["job", "job2"]);
        let many = many.and_then(|many| many.write("book"));
        let many = many.and_then(|many| many.permits("pool", 2, 2));
        let guard = many.expect("valid").lock().await.expect("free");
        self.later(HELD_FOR, move || drop(guard));
    }

    fn spoil_network(&self) {
        let (server, process) = (self.server.clone(), self.process.clone());
        match self.network {
            Network::Fine => {}
            Network::One(call, fault) => process.inject_into(call, fault),
            Network::PushLost => process.inject(Fault::LosePush),
            Network::Down => {
                server.stop();
                self.later(DOWN_FOR, move || server.start(Data::Kept));
            }
            Network::Broken => self.later(ms(1), move || process.drop_connection()),
            Network::Slow => process.set_latency(Latency::between(ms(150), ms(350))),
            Network::Silent => {
                process.isolate();
                self.later(SILENT_FOR, move || process.rejoin());
            }
        }
    }

    /// Polls a call in the spoiled network, and drops it. Returns whether it completed before.
    async fn completes(&self, call: impl Future) -> bool {
        self.spoil_network();
        dropped(self.at, call).await.is_some()
    }

    fn book(&self) -> RwLock {
        self.locks.rw_lock("book").expect("a valid key")
    }

    async fn many_guard(&self) -> MultiGuard {
        let many = self.locks.multi().mutexes(["job", "job2"]).expect("valid");
        many.lock().await.expect("free")
    }

    /// As [`completes`](Self::completes). Asserts that a guard is still valid, and releases it.
    async fn keeps(&self, guard: &MutexGuard, call: impl Future) -> bool {
        let ended = self.completes(call).await;
        self.server.advance(RECOVERED).await;
        assert!(guard.is_valid(), "{}", self.server.timeline());
        assert!(released(&guard.release().await));
        ended
    }
}

/// Calls a method and drops its future. Returns whether it completed before.
async fn call(method: Method, fixture: &Fixture) -> bool {
    let (server, locks) = (&fixture.server, &fixture.locks);
    match method {
        Method::Downgrade => {
            let guard = fixture.book().write().await.expect("free");
            fixture.completes(guard.downgrade()).await
        }
        Method::TryUpgrade => {
            let guard = fixture.book().read().await.expect("free");
            fixture.completes(guard.try_upgrade()).await
        }
        Method::ManyRenew => {
            let guard = fixture.many_guard().await;
            let ended = fixture.completes(guard.renew()).await;
            server.advance(RECOVERED).await;
            assert!(guard.is_valid(), "{}", server.timeline());
            ended
        }
        Method::ManyRelease => {
            let guard = fixture.many_guard().await;
            fixture.completes(guard.release()).await
        }
        Method::Protect => {
            let guard = hold(locks).await;
            let protect = guard.protect(server.advance(secs(12)));
            fixture.keeps(&guard, protect).await
        }
        Method::Release => {
            let guard = hold(locks).await;
            fixture.completes(guard.release()).await
        }
        Method::Renew => {
            let guard = hold(locks).await;
            fixture.keeps(&guard, guard.renew()).await
        }
        Method::Inspect => {
            let guard = hold(locks).await;
            fixture.keeps(&guard, locks.inspect("job")).await
        }
        Method::ForceRelease => {
            let guard = hold(locks).await;
            let tokens = vec![guard.fencing_token()];
            let forced = locks.force_release("job", tokens, ForceMode::Now);
            fixture.completes(forced).await
        }
        Method::Shutdown => {
            let guard = hold(locks).await;
            let ended = fixture.completes(locks.shutdown()).await;
            assert!(!guard.is_valid());
            server.advance(SOON).await;
            assert_eq!(server.left_behind(), "", "its guard still exists");
            ended
        }
        Method::IntoHandoff => {
            let guard = hold(locks).await;
            fixture.completes(guard.into_handoff()).await
        }
        Method::Adopt => {
            let handoff = hold(locks).await.into_handoff().await.expect("answered");
            fixture
                .completes(locks.adopt::<guard_kind::Exclusive>(handoff))
                .await
        }
        acquire => acquires(acquire, fixture).await,
    }
}

/// As [`call`], for a method that acquires.
async fn acquires(method: Method, fixture: &Fixture) -> bool {
    if method.waits() {
        fixture.occupy().await;
    }
    let (mutex, book) = (job(&fixture.locks), fixture.book());
    let pool = fixture.locks.semaphore("pool", 2).expect("a valid key");
    let many = fixture.locks.multi();
    let many = many.mutexes(["job", "job2"]).expect("valid keys");
    match method {
        Method::Lock | Method::LockWaiting => fixture.completes(mutex.lock()).await,
        Method::TryLock => fixture.completes(mutex.try_lock()).await,
        Method::LockWithin => fixture.completes(mutex.try_lock_for(ms(1_500))).await,
        Method::With => {
            let body = async |_: &MutexGuard| tokio::task::yield_now().await;
            fixture.completes(mutex.with(body)).await
        }
        Method::ReadWaiting => fixture.completes(book.read()).await,
        Method::WriteWaiting => fixture.completes(book.write()).await,
        Method::AcquireWaiting => fixture.completes(pool.acquire()).await,
        Method::ManyLock | Method::ManyWaiting => fixture.completes(many.lock()).await,
        Method::ManyTryLock => fixture.completes(many.try_lock()).await,
        _ => unreachable!("{method:?} acquires nothing"),
    }
}

/// Runs one combination. Returns whether the method completed before it was dropped.
async fn combination(method: Method, network: Network, fresh: bool, at: Drop) -> bool {
    let fixture = Fixture::new(network, fresh, at).await;
    let ended = call(method, &fixture).await;
    fixture.server.advance(method.gone_by()).await;
    let left = fixture.server.left_behind();
    let context = format!("{method:?} {network:?} {at:?} fresh: {fresh}");
    assert_eq!(left, "", "{context}\n{}", fixture.server.timeline());
    drop(fixture.locks);
    fixture.server.advance(secs(2)).await;
    assert_eq!(fixture.backend.tasks(), 0, "{context}: a task is left");
    ended
}

/// Runs all combinations of a method. Returns the number of drops.
async fn drops_of(method: Method) -> usize {
    let mut drops = 0;
    for network in method.networks() {
        for fresh in [true, false] {
            for at in [Drop::After as fn(u32) -> Drop, Drop::Before] {
                // Starts at 1, because a future that was never polled has done nothing.
                let mut polls = 1;
                while !combination(method, network, fresh, at(polls)).await {
                    polls += 1;
                    drops += 1;
                    assert!(polls < 200, "{method:?} {network:?} never ends");
                }
            }
        }
    }
    drops
}

/// A test for each method, with a lower bound of its drops.
macro_rules! tables {
    ($($name:ident: $method:ident, $at_least:literal;)+) => {$(
        #[tokio::test(start_paused = true)]
        async fn $name() {
            let drops = drops_of(Method::$method).await;
            println!("{:<16} {drops:>5} drops", format!("{:?}", Method::$method));
            assert!(drops >= $at_least, "only {drops} drops");
        }
    )+};
}

tables! {
    lock_leaves_nothing: Lock, 160;
    try_lock_leaves_nothing: TryLock, 130;
    lock_in_a_queue_leaves_nothing: LockWaiting, 470;
    lock_within_leaves_nothing: LockWithin, 380;
    with_leaves_nothing: With, 250;
    protect_keeps_its_guard: Protect, 390;
    release_goes_on: Release, 40;
    renew_keeps_its_guard: Renew, 30;
    read_leaves_nothing: ReadWaiting, 470;
    write_leaves_nothing: WriteWaiting, 470;
    downgrade_leaves_nothing: Downgrade, 130;
    try_upgrade_leaves_nothing: TryUpgrade, 130;
    acquire_leaves_nothing: AcquireWaiting, 470;
    inspect_changes_nothing: Inspect, 30;
    force_release_leaves_nothing: ForceRelease, 40;
    shutdown_goes_on: Shutdown, 60;
    many_lock_leaves_nothing: ManyLock, 250;
    many_in_a_queue_leaves_nothing: ManyWaiting, 630;
    many_try_lock_leaves_nothing: ManyTryLock, 200;
    many_renew_keeps_its_guard: ManyRenew, 30;
    many_release_goes_on: ManyRelease, 40;
    into_handoff_leaves_nothing: IntoHandoff, 130;
    adopt_leaves_nothing: Adopt, 180;
}

#[tokio::test(start_paused = true)]
async fn dropped_waiter_frees_the_next() {
    let (server, (_, a), (_, b)) = two_clients();
    let (_, c) = client(&server, "c");
    let guard = hold(&a).await;
    let mutex = job(&b);
    let mut second = Box::pin(mutex.lock());
    let third = tokio::spawn(async move { (hold(&c).await, c) });
    assert!(dropped(Drop::Before(5), &mut second).await.is_none());
    server.advance(ms(100)).await;
    // Dropped in the same instant as the lock is released.
    let freed = server.elapsed();
    let (release, ()) = join(guard.release(), async { drop(second) }).await;
    assert!(released(&release));
    let (_guard, _c) = third.await.expect("no panic");
    assert!(server.elapsed() - freed <= ms(5), "{}", server.timeline());
}
