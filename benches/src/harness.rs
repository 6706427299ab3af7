//! What the criterion benches have in common.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId};
use leasehold_test_servers::RedisServer;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::Result;
use crate::figures::Transport;
use crate::lock::{Lock, Pair};

/// A group of criterion's.
pub type Group<'a> = BenchmarkGroup<'a, WallTime>;

/// Both ways to a server.
pub const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Unix];

/// A server and a runtime.
#[derive(Debug)]
pub struct Scene {
    // Dropped in this order: connections before the server that they lead to.
    runtime: Runtime,
    server: RedisServer,
    transport: Transport,
}

impl Scene {
    /// Starts both.
    ///
    /// # Errors
    /// If the runtime cannot be had.
    pub fn new(transport: Transport) -> Result<Self> {
        let mut builder = Builder::new_multi_thread();
        Ok(Self {
            runtime: builder.worker_threads(1).enable_all().build()?,
            server: RedisServer::start(),
            transport,
        })
    }

    /// How the server is reached, as it is called in names of benches.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self.transport {
            Transport::Tcp => "tcp",
            Transport::Unix => "unix",
        }
    }

    /// The server's address.
    #[must_use]
    pub fn url(&self) -> String {
        match self.transport {
            Transport::Tcp => self.server.url(),
            Transport::Unix => self.server.unix_url(),
        }
    }

    /// Waits for a future.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Starts a task.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.runtime.spawn(future)
    }
}

/// Takes a lock and gives it back, one after the other.
///
/// # Panics
/// If the lock fails.
pub fn one_by_one(group: &mut Group<'_>, scene: &Scene, name: &str, lock: &impl Pair) {
    group.bench_function(name, |bencher| {
        bencher
            .to_async(&scene.runtime)
            .iter(async || lock.pair().await.expect("the server serves"));
    });
}

/// Each of the locks is taken and given back by a task of its own; an iteration is one of each.
///
/// # Panics
/// If a lock fails.
pub fn side_by_side<L: Pair>(
    group: &mut Group<'_>,
    scene: &Scene,
    id: BenchmarkId,
    locks: &Arc<Vec<L>>,
) {
    group.bench_function(id, |bencher| {
        bencher.iter_custom(|times| {
            let pairs = |number: usize| {
                let locks = Arc::clone(locks);
                async move {
                    for _ in 0..times {
                        locks[number].pair().await.expect("the server serves");
                    }
                }
            };
            time_of_all(scene, (0..locks.len()).map(pairs))
        });
    });
}

/// Each of the ways to one lock is taken by a task of its own and kept for so long; an iteration is
/// one acquisition by anybody.
///
/// # Panics
/// If the lock fails.
pub fn handing_over<L: Lock>(
    group: &mut Group<'_>,
    scene: &Scene,
    id: BenchmarkId,
    locks: &Arc<Vec<L>>,
    hold: Duration,
) {
    group.bench_function(id, |bencher| {
        bencher.iter_custom(|times| {
            let rounds = times.div_ceil(locks.len() as u64);
            let holds = |number: usize| {
                let locks = Arc::clone(locks);
                async move {
                    for _ in 0..rounds {
                        let held = locks[number].take().await.expect("the server serves");
                        if !hold.is_zero() {
                            tokio::time::sleep(hold).await;
                        }
                        locks[number]
                            .give_back(held)
                            .await
                            .expect("it is still held");
                    }
                }
            };
            let took = time_of_all(scene, (0..locks.len()).map(holds));
            took.mul_f64(times as f64 / (rounds * locks.len() as u64) as f64)
        });
    });
}

/// From the first task's start to the last one's end.
fn time_of_all<F>(scene: &Scene, futures: impl Iterator<Item = F>) -> Duration
where
    F: Future<Output = ()> + Send + 'static,
{
    let begun = Instant::now();
    let tasks: Vec<_> = futures.map(|future| scene.spawn(future)).collect();
    for task in tasks {
        scene.block_on(task).expect("no panic");
    }
    begun.elapsed()
}
