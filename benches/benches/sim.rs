//! The simulator's overhead: many clients contend for one lock on plain tokio with a paused clock, on
//! the simulator's own executor, and on its tokio driver.
//!
//! All three run the same code. Each client calls the state machine directly and sleeps for 1 ms per
//! message. So they differ only in executor, timers and random choices. Only ratios within one run
//! are meaningful. The benches `lock clients` and `faults and checker` run whole simulations of 3
//! clients that lock 4 times each. The group `sim_shrink` simplifies a failing run, which takes many
//! such simulations.

use std::future::Future;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use futures_channel::oneshot;
use leasehold::LockClient;
use leasehold::sim::{
    Ending, Exploration, FaultMix, SHRINK_RUNS, Scheduling, SimOptions, SimServer, Simulation, Site,
};
use leasehold_api::machine::{Command, Env, Payload, Reach, Reply, Settings, State, step};
use leasehold_api::{
    Acquire, AcquireReply, Key, LockSpec, Mode, Operation, OwnerId, Release, ServerTime, SessionId,
    Wait,
};
use leasehold_benches::figures::sim::play;
use leasehold_verifier::{Stress, try_only};

const MESSAGE: Duration = Duration::from_millis(1);
const MINUTE: Duration = Duration::from_secs(60);

/// A debug build only shows that the benches work. It is slow, because the state machine checks its
/// invariants there.
const LARGE: usize = if cfg!(debug_assertions) { 200 } else { 10_000 };
const CALLS: usize = if cfg!(debug_assertions) { 2 } else { 4 };

/// Where the clients run.
trait Host: Clone + Send + Sync + 'static {
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send;
    fn elapsed(&self) -> Duration;
}

#[derive(Clone)]
struct Tokio(tokio::time::Instant);

impl Host for Tokio {
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(duration)
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

impl Host for SimServer {
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        Self::sleep(self, duration)
    }

    fn elapsed(&self) -> Duration {
        Self::elapsed(self)
    }
}

/// The state of one key, and the channel of each waiting client.
struct Lock {
    key: Key,
    state: Mutex<(State, Vec<Option<oneshot::Sender<()>>>)>,
}

fn session(client: usize) -> SessionId {
    SessionId::from_bytes((client as u128).to_le_bytes())
}

fn client_of(session: SessionId) -> usize {
    u128::from_le_bytes(*session.as_bytes()) as usize
}

impl Lock {
    fn new(clients: usize) -> Arc<Self> {
        let waiting = (0..clients).map(|_| None).collect();
        Arc::new(Self {
            key: Key::new("job").expect("a valid name"),
            state: Mutex::new((State::default(), waiting)),
        })
    }

    fn step(&self, now: ServerTime, command: &Command) -> Reply {
        let env = Env {
            now,
            settings: Settings::default(),
            reachable: &|_| Reach::Listening,
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (reply, messages) = step(&mut state.0, env, command);
        for message in messages {
            let waiter = state.1[client_of(message.to)].take();
            if let (Payload::Granted { .. }, Some(waiter)) = (message.payload, waiter) {
                // The send fails if the client has stopped waiting.
                let _ = waiter.send(());
            }
        }
        reply
    }

    fn wait(&self, client: usize) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1[client] = Some(sender);
        receiver
    }
}

fn operation(client: usize, sequence: u64) -> Operation {
    Operation {
        session: session(client),
        sequence,
        owner: OwnerId::from_u64(client as u64),
    }
}

fn acquire(key: &Key, operation: Operation, before: ServerTime) -> Command {
    let spec = LockSpec::mutex().with_waiter_lease(MINUTE);
    let (key, spec) = (key.clone(), spec.expect("a valid waiter lease"));
    let request = Acquire::new(key, spec, Mode::Exclusive, operation, MINUTE, before);
    let request = request.expect("a valid request");
    Command::Acquire(request.with_wait(Wait::new(true)))
}

fn release(key: &Key, operation: Operation) -> Command {
    Command::Release(Release::new(key.clone(), operation))
}

/// The server's clock after `elapsed`.
fn at(elapsed: Duration) -> ServerTime {
    let elapsed = u64::try_from(elapsed.as_micros()).expect("a short run");
    ServerTime::from_micros(1_000_000_000_000 + elapsed)
}

async fn client<H: Host>(host: H, lock: Arc<Lock>, client: usize, rounds: u64) {
    let now = || at(host.elapsed());
    for sequence in 1..=rounds {
        host.sleep(MESSAGE).await;
        let before = now().saturating_add(MESSAGE);
        let operation = operation(client, sequence);
        let request = acquire(&lock.key, operation, before);
        let granted = lock.wait(client);
        let reply = lock.step(now(), &request);
        host.sleep(MESSAGE).await;
        if let Reply::Acquire(AcquireReply::Queued(_)) = reply {
            granted.await.expect("the lock is granted to this client");
        }
        host.sleep(MESSAGE).await;
        black_box(lock.step(now(), &release(&lock.key, operation)));
        host.sleep(MESSAGE).await;
    }
}

/// Runs one client's commands without a runtime. No executor can be faster than this.
fn on_no_runtime(rounds: u64) {
    let lock = Lock::new(1);
    for sequence in 1..=rounds {
        let now = at(MESSAGE * 4 * u32::try_from(sequence).expect("few rounds"));
        let operation = operation(0, sequence);
        let request = acquire(&lock.key, operation, now.saturating_add(MESSAGE));
        let granted = lock.wait(0);
        black_box(lock.step(now, &request));
        drop(granted);
        black_box(lock.step(now, &release(&lock.key, operation)));
    }
}

fn paused() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O starts")
}

fn on_plain_tokio(clients: usize, rounds: u64) {
    paused().block_on(async {
        let (host, lock) = (Tokio(tokio::time::Instant::now()), Lock::new(clients));
        let tasks: Vec<_> = (0..clients)
            .map(|n| tokio::spawn(client(host.clone(), Arc::clone(&lock), n, rounds)))
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
    });
}

async fn all_clients(sim: SimServer, clients: usize, rounds: u64) {
    let lock = Lock::new(clients);
    let tasks: Vec<_> = (0..clients)
        .map(|n| sim.spawn(client(sim.clone(), Arc::clone(&lock), n, rounds)))
        .collect();
    for task in tasks {
        task.await;
    }
}

fn options() -> SimOptions {
    SimOptions::new(1).log_limit(0).recording(false)
}

fn on_own_executor<F: Future<Output = ()>>(scenario: impl FnOnce(SimServer) -> F) {
    let simulation = Simulation::new(options()).step_limit(u64::MAX);
    let report = simulation.run(scenario);
    assert_eq!(report.ending, Ending::Completed(()));
}

fn on_tokio_driver(clients: usize, rounds: u64) {
    paused().block_on(async {
        let sim = SimServer::with_options(options());
        sim.spawn(all_clients(sim.clone(), clients, rounds)).await;
    });
}

/// The same workload on turmoil, with one host per client. It does not use turmoil's network.
#[cfg(feature = "peers")]
mod peers {
    use super::{Duration, Host, Lock, MESSAGE, client};

    #[derive(Clone)]
    struct Turmoil;

    impl Host for Turmoil {
        fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
            tokio::time::sleep(duration)
        }

        fn elapsed(&self) -> Duration {
            turmoil::sim_elapsed().expect("this runs inside a simulation")
        }
    }

    pub(super) fn on_turmoil(clients: usize, rounds: u64) {
        let mut builder = turmoil::Builder::new();
        builder
            .tick_duration(MESSAGE)
            .simulation_duration(Duration::from_secs(1_000_000));
        let mut sim = builder.build();
        let lock = Lock::new(clients);
        for n in 0..clients {
            let lock = std::sync::Arc::clone(&lock);
            sim.client(format!("client-{n}"), async move {
                client(Turmoil, lock, n, rounds).await;
                Ok(())
            });
        }
        sim.run().expect("no client fails");
    }
}

fn contended(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sim_contended");
    group.sample_size(10);
    for clients in [1, 100, LARGE] {
        let rounds = (1_000 / clients as u64).max(1);
        group.throughput(Throughput::Elements(clients as u64 * rounds));
        let mut bench = |name, run: &dyn Fn()| {
            let id = BenchmarkId::new(name, clients);
            group.bench_function(id, |bencher| bencher.iter(run));
        };
        if clients == 1 {
            bench("no runtime", &|| on_no_runtime(rounds));
        }
        bench("plain tokio", &|| on_plain_tokio(clients, rounds));
        bench("own executor", &|| {
            on_own_executor(|sim| all_clients(sim, clients, rounds));
        });
        bench("tokio driver", &|| on_tokio_driver(clients, rounds));
        #[cfg(feature = "peers")]
        if clients <= 100 {
            bench("turmoil", &|| peers::on_turmoil(clients, rounds));
        }
    }
    group.finish();
}

fn runs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sim_run");
    group.sample_size(10);
    let mut bench = |name, run: &dyn Fn()| {
        let id = format!("3 clients, 4 rounds, {name}");
        group.bench_function(id, |bencher| bencher.iter(run));
    };
    bench("plain tokio", &|| on_plain_tokio(3, 4));
    bench("own executor", &|| {
        on_own_executor(|sim| all_clients(sim, 3, 4));
    });
    #[cfg(feature = "peers")]
    bench("turmoil", &|| peers::on_turmoil(3, 4));
    bench("lock clients", &|| play(3, 4).expect("the server answers"));
    group.bench_function("3 clients, 4 rounds, faults and checker", |bencher| {
        let stress = Stress::new().with_size(3, 4);
        let mut seed = 0;
        bencher.iter(|| {
            seed += 1;
            let options = SimOptions::new(seed).log_limit(0);
            let run = stress.run(options.recording(false), Scheduling::Random);
            assert_eq!(run.violations, []);
        });
    });
    group.bench_function(format!("every order of 3 x {CALLS}"), |bencher| {
        let options = options().atomic_calls(true);
        bencher.iter(|| {
            let scenario = |sim| try_only(sim, 3, CALLS);
            let each = |_: &_| ControlFlow::Continue(());
            Simulation::new(options).run_all(&[Site::Order], scenario, each)
        });
    });
    group.finish();
}

/// Three tasks read a counter and write it back later. An update can be lost even without faults.
async fn lost_update(sim: SimServer) {
    let count = Arc::new(AtomicU32::new(0));
    let tasks = ["a", "b", "c"].map(|name| {
        let (locks, count, task_sim) = (
            LockClient::new(sim.client(name)),
            count.clone(),
            sim.clone(),
        );
        sim.spawn(async move {
            let mutex = locks.mutex("job").expect("a valid name");
            drop(mutex.lock().await.expect("the client retries"));
            let seen = count.load(Ordering::Relaxed);
            let pause = Duration::from_millis(task_sim.draw(3).into());
            task_sim.sleep(pause).await;
            count.store(seen + 1, Ordering::Relaxed);
        })
    });
    for task in tasks {
        task.await;
    }
    assert_eq!(count.load(Ordering::Relaxed), 3, "an update is lost");
}

/// Simplifies a failing run. The first bench also finds the run and builds its history.
fn shrinking(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sim_shrink");
    group.sample_size(10);
    group.bench_function("lost update, from the first seed on", |bencher| {
        let exploration = Exploration::new().fault_mix(FaultMix::all());
        bencher.iter(|| exploration.find(lost_update).expect("a seed fails"));
    });
    group.bench_function("a stress run", |bencher| {
        let stress = Stress::new().with_careless_resource();
        let run = |seed| stress.run(SimOptions::new(seed).log_limit(0), Scheduling::Random);
        let mut failed = (0..).map(run).filter(|run| !run.violations.is_empty());
        let tape = failed.next().expect("a seed fails").report.tape;
        bencher.iter(|| stress.simplest(tape.clone(), SHRINK_RUNS));
    });
    group.finish();
}

criterion_group!(benches, contended, runs, shrinking);
criterion_main!(benches);
