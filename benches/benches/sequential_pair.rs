//! One task takes a free lock and gives it back, again and again.
//!
//! The floors on both client libraries, leasehold on both, and leasehold on the simulator, which
//! shows what the client and the state machine cost without a network. Only ratios within one run
//! mean anything.

use std::error::Error;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main};
use leasehold::fred::FredBackend;
use leasehold::redis_rs::RedisBackend;
use leasehold::sim::{Latency, SimOptions, SimServer};
use leasehold::{LockBackend, LockClient, Mutex};
use leasehold_benches::fred_floor::FredFloor;
use leasehold_benches::redis_rs_floor::RedisRsFloor;
use leasehold_test_servers::RedisServer;
use tokio::runtime::{Builder, Runtime};

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Group<'a> = BenchmarkGroup<'a, WallTime>;

const KEY: &str = "bench";

fn real_time() -> Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    Ok(builder.worker_threads(1).enable_all().build()?)
}

fn floors(group: &mut Group<'_>, url: &str) -> Result<()> {
    let runtime = real_time()?;
    let floor = runtime.block_on(RedisRsFloor::connect(url))?;
    group.bench_function("floor redis-rs", |bencher| {
        bencher.to_async(&runtime).iter(|| async {
            let both = floor.pair(KEY, 42).await;
            assert!(both.is_ok_and(|both| both), "it is free, then ours");
        });
    });
    let floor = runtime.block_on(FredFloor::connect(url))?;
    group.bench_function("floor fred", |bencher| {
        bencher.to_async(&runtime).iter(|| async {
            let both = floor.pair(KEY, 42).await;
            assert!(both.is_ok_and(|both| both), "it is free, then ours");
        });
    });
    Ok(())
}

async fn pair(mutex: &Mutex) {
    let guard = mutex.lock().await.expect("the server serves");
    guard.release().await.expect("the server serves");
}

fn leasehold(
    group: &mut Group<'_>,
    name: &str,
    runtime: &Runtime,
    backend: impl LockBackend,
) -> Result<()> {
    let locks = LockClient::new(backend);
    let mutex = locks.mutex(KEY)?;
    group.bench_function(name, |bencher| {
        bencher.to_async(runtime).iter(|| pair(&mutex));
    });
    runtime.block_on(locks.shutdown())?;
    Ok(())
}

fn on_servers(group: &mut Group<'_>) -> Result<()> {
    let server = RedisServer::start();
    floors(group, &server.url())?;
    let runtime = real_time()?;
    let backend = runtime.block_on(RedisBackend::connect(&server.url()))?;
    leasehold(group, "leasehold redis-rs", &runtime, backend)?;
    let backend = runtime.block_on(FredBackend::connect(&server.url()))?;
    leasehold(group, "leasehold fred", &runtime, backend)
}

fn on_the_simulator(group: &mut Group<'_>) -> Result<()> {
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build()?;
    let options = SimOptions::new(1)
        .with_latency(Latency::ZERO)
        .with_log_limit(16);
    let server = runtime.block_on(async { SimServer::with_options(options) });
    leasehold(group, "leasehold sim", &runtime, server.client("bench"))
}

fn all(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sequential_pair");
    on_servers(&mut group).expect("the server that was just started serves");
    on_the_simulator(&mut group).expect("the simulator serves");
    group.finish();
}

criterion_group!(pairs, all);
criterion_main!(pairs);
