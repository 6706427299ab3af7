//! One task takes a free lock and gives it back, again and again: a mutex, the floors, leasehold on
//! the simulator, and other libraries with the feature `peers`.

use criterion::{Criterion, criterion_group, criterion_main};
use leasehold::LockClient;
use leasehold::sim::{Latency, SimOptions, SimServer};
use leasehold_benches::Result;
use leasehold_benches::harness::{Scene, TRANSPORTS, one_by_one};
use leasehold_benches::library::Library;
use leasehold_benches::lock::FloorLock;
use tokio::runtime::Builder;

fn on_servers(criterion: &mut Criterion) -> Result<()> {
    for transport in TRANSPORTS {
        let scene = Scene::new(transport)?;
        let mut group = criterion.benchmark_group(format!("sequential/{}", scene.name()));
        for library in Library::ALL {
            let floor = scene.block_on(library.floor(&scene.url()))?;
            let floor = FloorLock::new(&floor, "floor");
            one_by_one(
                &mut group,
                &scene,
                &format!("floor {}", library.name()),
                &floor,
            );
            let locks = scene.block_on(library.connect(&scene.url()))?;
            let mutex = locks.mutex("leasehold")?;
            one_by_one(
                &mut group,
                &scene,
                &format!("leasehold {}", library.name()),
                &mutex,
            );
            scene.block_on(locks.shutdown())?;
        }
        group.finish();
    }
    Ok(())
}

fn on_the_simulator(criterion: &mut Criterion) -> Result<()> {
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build()?;
    let options = SimOptions::new(1)
        .with_latency(Latency::ZERO)
        .with_log_limit(16);
    let server = runtime.block_on(async { SimServer::with_options(options) });
    let locks = LockClient::new(server.client("bench"));
    let mutex = locks.mutex("sequential")?;
    criterion.bench_function("sequential/simulator/leasehold", |bencher| {
        bencher.to_async(&runtime).iter(async || {
            let guard = mutex.lock().await.expect("the simulator serves");
            guard.release().await.expect("the simulator serves");
        });
    });
    runtime.block_on(locks.shutdown())?;
    Ok(())
}

#[cfg(feature = "peers")]
fn peers(criterion: &mut Criterion) -> Result<()> {
    use leasehold_benches::figures::Transport;
    use leasehold_benches::peers::Peers;

    let scene = Scene::new(Transport::Tcp)?;
    let peers = scene.block_on(Peers::connect(&scene.url(), 1))?;
    let mut group = criterion.benchmark_group("sequential/peers");
    one_by_one(&mut group, &scene, "rslock", &peers.rslock[0]);
    one_by_one(&mut group, &scene, "redis-lock", &peers.redis_lock[0]);
    let distributed = &peers.distributed_lock_redis[0];
    one_by_one(&mut group, &scene, "distributed-lock-redis", distributed);
    group.finish();
    Ok(())
}

fn all(criterion: &mut Criterion) {
    on_servers(criterion).expect("the server that was just started serves");
    on_the_simulator(criterion).expect("the simulator serves");
    #[cfg(feature = "peers")]
    peers(criterion).expect("the server that was just started serves");
}

criterion_group!(benches, all);
criterion_main!(benches);
