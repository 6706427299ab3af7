//! A machine: its own clock, and everything that runs on it, which can be stopped and started.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use leasehold_api::{BoxFuture, Moment, Runtime};
use tokio::time::Instant;

use crate::world::World;

/// The fastest clock is this much faster than the slowest one, in parts of 1,000,000.
const FASTEST: u64 = 10_000;
/// The true time of day at the beginning.
const EPOCH: Duration = Duration::from_secs(1_800_000_000);

#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) world: Arc<World>,
    /// What its clock showed at the beginning.
    ahead: Duration,
    /// How much faster it runs than the slowest clock, in parts of 1,000,000.
    fast: u64,
    /// Its time of day is never further off than half of this.
    apart: Duration,
    /// What its program has been told of that.
    pub(crate) declared: Option<Duration>,
    started: Instant,
    stopped: Mutex<Option<Vec<Waker>>>,
}

impl Machine {
    /// A machine whose clock shows any time of a day, and runs up to 1 % fast.
    pub(crate) fn new(world: &Arc<World>) -> Arc<Self> {
        let day = Duration::from_secs(24 * 60 * 60);
        let (apart, declared) = world.clocks.of_machine(world.random());
        Arc::new(Self {
            world: Arc::clone(world),
            ahead: world.up_to(day),
            fast: match world.random() % 4 {
                0 => 0,
                1 => FASTEST,
                _ => world.random() % FASTEST,
            },
            apart,
            declared,
            started: world.started,
            stopped: Mutex::default(),
        })
    }

    /// A machine whose clock begins at zero and is right, for the suite: its cases know exact times.
    #[allow(dead_code, reason = "each test target uses a part")]
    pub(crate) fn exact(world: &Arc<World>) -> Arc<Self> {
        let machine = Arc::into_inner(Self::new(world)).expect("ours");
        Arc::new(Self {
            ahead: Duration::ZERO,
            fast: 0,
            ..machine
        })
    }

    fn stopped(&self) -> MutexGuard<'_, Option<Vec<Waker>>> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing runs on it any more. Its clock goes on, and what it has sent arrives.
    pub(crate) fn stop(&self) {
        self.stopped().get_or_insert_default();
    }

    /// It goes on.
    pub(crate) fn start(&self) {
        let wakers = self.stopped().take();
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Runs a task on the machine.
    pub(crate) fn run<'a, T>(
        self: &Arc<Self>,
        task: impl Future<Output = T> + Send + 'a,
    ) -> OnMachine<'a, T> {
        OnMachine {
            machine: Arc::clone(self),
            task: Box::pin(task),
        }
    }
}

/// A task that goes on only while its machine runs.
pub(crate) struct OnMachine<'a, T> {
    machine: Arc<Machine>,
    task: BoxFuture<'a, T>,
}

impl<T> Future for OnMachine<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        if let Some(wakers) = &mut *self.machine.stopped() {
            wakers.push(cx.waker().clone());
            return Poll::Pending;
        }
        self.task.as_mut().poll(cx)
    }
}

/// The runtime of a program on a machine.
#[derive(Clone, Debug)]
pub(crate) struct Program(pub(crate) Arc<Machine>);

impl Runtime for Program {
    fn now(&self) -> Moment {
        let elapsed = self.0.started.elapsed();
        let faster = elapsed.as_nanos() * u128::from(self.0.fast) / 1_000_000;
        let faster = Duration::from_nanos(u64::try_from(faster).expect("short"));
        Moment::from_origin(self.0.ahead + elapsed + faster)
    }

    /// It is set at any moment, ahead and back.
    fn time_of_day(&self) -> Option<Duration> {
        let ahead = self.0.world.up_to(self.0.apart);
        Some(EPOCH + self.0.started.elapsed() + ahead - self.0.apart / 2)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        // Rounded down, it could be no time at all, forever.
        let nanos = (duration.as_nanos() * 1_000_000).div_ceil(1_000_000 + u128::from(self.0.fast));
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        Box::pin(tokio::time::sleep(Duration::from_nanos(nanos)))
    }

    fn spawn(&self, future: BoxFuture<'static, ()>) {
        let machine = Arc::clone(&self.0);
        tokio::spawn(OnMachine {
            machine,
            task: future,
        });
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.0.world.random().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }
}
