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
use leasehold_api::{ForceMode, LockClient, MultiLock, MutexGuard, RwLock};
use leasehold_sim::{Call, Data, Fault, Latency, SimBackend, SimServer};

use crate::counted::Counted;
use crate::locks::{client, hold, job, released, two_clients};
use crate::support::{ms, secs};

/// How long another client holds the locks that the dropped call waits for.
const HELD_FOR: Duration = ms(2_500);
/// How long the client is isolated.
const SILENT_FOR: Duration = ms(2_500);
const DOWN_FOR: Duration = secs(1);
/// How soon nothing is left: a quarter of a lease. The last call to an isolated server times out, and
/// is retried half a second later at most.
const SOON: Duration = ms(7_500);
/// A guard that is still valid then was renewed after the dropped call.
const AFTER_A_LEASE: Duration = secs(35);

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

/// A kind of methods.
#[derive(Clone, Copy)]
struct Kind {
    /// The calls that they make.
    calls: &'static [Call],
    /// Whether they wait, because another client has the lock.
    waits: bool,
}

const WAITS: Kind = Kind {
    waits: true,
    ..makes(&[Call::Acquire, Call::Poll, Call::Renew, Call::Listen])
};
const FIRST: Kind = makes(&[Call::Hello, Call::Acquire]);
const ACQUIRES: Kind = makes(&[Call::Acquire, Call::Release]);
const RENEWS: Kind = makes(&[Call::Renew]);
const RELEASES: Kind = makes(&[Call::Release]);
const CONVERTS: Kind = makes(&[Call::Convert]);

/// Methods that make these calls.
const fn makes(calls: &'static [Call]) -> Kind {
    Kind {
        calls,
        waits: false,
    }
}

impl Kind {
    fn networks(self) -> Vec<Network> {
        let mut networks = vec![
            Network::Fine,
            Network::Down,
            Network::Broken,
            Network::Slow,
            Network::Silent,
        ];
        for call in self.calls {
            let faults = [
                Fault::LoseRequest,
                Fault::LoseReply,
                Fault::DelayRequest(ms(300)),
                Fault::DelayReply(ms(300)),
                Fault::DuplicateRequest(ms(300)),
            ];
            networks.extend(faults.map(|fault| Network::One(*call, fault)));
        }
        if self.waits {
            networks.push(Network::PushLost);
        }
        networks
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
        let many = self.other.lock_all(["job", "job2"]).await.expect("free");
        let book = self.other.rw_lock("book").expect("valid");
        let book = book.write().await.expect("free");
        let pool = self.other.semaphore("pool", 2).expect("valid").permits(2);
        let pool = pool.acquire().await.expect("free");
        self.later(HELD_FOR, move || drop((many, book, pool)));
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

    fn many(&self) -> MultiLock {
        self.locks.mutexes(["job", "job2"]).expect("valid")
    }

    /// As [`completes`](Self::completes). Asserts that a guard is still renewed, and releases it.
    async fn keeps(&self, guard: &MutexGuard, call: impl Future) -> bool {
        let ended = self.completes(call).await;
        self.server.advance(AFTER_A_LEASE).await;
        assert!(guard.is_valid(), "{}", self.context());
        let release = guard.release().await;
        assert!(released(&release), "{release:?} {}", self.context());
        ended
    }

    /// The network, the drop and the timeline, for failed assertions.
    fn context(&self) -> String {
        let (network, at) = (self.network, self.at);
        format!("{network:?} {at:?}\n{}", self.server.timeline())
    }
}

/// Runs one combination. Returns whether the method completed before it was dropped.
async fn combination(
    method: &impl AsyncFn(&Fixture) -> bool,
    kind: Kind,
    (network, fresh, at): (Network, bool, Drop),
) -> bool {
    let fixture = Fixture::new(network, fresh, at).await;
    if kind.waits {
        fixture.occupy().await;
    }
    let ended = method(&fixture).await;
    fixture.server.advance(SOON).await;
    let left = fixture.server.left_behind();
    let context = format!("{network:?} {at:?} fresh: {fresh}");
    assert_eq!(left, "", "{context}\n{}", fixture.server.timeline());
    drop(fixture.locks);
    fixture.server.advance(secs(2)).await;
    assert_eq!(fixture.backend.tasks(), 0, "{context}: a task is left");
    ended
}

/// Runs all combinations of a method, which have at least this many drops.
async fn drops(at_least: usize, kind: Kind, method: impl AsyncFn(&Fixture) -> bool) {
    let mut drops = 0;
    for network in kind.networks() {
        for fresh in [true, false] {
            for at in [Drop::After as fn(u32) -> Drop, Drop::Before] {
                // Starts at 1, because a future that was never polled has done nothing.
                let mut polls = 1;
                while !combination(&method, kind, (network, fresh, at(polls))).await {
                    polls += 1;
                    drops += 1;
                    assert!(polls < 200, "{network:?} never ends");
                }
            }
        }
    }
    assert!(drops >= at_least, "only {drops} drops");
}

/// A test for each method, with a lower bound of its drops.
macro_rules! tests {
    ($($name:ident($at_least:literal, $kind:expr): |$it:ident| $body:expr;)+) => {$(
        #[tokio::test(start_paused = true)]
        async fn $name() {
            drops($at_least, $kind, async |$it| $body).await;
        }
    )+};
}

tests! {
    lock_leaves_nothing(160, FIRST): |it| it.completes(job(&it.locks).lock()).await;
    try_lock_leaves_nothing(130, FIRST): |it| it.completes(job(&it.locks).try_lock()).await;
    lock_in_a_queue_leaves_nothing(470, WAITS): |it| it.completes(job(&it.locks).lock()).await;
    lock_within_leaves_nothing(380, WAITS): |it| {
        let mutex = job(&it.locks);
        it.completes(mutex.try_lock_for(ms(1_500))).await
    };
    with_leaves_nothing(250, ACQUIRES): |it| {
        let body = async |_: &MutexGuard| tokio::task::yield_now().await;
        it.completes(job(&it.locks).with(body)).await
    };
    protect_keeps_its_guard(390, RENEWS): |it| {
        let guard = hold(&it.locks).await;
        let protect = guard.protect(it.server.advance(secs(12)));
        it.keeps(&guard, protect).await
    };
    release_goes_on(40, RELEASES): |it| {
        let guard = hold(&it.locks).await;
        it.completes(guard.release()).await
    };
    renew_keeps_its_guard(30, RENEWS): |it| {
        let guard = hold(&it.locks).await;
        it.keeps(&guard, guard.renew()).await
    };
    read_leaves_nothing(470, WAITS): |it| it.completes(it.book().read()).await;
    write_leaves_nothing(470, WAITS): |it| it.completes(it.book().write()).await;
    downgrade_leaves_nothing(130, CONVERTS): |it| {
        let guard = it.book().write().await.expect("free");
        it.completes(guard.downgrade()).await
    };
    try_upgrade_leaves_nothing(130, CONVERTS): |it| {
        let guard = it.book().read().await.expect("free");
        it.completes(guard.try_upgrade()).await
    };
    acquire_leaves_nothing(470, WAITS): |it| {
        let pool = it.locks.semaphore("pool", 2).expect("a valid key");
        it.completes(pool.acquire()).await
    };
    inspect_changes_nothing(30, makes(&[Call::Inspect])): |it| {
        let guard = hold(&it.locks).await;
        it.keeps(&guard, it.locks.inspect("job")).await
    };
    force_release_leaves_nothing(40, makes(&[Call::Inspect, Call::ForceRelease])): |it| {
        let guard = hold(&it.locks).await;
        let tokens = vec![guard.fencing_token()];
        let forced = it.locks.force_release("job", tokens, ForceMode::Now);
        it.completes(forced).await
    };
    shutdown_goes_on(60, RELEASES): |it| {
        let guard = hold(&it.locks).await;
        let ended = it.completes(it.locks.shutdown()).await;
        assert!(!guard.is_valid(), "{}", it.context());
        it.server.advance(SOON).await;
        let left = it.server.left_behind();
        assert_eq!(left, "", "its guard still exists: {}", it.context());
        ended
    };
    many_lock_leaves_nothing(250, ACQUIRES): |it| it.completes(it.many().lock()).await;
    many_in_a_queue_leaves_nothing(630, WAITS): |it| it.completes(it.many().lock()).await;
    many_try_lock_leaves_nothing(200, ACQUIRES): |it| it.completes(it.many().try_lock()).await;
    many_renew_keeps_its_guard(30, RENEWS): |it| {
        let guard = it.many().lock().await.expect("free");
        let ended = it.completes(guard.renew()).await;
        it.server.advance(AFTER_A_LEASE).await;
        assert!(guard.is_valid(), "{}", it.context());
        ended
    };
    many_release_goes_on(40, RELEASES): |it| {
        let guard = it.many().lock().await.expect("free");
        it.completes(guard.release()).await
    };
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
