//! Shutdown, and input that is refused before any I/O.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Capabilities, Error, ForceMode, InspectReply, Key, Limits,
    LockBackend, LockClient, LockClientBuilder, Loss, Release, ReleaseReply, Renew, RenewReply,
    Runtime, Stamp, Stamped,
};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, ensure, want, want_eq};
use crate::holding::{free, free_within, not_valid, valid};
use crate::world::World;

pub(super) const CASES: &[Case] = cases!("client_care";
    shutdown_releases_everything: ["S3", "L1"], [];
    shutdown_leaves_nothing_behind: ["S3", "L1"], [Inspect, Queue];
    shutdown_ends_waits: ["L4"], [];
    shutdown_loses_guards: ["S2"], [];
    closed_client_returns_closed: ["L4"], [];
    dropped_client_lets_its_guards_be: ["rule 2"], [];
    making_handles_does_no_io: ["trait contract"], [];
    bad_keys: ["trait contract"], [];
    bad_leases: ["trait contract"], [];
    bad_permits: ["trait contract"], [];
    bad_settings: ["trait contract"], [];
    unsupported_is_said_before_any_io: ["trait contract"], [];
);

async fn shutdown_releases_everything(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let mut guards = Vec::new();
    for key in ["k1", "k2", "k3"] {
        guards.push(a.mutex(key)?.lock().await?);
    }
    // One guard was just dropped, and its release hasn't been sent yet.
    guards.pop();
    a.shutdown().await?;
    for key in ["k1", "k2", "k3"] {
        free(&b, key, "S3").await?;
    }
    a.shutdown().await?;
    Ok(())
}

async fn shutdown_leaves_nothing_behind(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let held = b.mutex("k1")?.lock().await?;
    let mine = a.mutex("k2")?.lock().await?;
    let mutex = a.mutex("k1")?;
    let waited = world.within(3, mutex.lock()).await;
    ensure!(waited.is_none(), waited).promised("S1: the key is held")?;
    a.shutdown().await?;
    let views = [b.inspect("k1").await?, b.inspect("k2").await?];
    let left = views.map(|view| (view.holder_count(), view.waiter_count()));
    want_eq!(left, [(1, 0), (0, 0)])
        .promised("S3: after a shutdown, nothing of the client is left")?;
    drop((held, mine));
    Ok(())
}

async fn shutdown_ends_waits(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let _held = b.mutex("k")?.lock().await?;
    let mutex = a.mutex("k")?;
    let shuts_down = async || -> Verdict { Ok(a.shutdown().await?) };
    let waited = world.meanwhile(3, mutex.lock(), shuts_down).await?;
    want!(waited, Err(Error::Closed)).promised("L4: a wait ends when the client shuts down")
}

async fn shutdown_loses_guards(world: &World) -> Verdict {
    let a = world.client().await?;
    let guard = a.mutex("k")?.lock().await?;
    let lost = guard.lost();
    a.shutdown().await?;
    let promise = "S2: a guard is not valid after its client's shutdown";
    not_valid(&guard, promise)?;
    let reason = world.within(10, lost).await;
    want_eq!(reason, Some(Loss::ClientClosed)).promised("S2: `lost` completes with the reason")
}

async fn closed_client_returns_closed(world: &World) -> Verdict {
    let a = world.client().await?;
    let mutex = a.mutex("k")?;
    a.shutdown().await?;
    want!(mutex.lock().await, Err(Error::Closed))
        .promised("L4: a lock after a shutdown is refused")?;
    want!(mutex.try_lock().await, Err(Error::Closed))
        .promised("L4: a lock after a shutdown is refused")?;
    want!(a.mutex("k").map(|_| ()), Err(Error::Closed))
        .promised("L4: a handle after a shutdown is refused")
}

async fn dropped_client_lets_its_guards_be(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let guard = a.mutex("k")?.lease(world.units(15)).lock().await?;
    drop(a);
    world.pass(20).await;
    let promise = "rule 2: a guard keeps the tasks that renew it alive";
    valid(&guard, promise)?;
    drop(guard);
    let promise = "S3: a guard keeps the tasks that release it alive";
    free_within(&b, world.units(50), promise).await
}

/// A backend that panics on every call, to detect I/O.
#[derive(Debug)]
struct Untouchable {
    runtime: Arc<dyn Runtime>,
    capabilities: Capabilities,
}

#[async_trait]
impl LockBackend for Untouchable {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime)
    }

    async fn hello(&self) -> Result<Stamp, BackendError> {
        panic!("hello was sent")
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        panic!("{batch:?} was sent")
    }

    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        panic!("{batch:?} was sent")
    }

    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>> {
        panic!("{batch:?} was sent")
    }

    async fn inspect(&self, key: &Key) -> Result<Stamped<InspectReply>, BackendError> {
        panic!("an inspection of {key:?} was sent")
    }

    async fn close(&self) -> Result<(), BackendError> {
        Ok(())
    }
}

/// The builder of a client that must not do any I/O.
fn builder(runtime: Arc<dyn Runtime>, capabilities: Capabilities) -> LockClientBuilder {
    LockClient::builder(Untouchable {
        runtime,
        capabilities,
    })
}

/// Creates a client that must not do any I/O.
async fn untouchable(world: &World, capabilities: Capabilities) -> Result<LockClient, Failure> {
    let builder = builder(world.backend().await?.runtime(), capabilities);
    Ok(builder.build()?)
}

fn invalid<T: std::fmt::Debug>(result: Result<T, Error>, input: &str) -> Verdict {
    want!(result, Err(Error::InvalidInput { .. }))
        .promised(format!("trait contract: {input} is refused before any I/O"))
}

async fn making_handles_does_no_io(world: &World) -> Verdict {
    let a = untouchable(world, Capabilities::full()).await?;
    drop(a.mutex("k")?.lease(Duration::from_secs(1)).fixed_lease());
    drop(a.mutex("k")?.reentrant()?);
    drop(a.rw_lock("k")?.max_hold(Duration::from_secs(1)));
    drop(a.rw_lock("k")?.reentrant()?);
    a.semaphore("k", 5)?;
    // A future that isn't polled does nothing.
    drop(a.mutex("k")?.lock());
    Ok(())
}

async fn bad_keys(world: &World) -> Verdict {
    let a = untouchable(world, Capabilities::full()).await?;
    for (key, input) in [
        (String::new(), "an empty key"),
        ("x".repeat(257), "a key of 257 bytes"),
        ("\u{e9}".repeat(129), "a key of 258 bytes in 129 characters"),
        ("x".repeat(10_000), "a key of 10 kB"),
    ] {
        invalid(a.mutex(&key), input)?;
        invalid(a.rw_lock(&key), input)?;
        invalid(a.semaphore(&key, 1), input)?;
        invalid(a.inspect(&key).await, input)?;
        let forced = a.force_release(&key, Vec::new(), ForceMode::Now);
        invalid(forced.await, input)?;
    }
    Ok(())
}

async fn bad_leases(world: &World) -> Verdict {
    let a = untouchable(world, Capabilities::full()).await?;
    for lease in [
        Duration::ZERO,
        Duration::from_millis(99),
        Duration::from_secs(3_601),
        Duration::MAX,
    ] {
        let input = format!("a lease of {lease:?}");
        let mutex = a.mutex("k")?.lease(lease);
        invalid(mutex.lock().await, &input)?;
        invalid(mutex.try_lock().await, &input)?;
        invalid(mutex.try_lock_for(Duration::from_secs(1)).await, &input)?;
        invalid(a.rw_lock("k")?.lease(lease).read().await, &input)?;
        invalid(a.semaphore("k", 1)?.lease(lease).acquire().await, &input)?;
    }
    Ok(())
}

async fn bad_permits(world: &World) -> Verdict {
    let a = untouchable(world, Capabilities::full()).await?;
    for capacity in [0, u32::MAX] {
        let input = format!("a semaphore of {capacity}");
        invalid(a.semaphore("k", capacity), &input)?;
    }
    let semaphore = a.semaphore("k", 3)?;
    for permits in [0, 4, u32::MAX] {
        let input = format!("{permits} permits of 3");
        let asked = semaphore.permits(permits);
        invalid(asked.acquire().await, &input)?;
        invalid(asked.try_acquire().await, &input)?;
        let within = asked.try_acquire_for(Duration::from_secs(1));
        invalid(within.await, &input)?;
    }
    Ok(())
}

async fn bad_settings(world: &World) -> Verdict {
    let runtime = world.backend().await?.runtime();
    let build = || builder(Arc::clone(&runtime), Capabilities::full());
    let zero = Duration::ZERO;
    invalid(build().lease(zero).build(), "a lease of zero")?;
    let call_timeout = build().call_timeout(zero).build();
    invalid(call_timeout, "a call timeout of zero")?;
    let none = Limits {
        holds: 0,
        ..Limits::default()
    };
    invalid(build().limits(none).build(), "a limit of zero")?;
    let mutex = build().build()?.mutex("k")?.limits(none);
    invalid(mutex.lock().await, "a limit of zero of a handle")?;
    let mutex = build().build()?.mutex("k")?.max_hold(zero);
    invalid(mutex.lock().await, "a maximum hold of zero")
}

async fn unsupported_is_said_before_any_io(world: &World) -> Verdict {
    let a = untouchable(world, Capabilities::minimal()).await?;
    let results = [
        a.once("k").map(drop),
        a.election("k").map(drop),
        a.rw_lock("k").map(|_| ()),
        a.semaphore("k", 2).map(|_| ()),
        a.mutex("k")?.reentrant().map(drop),
    ];
    for result in results {
        want!(result, Err(Error::Unsupported { .. })).promised(
            "trait contract: a lock that the backend can't support is refused before any I/O",
        )?;
    }
    Ok(())
}
