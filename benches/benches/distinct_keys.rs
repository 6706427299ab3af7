//! Tasks of one client, each with a lock that nobody else wants: a pair of each, side by side.

use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use leasehold_benches::Result;
use leasehold_benches::harness::{Scene, TRANSPORTS, side_by_side};
use leasehold_benches::library::Library;
use leasehold_benches::lock::FloorLock;

fn on_servers(criterion: &mut Criterion) -> Result<()> {
    for transport in TRANSPORTS {
        let scene = Scene::new(transport)?;
        let mut group = criterion.benchmark_group(format!("distinct_keys/{}", scene.name()));
        for tasks in [1, 16, 64, 256] {
            group.throughput(Throughput::Elements(tasks));
            for library in Library::ALL {
                let floor = scene.block_on(library.floor(&scene.url()))?;
                let floors = (0..tasks).map(|task| FloorLock::new(&floor, format!("floor-{task}")));
                let id = BenchmarkId::new(format!("floor {}", library.name()), tasks);
                side_by_side(&mut group, &scene, id, &Arc::new(floors.collect()));
                let locks = scene.block_on(library.connect(&scene.url()))?;
                let mutexes = (0..tasks).map(|task| locks.mutex(format!("leasehold-{task}")));
                let mutexes = mutexes.collect::<std::result::Result<_, _>>()?;
                let id = BenchmarkId::new(format!("leasehold {}", library.name()), tasks);
                side_by_side(&mut group, &scene, id, &Arc::new(mutexes));
                scene.block_on(locks.shutdown())?;
            }
        }
        group.finish();
    }
    Ok(())
}

#[cfg(feature = "peers")]
fn peers(criterion: &mut Criterion) -> Result<()> {
    use leasehold_benches::figures::Transport;
    use leasehold_benches::peers::Peers;

    let scene = Scene::new(Transport::Tcp)?;
    let mut group = criterion.benchmark_group("distinct_keys/peers");
    for tasks in [1, 16, 64, 256] {
        group.throughput(Throughput::Elements(tasks));
        let peers = scene.block_on(Peers::connect(&scene.url(), tasks as usize))?;
        side_by_side(
            &mut group,
            &scene,
            BenchmarkId::new("rslock", tasks),
            &peers.rslock,
        );
        let id = BenchmarkId::new("redis-lock", tasks);
        side_by_side(&mut group, &scene, id, &peers.redis_lock);
        let id = BenchmarkId::new("distributed-lock-redis", tasks);
        side_by_side(&mut group, &scene, id, &peers.distributed_lock_redis);
    }
    group.finish();
    Ok(())
}

fn all(criterion: &mut Criterion) {
    on_servers(criterion).expect("the server that was just started serves");
    #[cfg(feature = "peers")]
    peers(criterion).expect("the server that was just started serves");
}

criterion_group!(benches, all);
criterion_main!(benches);
