//! Real time on a tokio runtime.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this file connects `Runtime` to real time, tasks and randomness"
)]

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::bounds::{self, MAX_LABEL_BYTES};
use crate::error::{BackendError, InvalidInput};
use crate::runtime::{BoxFuture, Moment, Runtime, before};

/// How long connecting tries again, and the pause between attempts.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(250);

/// The [`Runtime`] of backends that do real I/O.
///
/// It uses tokio's tasks and timers, the operating system's random source, and, on Linux, a clock
/// that counts suspend.
///
/// [`spawn_on_renewal_thread`](Runtime::spawn_on_renewal_thread) uses a separate thread with a
/// separate tokio runtime. A process has one such thread. It starts at the first use.
///
/// ```
/// use leasehold_api::{Runtime, TokioRuntime};
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() {
///     let runtime = TokioRuntime::current();
///     println!("{}", runtime.default_label());
/// }
/// ```
#[derive(Clone, Debug)]
pub struct TokioRuntime {
    handle: tokio::runtime::Handle,
}

impl TokioRuntime {
    /// Uses the tokio runtime of the caller.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn current() -> Self {
        Self {
            handle: tokio::runtime::Handle::current(),
        }
    }

    /// Uses the given tokio runtime. Its timer must be enabled.
    pub const fn new(handle: tokio::runtime::Handle) -> Self {
        Self { handle }
    }

    /// Fails if tokio's clock is paused, as by `#[tokio::test(start_paused = true)]`. It jumps to the next timer
    /// whenever a program waits for a server, so no server answers in time.
    ///
    /// # Errors
    /// [`InvalidInput`].
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// assert!(leasehold_api::TokioRuntime::check_clock().is_ok());
    /// # }
    /// ```
    pub fn check_clock() -> Result<(), InvalidInput> {
        let (shown, began) = (tokio::time::Instant::now(), std::time::Instant::now());
        while began.elapsed() < Duration::from_micros(1) {}
        if tokio::time::Instant::now() > shown {
            return Ok(());
        }
        let reason = "it is paused (start_paused, time::pause), so no real server answers in time; \
             use the simulator, or a clock that runs";
        Err(InvalidInput::setting("the clock of tokio", reason))
    }

    /// The tokio runtime of the renewal thread, for connections that its tasks depend on.
    ///
    /// Starts the thread if the process has none. Returns `None` if the thread cannot be started.
    ///
    /// A fork does not copy threads. A forked child starts a new renewal thread.
    pub fn renewal_thread() -> Option<tokio::runtime::Handle> {
        static RENEWAL_THREAD: Mutex<RenewalThread> = Mutex::new(RenewalThread(None));
        let mut renewal_thread = RENEWAL_THREAD
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        renewal_thread.of_process(std::process::id())
    }

    /// Sleeps like [`sleep`](Runtime::sleep), without boxing the future: for at least `duration`,
    /// and about a millisecond longer at most.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the timer. Nothing else happens.
    ///
    /// # Panics
    /// If this tokio runtime has no timer and the caller runs in it. On other executors, only if
    /// the renewal thread cannot be started and this runtime has no timer.
    pub fn timer(&self, duration: Duration) -> tokio::time::Sleep {
        // A sleep uses the timer of the runtime in which it is created. On the renewal thread, that
        // must be the thread's runtime: the user's program may starve ours.
        if IS_RENEWAL_THREAD.get() || self.is_inside() {
            return tokio::time::sleep(duration);
        }
        // The caller runs on another executor. Our runtime may be shut down, and its timer then
        // panics, or nobody may drive it. The timer of the renewal thread always works.
        let renewal_thread = Self::renewal_thread();
        let _inside = renewal_thread.as_ref().unwrap_or(&self.handle).enter();
        tokio::time::sleep(duration)
    }

    /// Awaits `future` for at most `limit`, like [`dyn Runtime::timeout`](trait.Runtime.html#method.timeout), without
    /// boxing the timer.
    ///
    /// # Cancel safety
    /// This method is cancel safe if `future` is.
    ///
    /// # Panics
    /// As [`timer`](Self::timer).
    ///
    /// # Examples
    /// ```
    /// # use std::future::pending;
    /// # use std::time::Duration;
    /// # use leasehold_api::TokioRuntime;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let runtime = TokioRuntime::current();
    /// let limit = Duration::from_millis(1);
    /// assert_eq!(runtime.timeout(limit, pending::<()>()).await, None);
    /// # }
    /// ```
    pub fn timeout<F: Future>(
        &self,
        limit: Duration,
        future: F,
    ) -> impl Future<Output = Option<F::Output>> + use<F> {
        before(self.timer(limit), future)
    }

    /// Runs the check that ends the connecting of a backend, and again after transient errors, for 5 s. Each run has
    /// [`CONNECT_TIMEOUT`](bounds::CONNECT_TIMEOUT).
    ///
    /// # Errors
    /// The error of the last run.
    ///
    /// # Cancel safety
    /// This method is cancel safe if the futures of `check` are.
    ///
    /// # Examples
    /// ```
    /// # use std::cell::Cell;
    /// # use leasehold_api::{BackendError, TokioRuntime};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let errors = Cell::new(Some(BackendError::unavailable("it starts")));
    /// let check = async || errors.take().map_or(Ok(()), Err);
    /// assert!(TokioRuntime::current().connect(check).await.is_ok());
    /// # }
    /// ```
    pub async fn connect<A, F>(&self, check: impl Fn() -> F) -> Result<A, BackendError>
    where
        F: Future<Output = Result<A, BackendError>>,
    {
        let until = self.now().saturating_add(CONNECT_WITHIN);
        loop {
            let checked = self.timeout(bounds::CONNECT_TIMEOUT, check()).await;
            let late = || Err(BackendError::unavailable("no connection in time"));
            match checked.unwrap_or_else(late) {
                Err(error) if error.is_transient() && self.now() < until => {
                    self.timer(PAUSE).await;
                }
                checked => return checked,
            }
        }
    }

    /// Whether the caller runs in this runtime. If so, the runtime is alive.
    fn is_inside(&self) -> bool {
        tokio::runtime::Handle::try_current().is_ok_and(|caller| caller.id() == self.handle.id())
    }
}

/// The process that has started the thread, and the thread's runtime.
struct RenewalThread(Option<(u32, tokio::runtime::Handle)>);

impl RenewalThread {
    /// The runtime for `process`. Starts the thread if this process has none, also if that failed
    /// before: a process that has just started may be short of threads for a moment.
    fn of_process(&mut self, process: u32) -> Option<tokio::runtime::Handle> {
        if self.0.as_ref().is_none_or(|(of, _)| *of != process) {
            self.0 = start_renewal_thread().map(|handle| (process, handle));
        }
        self.0.as_ref().map(|(_, handle)| handle.clone())
    }
}

thread_local! {
    static IS_RENEWAL_THREAD: Cell<bool> = const { Cell::new(false) };
}

fn start_renewal_thread() -> Option<tokio::runtime::Handle> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .ok()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("leasehold-renewal".into())
        .spawn(move || {
            IS_RENEWAL_THREAD.set(true);
            // The thread runs for the rest of the process. Clients come and go.
            runtime.block_on(std::future::pending::<()>());
        })
        .ok()?;
    Some(handle)
}

#[cfg(target_os = "linux")]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

impl Runtime for TokioRuntime {
    fn now(&self) -> Moment {
        let time = rustix::time::clock_gettime(CLOCK);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
        Moment::from_origin(Duration::new(seconds, nanos))
    }

    fn time_of_day(&self) -> Option<Duration> {
        std::time::UNIX_EPOCH.elapsed().ok()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(self.timer(duration))
    }

    fn spawn(&self, future: BoxFuture<'static, ()>) {
        self.handle.spawn(future);
    }

    fn spawn_on_renewal_thread(&self, future: BoxFuture<'static, ()>) {
        Self::renewal_thread()
            .unwrap_or_else(|| self.handle.clone())
            .spawn(future);
    }

    /// `host:pid`. The host name is cut so that the label fits.
    fn default_label(&self) -> String {
        let pid = format!(":{}", std::process::id());
        let name = rustix::system::uname();
        let mut host = name.nodename().to_string_lossy().into_owned();
        let mut room = MAX_LABEL_BYTES - pid.len();
        while !host.is_char_boundary(room.min(host.len())) {
            room -= 1;
        }
        host.truncate(room);
        host + &pid
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the operating system's random source works");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_works_on_other_executors_without_its_runtime() {
        let new_runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_time().build().expect("a runtime")
        };
        let own = new_runtime();
        let runtime = TokioRuntime::new(own.handle().clone());
        // This runtime has no timer.
        let other = tokio::runtime::Builder::new_current_thread().build();
        let other = other.expect("a runtime");
        other.block_on(runtime.sleep(Duration::from_millis(1)));
        drop(own);
        other.block_on(runtime.sleep(Duration::from_millis(1)));
    }

    #[tokio::test]
    async fn spawned_task_is_awaited_or_aborted() {
        let runtime: &dyn Runtime = &TokioRuntime::current();
        assert_eq!(runtime.spawn_task(async { 7 }).await, Some(7));
        let (held, dropped) = tokio::sync::oneshot::channel::<()>();
        let task = runtime.spawn_task(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        task.abort();
        assert_eq!(task.await, None);
        assert!(dropped.await.is_err(), "its future was dropped");
        assert_eq!(
            runtime.spawn_task(async { panic!("expected") }).await,
            None::<()>
        );
    }

    #[test]
    fn forked_child_starts_a_new_renewal_thread() {
        let mut renewal_thread = RenewalThread(None);
        let mut id = |process| renewal_thread.of_process(process).expect("a thread").id();
        let parent = id(1);
        assert_eq!(id(1), parent, "the parent starts one thread");
        assert_ne!(id(2), parent, "the child starts another thread");
    }
}
