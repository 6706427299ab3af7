//! One mutex and 2, 8 or 32 clients: for no time, for 5 ms, and a queue of parked waiters that gets
//! through; beside the locks on `BLPOP`.

use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use leasehold_benches::Result;
use leasehold_benches::contenders::{mutexes, signal_locks, token_locks};
use leasehold_benches::drain::{Parked, drain};
use leasehold_benches::figures::Transport;
use leasehold_benches::harness::{Group, Scene, handing_over};
use leasehold_benches::library::Library;

const HOLDS: [(&str, Duration); 2] = [
    ("held 0 ms", Duration::ZERO),
    ("held 5 ms", Duration::from_millis(5)),
];

fn rates(criterion: &mut Criterion, library: Library) -> Result<()> {
    let scene = Scene::new(Transport::Tcp)?;
    for (hold_name, hold) in HOLDS {
        let name = format!("contended/{}/{hold_name}", library.name());
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(1)).sample_size(10);
        for count in [2, 8, 32] {
            let key = format!("{count}-{}", hold.as_millis());
            let (clients, own) = scene.block_on(mutexes(library, &scene.url(), &key, count))?;
            let id = BenchmarkId::new("leasehold", count);
            handing_over(&mut group, &scene, id, &Arc::new(own), hold);
            drop(clients);
            let key = format!("signal-{key}");
            let signals = scene.block_on(signal_locks(library, &scene.url(), &key, count))?;
            let id = BenchmarkId::new("BLPOP, a signal", count);
            handing_over(&mut group, &scene, id, &Arc::new(signals), hold);
            let key = format!("token-{key}");
            let tokens = scene.block_on(token_locks(library, &scene.url(), &key, count))?;
            let id = BenchmarkId::new("BLPOP, a token", count);
            handing_over(&mut group, &scene, id, &Arc::new(tokens), hold);
        }
        group.finish();
    }
    Ok(())
}

fn drains(group: &mut Group<'_>, library: Library, count: usize) -> Result<()> {
    let scene = Scene::new(Transport::Tcp)?;
    let (clients, mut own) =
        scene.block_on(mutexes(library, &scene.url(), "drained", count + 1))?;
    let gate = own.pop().expect("one more than waiters");
    let own = Arc::new(own);
    group.bench_function(BenchmarkId::new(library.name(), count), |bencher| {
        bencher.iter_custom(|times| {
            let mut took = Duration::ZERO;
            for _ in 0..times {
                let parked = Parked::OnLeasehold(&clients[0], "drained");
                let one = scene.block_on(drain(&gate, &own, parked));
                took += one.expect("the server serves");
            }
            took
        });
    });
    Ok(())
}

fn all(criterion: &mut Criterion) {
    for library in Library::ALL {
        rates(criterion, library).expect("the server that was just started serves");
    }
    let mut group = criterion.benchmark_group("contended/drain");
    group.sample_size(10);
    for count in [2, 8, 32] {
        group.throughput(Throughput::Elements(count as u64));
        for library in Library::ALL {
            drains(&mut group, library, count).expect("the server that was just started serves");
        }
    }
    group.finish();
}

criterion_group!(benches, all);
criterion_main!(benches);
