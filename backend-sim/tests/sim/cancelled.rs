//! Every async method, whatever becomes of its calls, dropped at every point where it waits: what
//! it leaves is gone soon, not only when a lease is over.
//!
//! The points are found by counting: a method is run again and again, and dropped one poll later
//! each time, until it ends before it is dropped.

use std::time::Duration;

use leasehold_api::{ForceHow, LockClient, ManyGuard, MutexGuard, ReadGuard, WriteGuard};
use leasehold_sim::{Call, Data, Fault, Latency, SimBackend, SimServer};

use crate::counted::Counted;
use crate::drops::{Drop, dropped};
use crate::locks::{client, hold, job, released};
use crate::support::{ms, secs};

/// How long another client holds what the dropped call waits for.
const HELD_FOR: Duration = ms(2_500);
/// How long nothing gets through.
const SILENT_FOR: Duration = ms(2_500);
const DOWN_FOR: Duration = secs(1);
/// When calls get through again, whatever the weather was.
const TROUBLE: Duration = secs(3);
/// When all must be gone, at the latest: a quarter of a lease. The last call that finds the
/// server silent ends a time-out after that, and is repeated half a second later at most.
const SOON: Duration = ms(7_500);
/// A hand-off may be left to its lease.
const AFTER_A_LEASE: Duration = secs(35);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Lock,
    TryLock,
    /// Somebody else holds the lock.
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

/// What becomes of the method's calls.
#[derive(Clone, Copy, Debug)]
enum Weather {
    Fine,
    /// Of the first call of this sort.
    One(Call, Fault),
    PushLost,
    /// The server is down for a while: calls fail at once, and nothing was executed.
    Down,
    /// The connection breaks when the call is on its way.
    Broken,
    Slow,
    /// Nothing gets through for a while.
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
            // All that wait are above.
            _ => &[],
        }
    }

    fn weathers(self) -> Vec<Weather> {
        let mut weathers = vec![
            Weather::Fine,
            Weather::Down,
            Weather::Broken,
            Weather::Slow,
            Weather::Silent,
        ];
        for call in self.calls() {
            let faults = [
                Fault::LoseRequest,
                Fault::LoseReply,
                Fault::DelayRequest(ms(300)),
                Fault::DelayReply(ms(300)),
                Fault::DuplicateRequest(ms(300)),
            ];
            weathers.extend(faults.map(|fault| Weather::One(*call, fault)));
        }
        if self.waits() {
            weathers.push(Weather::PushLost);
        }
        weathers
    }

    const fn gone_by(self) -> Duration {
        match self {
            Self::IntoHandoff | Self::Adopt => AFTER_A_LEASE,
            _ => SOON,
        }
    }
}

/// A server, another client, and the one whose future is dropped.
struct Scene {
    server: SimServer,
    other: LockClient,
    process: SimBackend,
    backend: Counted,
    locks: LockClient,
}

impl Scene {
    /// `fresh`: the dropped call is the client's first.
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

    /// Does something later, in a task of its own.
    fn later(&self, after: Duration, then: impl FnOnce() + Send + 'static) {
        let server = self.server.clone();
        tokio::spawn(async move {
            server.advance(after).await;
            then();
        });
    }

    /// Has the other client hold what every waiting method waits for.
    async fn occupy(&self) {
        let many = self.other.many().mutexes(["job", "job2"]);
        let many = many.and_then(|many| many.write("book"));
        let many = many.and_then(|many| many.permits("pool", 2, 2));
        let guard = many.expect("valid").lock().await.expect("free");
        self.later(HELD_FOR, move || drop(guard));
    }

    fn turns(&self, weather: Weather) {
        let (server, process) = (self.server.clone(), self.process.clone());
        match weather {
            Weather::Fine => {}
            Weather::One(call, fault) => process.inject_into(call, fault),
            Weather::PushLost => process.inject(Fault::LosePush),
            Weather::Down => {
                server.stop();
                self.later(DOWN_FOR, move || server.start(Data::Kept));
            }
            Weather::Broken => self.later(ms(1), move || process.drop_connection()),
            Weather::Slow => process.set_latency(Latency::between(ms(150), ms(350))),
            Weather::Silent => {
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

    async fn many_guard(&self) -> ManyGuard {
        let many = self.locks.many().mutexes(["job", "job2"]).expect("valid");
        many.lock().await.expect("free")
    }

    /// That a guard which was not given up is still valid, and can be released.
    async fn still_held(&self, guard: MutexGuard) {
        self.server.advance(TROUBLE).await;
        assert!(guard.is_valid(), "{}", self.server.timeline());
        assert!(released(&guard.release().await));
    }
}

/// Calls a method and drops it there; whether it ended before that.
async fn call(method: Method, weather: Weather, scene: &Scene, at: Drop) -> bool {
    if method.waits() {
        scene.occupy().await;
    }
    match method {
        Method::Protect | Method::Release | Method::Renew | Method::Inspect => {
            return with_a_mutex(method, weather, scene, at).await;
        }
        Method::ForceRelease | Method::Shutdown | Method::IntoHandoff | Method::Adopt => {
            return with_a_mutex(method, weather, scene, at).await;
        }
        Method::Downgrade => {
            let guard = scene.write_guard().await;
            scene.turns(weather);
            return dropped(at, guard.downgrade()).await.is_some();
        }
        Method::TryUpgrade => {
            let guard = scene.read_guard().await;
            scene.turns(weather);
            return dropped(at, guard.try_upgrade()).await.is_some();
        }
        Method::ManyRenew => {
            let guard = scene.many_guard().await;
            scene.turns(weather);
            let ended = dropped(at, guard.renew()).await.is_some();
            scene.server.advance(TROUBLE).await;
            assert!(guard.is_valid(), "{}", scene.server.timeline());
            return ended;
        }
        Method::ManyRelease => {
            let guard = scene.many_guard().await;
            scene.turns(weather);
            return dropped(at, guard.release()).await.is_some();
        }
        _ => {}
    }
    scene.turns(weather);
    acquire(method, &scene.locks, at).await
}

async fn acquire(method: Method, locks: &LockClient, at: Drop) -> bool {
    let (mutex, book) = (job(locks), locks.rw_lock("book").expect("a valid key"));
    let pool = locks.semaphore("pool", 2).expect("a valid key");
    let many = locks.many().mutexes(["job", "job2"]).expect("valid keys");
    match method {
        Method::Lock | Method::LockWaiting => dropped(at, mutex.lock()).await.is_some(),
        Method::TryLock => dropped(at, mutex.try_lock()).await.is_some(),
        Method::LockWithin => dropped(at, mutex.lock_within(ms(1_500))).await.is_some(),
        Method::With => {
            let body = async |_: &MutexGuard| tokio::task::yield_now().await;
            dropped(at, mutex.with(body)).await.is_some()
        }
        Method::ReadWaiting => dropped(at, book.read()).await.is_some(),
        Method::WriteWaiting => dropped(at, book.write()).await.is_some(),
        Method::AcquireWaiting => dropped(at, pool.acquire(1)).await.is_some(),
        Method::ManyLock | Method::ManyWaiting => dropped(at, many.lock()).await.is_some(),
        Method::ManyTryLock => dropped(at, many.try_lock()).await.is_some(),
        _ => unreachable!("{method:?} acquires nothing"),
    }
}

/// Methods of a guard of a mutex, and of a client that has one.
async fn with_a_mutex(method: Method, weather: Weather, scene: &Scene, at: Drop) -> bool {
    let (server, locks) = (&scene.server, &scene.locks);
    let guard = scene.mutex_guard().await;
    match method {
        Method::Protect => {
            scene.turns(weather);
            let body = server.advance(secs(12));
            let ended = dropped(at, guard.protect(body)).await.is_some();
            scene.still_held(guard).await;
            ended
        }
        Method::Release => {
            scene.turns(weather);
            dropped(at, guard.release()).await.is_some()
        }
        Method::Renew => {
            scene.turns(weather);
            let ended = dropped(at, guard.renew()).await.is_some();
            scene.still_held(guard).await;
            ended
        }
        Method::Inspect => {
            scene.turns(weather);
            let ended = dropped(at, locks.inspect("job")).await.is_some();
            scene.still_held(guard).await;
            ended
        }
        Method::ForceRelease => {
            let token = guard.fencing_token().expect("a token");
            scene.turns(weather);
            let forced = locks.force_release("job", vec![token], ForceHow::Now);
            dropped(at, forced).await.is_some()
        }
        Method::Shutdown => {
            scene.turns(weather);
            let ended = dropped(at, locks.shutdown()).await.is_some();
            assert!(!guard.is_valid());
            server.advance(SOON).await;
            assert_eq!(server.left_behind(), "", "though its guard is still there");
            ended
        }
        Method::IntoHandoff => {
            scene.turns(weather);
            dropped(at, guard.into_handoff()).await.is_some()
        }
        Method::Adopt => {
            let handoff = guard.into_handoff().await.expect("answered");
            scene.turns(weather);
            let adopted: Option<Result<MutexGuard, _>> = dropped(at, locks.adopt(handoff)).await;
            adopted.is_some()
        }
        _ => unreachable!("{method:?} needs no mutex"),
    }
}

/// One combination; whether the method ended before it was dropped.
async fn combination(method: Method, weather: Weather, fresh: bool, at: Drop) -> bool {
    let scene = Scene::new(fresh).await;
    let ended = call(method, weather, &scene, at).await;
    scene.server.advance(method.gone_by()).await;
    let left = scene.server.left_behind();
    let where_ = format!("{method:?} {weather:?} {at:?} fresh: {fresh}");
    assert_eq!(left, "", "{where_}\n{}", scene.server.timeline());
    let Scene {
        server,
        backend,
        locks,
        ..
    } = scene;
    drop(locks);
    server.advance(secs(2)).await;
    assert_eq!(backend.tasks(), 0, "{where_}: a task is left");
    ended
}

/// All combinations of a method; how many drops there were.
async fn drops_of(method: Method) -> usize {
    let mut drops = 0;
    for weather in method.weathers() {
        for fresh in [true, false] {
            for at in [Drop::After as fn(u32) -> Drop, Drop::Before] {
                // From 1: a future that was never polled has done nothing.
                let mut polls = 1;
                while !combination(method, weather, fresh, at(polls)).await {
                    polls += 1;
                    drops += 1;
                    assert!(polls < 200, "{method:?} {weather:?} never ends");
                }
            }
        }
    }
    drops
}

/// A test for each method: fewer drops than these mean that the table has shrunk.
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
