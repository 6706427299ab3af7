//! A small scenario without a lock client: each client tries one lock.

use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_api::bounds::{DEFAULT_LEASE, DELIVERY_WINDOW};
use leasehold_api::{
    Acquire, AcquireReply, Key, LockBackend, LockSpec, Mode, Operation, OwnerId, Release,
    ServerTime, SessionId,
};
use leasehold_sim::{SimBackend, SimServer};

/// A scenario for [`Simulation::run_all`](leasehold_sim::Simulation::run_all): each client tries one
/// lock and releases it, in turn, until it has made `calls` calls. It never waits.
///
/// With [atomic calls](leasehold_sim::SimOptions::atomic_calls), the scenario has
/// (clients × calls)! / (calls!)^clients orders at [`Site::Order`](leasehold_sim::tools::Site::Order).
///
/// # Panics
/// Panics if a call fails, or if two clients hold the lock at once.
///
/// # Cancel safety
/// Not cancel safe. The scenario ends with its simulation.
pub async fn try_only(sim: SimServer, clients: usize, calls: usize) {
    let key = Key::new("job").expect("a valid name");
    let holders = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..clients)
        .map(|_| {
            let backend = sim.client("client");
            let (key, holders) = (key.clone(), Arc::clone(&holders));
            sim.spawn(try_and_release(sim.clone(), backend, key, calls, holders))
        })
        .collect();
    for task in tasks {
        task.await;
    }
}

async fn try_and_release(
    sim: SimServer,
    backend: SimBackend,
    key: Key,
    calls: usize,
    holders: Arc<AtomicU32>,
) {
    let runtime = backend.runtime();
    let mut session = [0; 16];
    runtime.fill_random(&mut session);
    let mut operation = Operation {
        session: SessionId::from_bytes(session),
        sequence: 0,
        owner: OwnerId::from_u64(runtime.random_u64()),
    };
    let request = Acquire::new(
        key.clone(),
        LockSpec::mutex(),
        Mode::Exclusive,
        operation,
        DEFAULT_LEASE,
        ServerTime::default(),
    );
    let mut request = request.expect("a valid request");
    let mut held = false;
    for call in 0..calls {
        if call % 2 == 0 {
            operation.sequence += 1;
            request.operation = operation;
            request.deliver_before = sim.server_time().saturating_add(DELIVERY_WINDOW);
            let reply = backend
                .acquire(from_ref(&request))
                .await
                .remove(0)
                .expect("the server answers");
            held = matches!(reply.reply, AcquireReply::Acquired(_));
            if held {
                let others = holders.fetch_add(1, Ordering::Relaxed);
                assert_eq!(others, 0, "two clients hold the lock");
            }
        } else {
            if std::mem::take(&mut held) {
                holders.fetch_sub(1, Ordering::Relaxed);
            }
            let replies = backend
                .release(&[Release::new(key.clone(), operation)])
                .await;
            assert!(replies.iter().all(Result::is_ok), "the server answers");
        }
    }
}
