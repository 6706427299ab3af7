//! One reader/writer lock: 1, 16 or 256 readers side by side, and a writer that comes every 10 ms.

use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use leasehold_benches::Result;
use leasehold_benches::figures::Transport;
use leasehold_benches::harness::{Scene, side_by_side};
use leasehold_benches::library::Library;
use leasehold_benches::lock::{Pair, Reader, Writer};

fn read_mostly(criterion: &mut Criterion, library: Library) -> Result<()> {
    let scene = Scene::new(Transport::Tcp)?;
    let mut group = criterion.benchmark_group(format!("rw/{}", library.name()));
    group.sample_size(10);
    for readers in [1, 16, 256] {
        let (key, locks) = (
            format!("rw-{readers}"),
            scene.block_on(library.connect(&scene.url()))?,
        );
        let reading = (0..readers).map(|_| Ok(Reader(locks.rw_lock(&key)?)));
        let reading = Arc::new(reading.collect::<Result<Vec<_>>>()?);
        let own = scene.block_on(library.connect(&scene.url()))?;
        let writer = Writer(own.rw_lock(&key)?);
        let writing = scene.spawn(async move {
            while writer.pair().await.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        group.throughput(Throughput::Elements(readers));
        side_by_side(
            &mut group,
            &scene,
            BenchmarkId::new("reads", readers),
            &reading,
        );
        writing.abort();
        scene.block_on(own.shutdown())?;
        scene.block_on(locks.shutdown())?;
    }
    group.finish();
    Ok(())
}

fn all(criterion: &mut Criterion) {
    for library in Library::ALL {
        read_mostly(criterion, library).expect("the server that was just started serves");
    }
}

criterion_group!(benches, all);
criterion_main!(benches);
