//! Cancel safety: every async method is dropped at each of its await points, under several network
//! conditions. It leaves nothing behind, and doesn't wait for a lease to expire.
//!
//! A test repeats its method, and drops the future one poll later each time, until the method
//! completes first.

use std::time::Duration;

use leasehold_api::{ForceMode, LockClient, MultiGuard, MutexGuard, ReadGuard, WriteGuard};
use leasehold_sim::{Call, Data, Fault, Latency, SimBackend, SimServer};

use crate::counted::Counted;
use crate::drops::{Drop, dropped};
use crate::locks::{client, hold, job, released};
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

/// A server, another client, and the client whose future is dropped.
struct Fixture {
    server: SimServer,
    other: LockClient,
    process: SimBackend,
    backend: Counted,
    locks: LockClient,
}

impl Fixture {
    /// With `fresh`, the dropped call is the client's first.
    async fn new(fresh: bool) -> Self {
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

    fn apply(&self, network: Network) {
        let (server, process) = (self.server.clone(), self.process.clone());
        match network {
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

    async fn mutex_guard(&self) -> MutexGuard {
        hold(&self.locks).await
    }

    async fn read_guard(&self) -> ReadGuard {
        let book = self.locks.rw_lock("book").expect("a valid key");
        book.read().await.expect("free")
    }

    async fn write_guard(&self) -> WriteGuard {
        let book = self.locks.rw_lock("book").expect("a valid key");
        book.write().await.expect("free")
    }

    async fn many_guard(&self) -> MultiGuard {
        let many = self.locks.multi().mutexes(["job", "job2"]).expect("valid");
        many.lock().await.expect("free")
    }

    /// Asserts that a guard is still valid, and releases it.
    async fn still_held(&self, guard: MutexGuard) {
        self.server.advance(RECOVERED).await;
        assert!(guard.is_valid(), "{}", self.server.timeline());
        assert!(released(&guard.release().await));
    }
}

/// Calls a method and drops its future at a point. Returns whether it completed before.
async fn call(method: Method, network: Network, fixture: &Fixture, at: Drop) -> bool {
    if method.waits() {
        fixture.occupy().await;
    }
    match method {
        Method::Protect | Method::Release | Method::Renew | Method::Inspect => {
            return with_a_mutex(method, network, fixture, at).await;
        }
        Method::ForceRelease | Method::Shutdown | Method::IntoHandoff | Method::Adopt => {
            return with_a_mutex(method, network, fixture, at).await;
        }
        Method::Downgrade => {
            let guard = fixture.write_guard().await;
            fixture.apply(network);
            return dropped(at, guard.downgrade()).await.is_some();
        }
        Method::TryUpgrade => {
            let guard = fixture.read_guard().await;
            fixture.apply(network);
            return dropped(at, guard.try_upgrade()).await.is_some();
        }
        Method::ManyRenew => {
            let guard = fixture.many_guard().await;
            fixture.apply(network);
            let ended = dropped(at, guard.renew()).await.is_some();
            fixture.server.advance(RECOVERED).await;
            assert!(guard.is_valid(), "{}", fixture.server.timeline());
            return ended;
        }
        Method::ManyRelease => {
            let guard = fixture.many_guard().await;
            fixture.apply(network);
            return dropped(at, guard.release()).await.is_some();
        }
        _ => {}
    }
    fixture.apply(network);
    acquire(method, &fixture.locks, at).await
}

async fn acquire(method: Method, locks: &LockClient, at: Drop) -> bool {
    let (mutex, book) = (job(locks), locks.rw_lock("book").expect("a valid key"));
    let pool = locks.semaphore("pool", 2).expect("a valid key");
    let many = locks.multi().mutexes(["job", "job2"]).expect("valid keys");
    match method {
        Method::Lock | Method::LockWaiting => dropped(at, mutex.lock()).await.is_some(),
        Method::TryLock => dropped(at, mutex.try_lock()).await.is_some(),
        Method::LockWithin => dropped(at, mutex.try_lock_for(ms(1_500))).await.is_some(),
        Method::With => {
            let body = async |_: &MutexGuard| tokio::task::yield_now().await;
            dropped(at, mutex.with(body)).await.is_some()
        }
        Method::ReadWaiting => dropped(at, book.read()).await.is_some(),
        Method::WriteWaiting => dropped(at, book.write()).await.is_some(),
        Method::AcquireWaiting => dropped(at, pool.acquire()).await.is_some(),
        Method::ManyLock | Method::ManyWaiting => dropped(at, many.lock()).await.is_some(),
        Method::ManyTryLock => dropped(at, many.try_lock()).await.is_some(),
        _ => unreachable!("{method:?} acquires nothing"),
    }
}

/// Calls a method of a mutex guard, or of a client that holds one.
async fn with_a_mutex(method: Method, network: Network, fixture: &Fixture, at: Drop) -> bool {
    let (server, locks) = (&fixture.server, &fixture.locks);
    let guard = fixture.mutex_guard().await;
    match method {
        Method::Protect => {
            fixture.apply(network);
            let body = server.advance(secs(12));
            let ended = dropped(at, guard.protect(body)).await.is_some();
            fixture.still_held(guard).await;
            ended
        }
        Method::Release => {
            fixture.apply(network);
            dropped(at, guard.release()).await.is_some()
        }
        Method::Renew => {
            fixture.apply(network);
            let ended = dropped(at, guard.renew()).await.is_some();
            fixture.still_held(guard).await;
            ended
        }
        Method::Inspect => {
            fixture.apply(network);
            let ended = dropped(at, locks.inspect("job")).await.is_some();
            fixture.still_held(guard).await;
            ended
        }
        Method::ForceRelease => {
            let token = guard.fencing_token();
            fixture.apply(network);
            let forced = locks.force_release("job", vec![token], ForceMode::Now);
            dropped(at, forced).await.is_some()
        }
        Method::Shutdown => {
            fixture.apply(network);
            let ended = dropped(at, locks.shutdown()).await.is_some();
            assert!(!guard.is_valid());
            server.advance(SOON).await;
            assert_eq!(server.left_behind(), "", "its guard still exists");
            ended
        }
        Method::IntoHandoff => {
            fixture.apply(network);
            dropped(at, guard.into_handoff()).await.is_some()
        }
        Method::Adopt => {
            let handoff = guard.into_handoff().await.expect("answered");
            fixture.apply(network);
            let adopted: Option<Result<MutexGuard, _>> = dropped(at, locks.adopt(handoff)).await;
            adopted.is_some()
        }
        _ => unreachable!("{method:?} needs no mutex"),
    }
}

/// Runs one combination. Returns whether the method completed before it was dropped.
async fn combination(method: Method, network: Network, fresh: bool, at: Drop) -> bool {
    let fixture = Fixture::new(fresh).await;
    let ended = call(method, network, &fixture, at).await;
    fixture.server.advance(method.gone_by()).await;
    let left = fixture.server.left_behind();
    let context = format!("{method:?} {network:?} {at:?} fresh: {fresh}");
    assert_eq!(left, "", "{context}\n{}", fixture.server.timeline());
    let Fixture {
        server,
        backend,
        locks,
        ..
    } = fixture;
    drop(locks);
    server.advance(secs(2)).await;
    assert_eq!(backend.tasks(), 0, "{context}: a task is left");
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
