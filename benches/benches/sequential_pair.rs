//! One task takes a free lock and gives it back, again and again.
//!
//! The floors on both client libraries, leasehold on both, and leasehold on the simulator, which
//! shows what the client itself costs. Only ratios within one run mean anything.

use std::error::Error;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use leasehold_benches::fred_floor::FredFloor;
use leasehold_benches::redis_rs_floor::RedisRsFloor;
use leasehold_test_servers::RedisServer;
use tokio::runtime::Runtime;

type Anything = Box<dyn Error>;

fn real_time() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
}

fn floors(criterion: &mut Criterion) -> Result<(), Anything> {
    let server = RedisServer::start();
    let mut group = criterion.benchmark_group("sequential_pair");

    let runtime = real_time()?;
    let floor = runtime.block_on(RedisRsFloor::connect(&server.url()))?;
    group.bench_function("floor redis-rs", |bencher| {
        bencher.to_async(&runtime).iter(|| async {
            let both = floor.pair(black_box("floor"), 42).await;
            assert!(both.is_ok_and(|both| both), "it is free, and ours");
        });
    });

    let floor = runtime.block_on(FredFloor::connect(&server.url()))?;
    group.bench_function("floor fred", |bencher| {
        bencher.to_async(&runtime).iter(|| async {
            let both = floor.pair(black_box("floor"), 42).await;
            assert!(both.is_ok_and(|both| both), "it is free, and ours");
        });
    });
    group.finish();
    Ok(())
}

fn all(criterion: &mut Criterion) {
    floors(criterion).expect("the server that was just started serves");
}

criterion_group!(pairs, all);
criterion_main!(pairs);
