//! All runs of a small scenario.

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_api::bounds::{DEFAULT_LEASE, HORIZON};
use leasehold_api::{
    Acquire, AcquireReply, End, Key, LockBackend, LockSpec, Mode, Operation, OwnerId, ServerTime,
    SessionId,
};

use crate::backend::SimBackend;
use crate::choices::Policy;
use crate::server::SimServer;
use crate::simulation::{RunReport, Simulation};
use crate::tape::{Site, Tape};

impl Simulation {
    /// Runs a scenario once for each sequence of choices at these `sites`, depth first, with 0 at
    /// all others, until `each` breaks; tells how many runs there were.
    ///
    /// The number grows with the factorial of what can happen at once: keep the scenario small, and
    /// use [`SimOptions::with_atomic_calls`](crate::SimOptions::with_atomic_calls). Where tasks
    /// meet at the server only, their order between two calls does not matter, and
    /// [`Site::Order`] alone gives every order of their calls; tasks that share memory need
    /// [`Site::Task`] too. The policy is not used.
    pub fn run_all<F, S>(
        self,
        sites: &[Site],
        scenario: S,
        mut each: impl FnMut(&RunReport<F::Output>) -> ControlFlow<()>,
    ) -> u64
    where
        S: Fn(SimServer) -> F,
        F: Future,
    {
        let mut tape = Tape::new(self.seed());
        let mut runs = 0;
        loop {
            let simulation = self.clone().with_policy(Policy::Replay(tape));
            let report = simulation.run(&scenario);
            runs += 1;
            if each(&report).is_break() {
                return runs;
            }
            tape = report.tape;
            if !tape.advance(sites) {
                return runs;
            }
        }
    }
}

/// A scenario for [`Simulation::run_all`]: so many clients take and give back one lock, without
/// waiting for it, in so many calls each; with
/// [atomic calls](crate::SimOptions::with_atomic_calls) it has (clients × calls)! / (calls!)^clients
/// orders at [`Site::Order`].
///
/// # Panics
/// If a call fails, or two hold the lock at once.
///
/// # Cancel safety
/// None is needed: it is a whole scenario, and ends with its simulation.
pub async fn try_only(sim: SimServer, clients: usize, calls: usize) {
    let key = Key::new("job").expect("a valid name");
    let holders = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..clients)
        .map(|_| {
            let backend = sim.client("client");
            let (key, holders) = (key.clone(), Arc::clone(&holders));
            sim.spawn(take_and_give_back(
                sim.clone(),
                backend,
                key,
                calls,
                holders,
            ))
        })
        .collect();
    for task in tasks {
        task.await;
    }
}

async fn take_and_give_back(
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
            request.deliver_before = sim.server_time().saturating_add(HORIZON);
            let reply = backend.acquire(&request).await.expect("the server serves");
            held = matches!(reply.reply, AcquireReply::Acquired(_));
            if held {
                let others = holders.fetch_add(1, Ordering::Relaxed);
                assert_eq!(others, 0, "two hold the lock");
            }
        } else {
            if std::mem::take(&mut held) {
                holders.fetch_sub(1, Ordering::Relaxed);
            }
            let replies = backend.end(&[End::new(key.clone(), operation)]).await;
            assert!(replies.iter().all(Result::is_ok), "the server serves");
        }
    }
}
