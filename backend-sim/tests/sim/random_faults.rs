//! Several clients under random faults: every run of many seeds keeps its promises.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_api::{LockBackend as _, LockClient, MutexGuard, Outcome, Runtime};
use leasehold_sim::{Data, Fault, Latency, SimBackend, SimOptions, SimServer};

use crate::locks::{client, job};
use crate::support::{ms, paused, secs};

/// The protected resource. It refuses every token below the highest that it has accepted, and
/// tracks all guards.
#[derive(Debug, Default)]
struct Resource {
    guards: Vec<Arc<MutexGuard>>,
    highest: u64,
    acquired: u32,
    refused: u32,
    violations: Vec<String>,
}

impl Resource {
    fn acquired(&mut self, client: &str, guard: &Arc<MutexGuard>, server: &SimServer) {
        self.acquired += 1;
        let at = server.elapsed();
        if guard.is_valid() {
            for other in self.guards.iter().filter(|other| other.is_valid()) {
                let other = other.fencing_token();
                self.violations
                    .push(format!("{at:?}: {client} acquired while {other} was valid"));
            }
        }
        self.guards.push(Arc::clone(guard));
    }

    fn write(&mut self, client: &str, guard: &MutexGuard, server: &SimServer) {
        let token = guard.fencing_token().get();
        if token >= self.highest {
            self.highest = token;
            return;
        }
        self.refused += 1;
        if guard.is_valid() {
            let at = server.elapsed();
            self.violations
                .push(format!("{at:?}: a valid guard of {client} was refused"));
        }
    }
}

type Shared = Arc<Mutex<Resource>>;

fn lock(shared: &Shared) -> std::sync::MutexGuard<'_, Resource> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Acquires the lock, writes before and after some work, and releases or drops the guard, four
/// times.
async fn worker(server: SimServer, backend: SimBackend, locks: LockClient, shared: Shared) {
    let name = backend.name();
    let runtime = backend.runtime();
    for _ in 0..4 {
        let wait_limit = secs(1 + runtime.random_u64() % 20);
        let mutex = job(&locks).lease(secs(3));
        let Ok(Outcome::Acquired(guard)) = mutex.try_lock_for(wait_limit).await else {
            continue;
        };
        let guard = Arc::new(guard);
        lock(&shared).acquired(&name, &guard, &server);
        lock(&shared).write(&name, &guard, &server);
        runtime.sleep(ms(runtime.random_u64() % 4_000)).await;
        lock(&shared).write(&name, &guard, &server);
        if runtime.random_u64().is_multiple_of(2) {
            // The result doesn't matter: the release continues in the background.
            let _ = guard.release().await;
        }
        lock(&shared)
            .guards
            .retain(|other| !Arc::ptr_eq(other, &guard));
    }
}

/// Injects faults for 30 s, and then ends all isolations.
async fn chaos(server: &SimServer, runtime: &dyn Runtime, clients: &[SimBackend], data: Data) {
    let draw = |bound: u64| runtime.random_u64() % bound;
    while server.elapsed() < secs(30) {
        server.advance(ms(draw(1_500))).await;
        let victim = &clients[usize::try_from(draw(clients.len() as u64)).expect("small")];
        let delay = ms(draw(3_000));
        match draw(14) {
            0 | 1 => victim.inject(Fault::LoseReply),
            2 => victim.inject(Fault::LoseRequest),
            3 => victim.inject(Fault::DelayRequest(delay)),
            4 => victim.inject(Fault::DelayReply(delay)),
            5 => victim.inject(Fault::DuplicateRequest(delay)),
            6 => victim.inject(Fault::LosePush),
            7 => victim.inject(Fault::DelayPush(delay)),
            8 => victim.inject(Fault::DuplicatePush),
            9 => victim.drop_connection(),
            10 => pause(server, victim, secs(draw(6))),
            11 => victim.isolate(),
            12 => victim.rejoin(),
            _ => server.restart(data),
        }
    }
    clients.iter().for_each(SimBackend::rejoin);
}

fn pause(server: &SimServer, victim: &SimBackend, time: Duration) {
    victim.pause();
    let (server, victim) = (server.clone(), victim.clone());
    tokio::spawn(async move {
        server.advance(time).await;
        victim.resume();
    });
}

struct Run {
    resource: Resource,
    left: String,
    timeline: String,
}

fn run(seed: u64, data: Data) -> Run {
    paused().block_on(async {
        let latency = Latency::between(ms(0), ms(3));
        let server = SimServer::with_options(SimOptions::new(seed).latency(latency));
        let shared = Shared::default();
        let dice = server.client("chaos").runtime();
        let clients: Vec<_> = ["a", "b", "c"].map(|name| client(&server, name)).into();
        let workers: Vec<_> = clients
            .iter()
            .map(|(backend, locks)| {
                let (backend, locks) = (backend.clone(), locks.clone());
                let body = worker(server.clone(), backend.clone(), locks, Arc::clone(&shared));
                tokio::spawn(async move { backend.run(body).await })
            })
            .collect();
        let backends: Vec<_> = clients.iter().map(|(backend, _)| backend.clone()).collect();
        chaos(&server, &*dice, &backends, data).await;
        for worker in workers {
            worker.await.expect("no panic");
        }
        // More than one lease later, nothing is left.
        server.advance(secs(4)).await;
        Run {
            left: server.left_behind(),
            timeline: server.timeline(),
            resource: std::mem::take(&mut *lock(&shared)),
        }
    })
}

#[test]
fn exclusion_holds_and_nothing_is_left_under_faults() {
    let (mut acquired, mut refused) = (0, 0);
    for seed in 0..100 {
        let run = run(seed, Data::Kept);
        let nothing: Vec<String> = Vec::new();
        assert_eq!(
            run.resource.violations, nothing,
            "seed {seed}\n{}",
            run.timeline
        );
        assert_eq!(run.left, "", "seed {seed}\n{}", run.timeline);
        acquired += run.resource.acquired;
        refused += run.resource.refused;
    }
    assert!(acquired > 700, "{acquired} acquisitions are too few");
    assert!(refused > 0, "no stale write was tried");
}

#[test]
fn exclusion_fails_if_the_server_loses_its_data() {
    // The promises don't cover a server that loses its data.
    let broken = (0..100).any(|seed| !run(seed, Data::Lost).resource.violations.is_empty());
    assert!(broken, "no overlap was seen");
}

#[test]
fn seed_repeats_a_run_of_lock_clients_byte_for_byte() {
    for seed in 0..10 {
        assert_eq!(
            run(seed, Data::Kept).timeline,
            run(seed, Data::Kept).timeline
        );
    }
}
