//! Locks that one client holds, all renewed once by hand: 1, 1,000 and 100,000.
//!
//! What the renewals in the background take of a core is a matter of minutes, and in the report.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use futures_util::future::try_join_all;
use leasehold::MutexGuard;
use leasehold_benches::Result;
use leasehold_benches::figures::{Transport, held};
use leasehold_benches::harness::Scene;
use leasehold_benches::library::Library;

/// How many are renewed at the same time.
const AT_ONCE: usize = 200;

async fn renew_all(guards: &[MutexGuard]) {
    for batch in guards.chunks(AT_ONCE) {
        let renewed = try_join_all(batch.iter().map(MutexGuard::renew)).await;
        renewed.expect("the server serves, and the lock is held");
    }
}

fn renewals(criterion: &mut Criterion, library: Library) -> Result<()> {
    // A debug build only shows that it works.
    let most = if cfg!(debug_assertions) {
        2_000
    } else {
        100_000
    };
    let mut group = criterion.benchmark_group(format!("renewal/{}", library.name()));
    group.sample_size(10);
    for count in [1, 1_000, most] {
        let scene = Scene::new(Transport::Tcp)?;
        let locks = scene.block_on(library.connect(&scene.url()))?;
        let guards = scene.block_on(held::hold(&locks, count))?;
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(BenchmarkId::new("all", count), |bencher| {
            bencher.iter(|| scene.block_on(renew_all(&guards)));
        });
        scene.block_on(held::give_back(guards))?;
        scene.block_on(locks.shutdown())?;
    }
    group.finish();
    Ok(())
}

fn all(criterion: &mut Criterion) {
    for library in Library::ALL {
        renewals(criterion, library).expect("the server that was just started serves");
    }
}

criterion_group!(benches, all);
criterion_main!(benches);
