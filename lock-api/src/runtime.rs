//! The source of time, randomness and tasks.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_channel::oneshot;
use futures_util::future::{AbortHandle, Either, abortable, select};

use crate::time::micros;

/// A boxed future that can be sent between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A point in time on the clock of one [`Runtime`]. Do not compare points of different runtimes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// Creates a point from the time since the clock's origin.
    pub const fn from_origin(since: Duration) -> Self {
        Self(since)
    }

    /// Time since the clock's origin.
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// This point plus `by`, or the latest point if that overflows.
    #[must_use]
    pub const fn saturating_add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }

    /// This point minus `by`, or the origin if that is before it.
    #[must_use]
    pub const fn saturating_sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(by))
    }

    /// The time from `earlier` to this point, or zero if `earlier` is later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Time, randomness and tasks for the client.
///
/// The client reads clocks, sleeps, spawns tasks and draws random bytes only through this trait.
/// The [backend](crate::LockBackend::runtime) supplies it, so simulated and real time cannot be
/// mixed.
///
/// Backends that do real I/O use `TokioRuntime` (feature `tokio`). It has a *renewal thread*: one
/// thread for each process, with a tokio runtime of its own, which runs renewals. A program that
/// blocks its own runtime then keeps its locks. This needs a connection that is driven there too: see
/// `TokioRuntime::renewal_thread` and
/// [`independent_renewal`](crate::Capabilities::independent_renewal).
pub trait Runtime: Send + Sync + fmt::Debug {
    /// Reads the local clock, which decides whether a guard is valid. The clock is monotonic and
    /// **counts suspend** (`CLOCK_BOOTTIME` on Linux).
    fn now(&self) -> Moment;

    /// Sleeps for at least `duration` of running time.
    ///
    /// The time of a suspend may or may not count. After waking, check a deadline against
    /// [`now`](Self::now).
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// Spawns a task that runs `future` to completion. [`spawn_task`](trait.Runtime.html#method.spawn_task) returns a
    /// handle of it.
    fn spawn(&self, future: BoxFuture<'static, ()>);

    /// Spawns a task on a thread where blocking user code cannot starve it.
    ///
    /// The default calls [`spawn`](Self::spawn), for a runtime without such a thread.
    fn spawn_on_renewal_thread(&self, future: BoxFuture<'static, ()>) {
        self.spawn(future);
    }

    /// The time of day by this machine's clock, since 1970. `None`, the default, if there is none.
    ///
    /// No two machines agree on it. It is read only where the user has declared how far they are apart.
    fn time_of_day(&self) -> Option<Duration> {
        None
    }

    /// Fills `bytes` with random bytes. The client draws secrets from them.
    ///
    /// The source is the operating system in production and the seed in a simulation.
    fn fill_random(&self, bytes: &mut [u8]);

    /// The id of the process. If it changes, the client has been forked and draws a new session.
    fn process_id(&self) -> u32 {
        std::process::id()
    }

    /// The label of clients of this process, unless the user sets another one.
    fn default_label(&self) -> String {
        "client".into()
    }

    /// Returns 64 random bits.
    fn random_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill_random(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

impl dyn Runtime + '_ {
    /// Awaits `future` for at most `limit` of running time, from now on. Returns `None` if it doesn't complete in
    /// time, and drops it. It is polled before the timer, so with a limit of zero it may still complete.
    ///
    /// # Panics
    /// As [`sleep`](Runtime::sleep).
    ///
    /// # Cancel safety
    /// This method is cancel safe if `future` is.
    ///
    /// # Examples
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold_api::LockClient;
    /// # async fn example(locks: LockClient, work: impl Future<Output = ()>) {
    /// // On the simulator, the limit is virtual time.
    /// if locks.runtime().timeout(Duration::from_secs(1), work).await.is_none() {
    ///     println!("the work took longer than 1 s");
    /// }
    /// # }
    /// ```
    pub fn timeout<F: Future>(
        &self,
        limit: Duration,
        future: F,
    ) -> impl Future<Output = Option<F::Output>> + use<F> {
        before(self.sleep(limit), future)
    }

    /// Returns a random duration in `from..to`, or `from` if that range is empty.
    pub(crate) fn random_between(&self, from: Duration, to: Duration) -> Duration {
        let spread = micros(to.saturating_sub(from));
        if spread == 0 {
            return from;
        }
        from + Duration::from_micros(self.random_u64() % spread)
    }

    /// Returns a random duration between half of `max` and `max`.
    pub(crate) fn jittered(&self, max: Duration) -> Duration {
        self.random_between(max / 2, max)
    }

    /// Spawns a task, and returns a handle to await or abort it.
    ///
    /// # Examples
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold_api::LockClient;
    /// # async fn example(locks: LockClient) {
    /// // On the simulator, the task runs in virtual time.
    /// let runtime = locks.runtime();
    /// let task = locks.runtime().spawn_task(async move {
    ///     runtime.sleep(Duration::from_secs(1)).await;
    ///     7
    /// });
    /// assert_eq!(task.await, Some(7));
    /// # }
    /// ```
    pub fn spawn_task<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (sender, ended) = oneshot::channel();
        let (future, abort) = abortable(future);
        self.spawn(Box::pin(async move {
            if let Ok(output) = future.await {
                // Nobody may be waiting for it.
                let _ = sender.send(output);
            }
        }));
        Task { abort, ended }
    }
}

/// A task that [`spawn_task`](trait.Runtime.html#method.spawn_task) has spawned.
///
/// Await it for its output. The result is `None` if it was aborted or has panicked, or if its executor is gone. Its future
/// has been dropped then. Dropping the handle lets the task go on.
#[derive(Debug)]
pub struct Task<T> {
    abort: AbortHandle,
    ended: oneshot::Receiver<T>,
}

impl<T> Task<T> {
    /// Drops the future of the task at its current await point, as soon as the executor gets to it.
    pub fn abort(&self) {
        self.abort.abort();
    }
}

impl<T> Future for Task<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.ended).poll(cx).map(Result::ok)
    }
}

/// The output of `future`, or `None` if `timer` completes first.
pub(crate) async fn before<F: Future>(
    timer: impl Future<Output = ()>,
    future: F,
) -> Option<F::Output> {
    match select(pin!(future), pin!(timer)).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(_) => None,
    }
}
