//! Semaphores: one permit that is free, and sixteen tasks that share four.

use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use leasehold_benches::Result;
use leasehold_benches::figures::Transport;
use leasehold_benches::harness::{Scene, one_by_one, side_by_side};
use leasehold_benches::library::Library;
use leasehold_benches::lock::Permit;

fn permits(criterion: &mut Criterion, library: Library) -> Result<()> {
    let scene = Scene::new(Transport::Tcp)?;
    let locks = scene.block_on(library.connect(&scene.url()))?;
    let mut group = criterion.benchmark_group(format!("semaphore/{}", library.name()));
    let alone = Permit(locks.semaphore("alone", 4)?);
    one_by_one(&mut group, &scene, "free", &alone);
    group.throughput(Throughput::Elements(16));
    let sharing = (0..16).map(|_| Ok(Permit(locks.semaphore("shared", 4)?)));
    let sharing = Arc::new(sharing.collect::<Result<Vec<_>>>()?);
    let id = BenchmarkId::new("four permits", "16 tasks");
    side_by_side(&mut group, &scene, id, &sharing);
    group.finish();
    scene.block_on(locks.shutdown())?;
    Ok(())
}

fn all(criterion: &mut Criterion) {
    for library in Library::ALL {
        permits(criterion, library).expect("the server that was just started serves");
    }
}

criterion_group!(benches, all);
criterion_main!(benches);
