//! Compares leasehold on the `redis` crate with leasehold on `fred`, next to the floor of each, and
//! with the feature `peers` next to other lock libraries.
//!
//! One task and one free mutex, many tasks that each have a mutex, and clients that contend for one
//! mutex.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use leasehold_benches::Result;
use leasehold_benches::floor::Floor;
use leasehold_benches::library::{Library, each_key, mutexes};
use leasehold_benches::load::side_by_side_times;
use leasehold_benches::lock::{FloorLock, Pair};
use leasehold_test_servers::RedisServer;
use tokio::runtime::{Builder, Runtime};

/// A server on loopback TCP, and the runtime of its clients.
#[derive(Debug)]
struct Fixture {
    // The runtime is dropped first, and closes the connections before the server stops.
    runtime: Runtime,
    server: RedisServer,
}

impl Fixture {
    fn new() -> Result<Self> {
        let mut builder = Builder::new_multi_thread();
        Ok(Self {
            runtime: builder.worker_threads(1).enable_all().build()?,
            server: RedisServer::start(),
        })
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Benches `locks`: each one is acquired and released by its own task. One iteration is one
    /// pair of every task.
    fn bench<L: Pair>(
        &self,
        group: &mut BenchmarkGroup<'_, WallTime>,
        id: BenchmarkId,
        locks: impl Into<Arc<Vec<L>>>,
    ) {
        let locks = locks.into();
        group.throughput(Throughput::Elements(locks.len() as u64));
        group.bench_function(id, |bencher| {
            bencher.iter_custom(|times| {
                let times = usize::try_from(times).expect("a count fits");
                let begun = Instant::now();
                let pairs = self.block_on(side_by_side_times(&locks, times));
                pairs.expect("the server answers");
                begun.elapsed()
            });
        });
    }
}

/// One mutex per task, each with its own key: nobody waits.
fn distinct_keys(criterion: &mut Criterion) -> Result<()> {
    let fixture = Fixture::new()?;
    let url = fixture.server.url();
    let mut group = criterion.benchmark_group("distinct_keys");
    for tasks in [1, 64] {
        for library in Library::ALL {
            let keys = |owner| (0..tasks).map(move |task| format!("{owner}-{task}"));
            let floor = fixture.block_on(Floor::connect(library, &url))?;
            let id = BenchmarkId::new(format!("floor {}", library.name()), tasks);
            fixture.bench(&mut group, id, FloorLock::each(&floor, keys("floor")));

            let locks = fixture.block_on(library.connect(&url))?;
            let id = BenchmarkId::new(format!("leasehold {}", library.name()), tasks);
            fixture.bench(&mut group, id, each_key(&locks, keys("leasehold"))?);
            fixture.block_on(locks.shutdown())?;
        }
        #[cfg(feature = "peers")]
        for (name, locks) in
            fixture.block_on(leasehold_benches::figures::peers::locks(&url, tasks))?
        {
            fixture.bench(&mut group, BenchmarkId::new(name, tasks), locks);
        }
    }
    group.finish();
    Ok(())
}

/// Several clients contend for one mutex and hold it for no time.
fn contended(criterion: &mut Criterion) -> Result<()> {
    let fixture = Fixture::new()?;
    let url = fixture.server.url();
    let mut group = criterion.benchmark_group("contended");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(3));
    for clients in [2, 32] {
        for library in Library::ALL {
            let key = format!("{}-{clients}", library.name());
            let (connected, own) = fixture.block_on(mutexes(library, &url, &key, clients))?;
            let id = BenchmarkId::new(format!("leasehold {}", library.name()), clients);
            fixture.bench(&mut group, id, own);
            drop(connected);
        }
    }
    group.finish();
    Ok(())
}

fn all(criterion: &mut Criterion) {
    distinct_keys(criterion).expect("the server answers");
    contended(criterion).expect("the server answers");
}

criterion_group!(benches, all);
criterion_main!(benches);
