//! Real time on a tokio runtime.

#![expect(
    clippy::disallowed_methods,
    reason = "the one waiter where the outside world's time, tasks and randomness come in"
)]

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::bounds::MAX_LABEL_BYTES;
use crate::runtime::{BoxFuture, Moment, Runtime};

/// The [`Runtime`] of backends that do real I/O: tokio's tasks and timers, the operating
/// system's random source, and a clock that counts suspend where the system has one.
///
/// [`spawn_on_renewal_thread`](Runtime::spawn_on_renewal_thread) runs on a thread of its own, with a tokio runtime
/// of its own: one for the process, started when it is first needed.
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

    /// Uses the given tokio runtime, which must have its timer enabled.
    pub const fn new(handle: tokio::runtime::Handle) -> Self {
        Self { handle }
    }

    /// The renewal thread's tokio runtime, for connections that its tasks depend on; `None` if no
    /// thread for it could be had.
    ///
    /// A thread does not come along into a forked child, which gets a renewal thread of its own.
    pub fn renewal_thread() -> Option<tokio::runtime::Handle> {
        static RENEWAL_THREAD: Mutex<RenewalThread> = Mutex::new(RenewalThread::NONE);
        let mut renewal_thread = RENEWAL_THREAD
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        renewal_thread.of_process(std::process::id())
    }

    /// Sleeps as [`sleep`](Runtime::sleep) does, in place instead of in a box: at least for
    /// `duration`, at most a millisecond or so longer.
    ///
    /// # Cancel safety
    /// Dropping it ends it.
    ///
    /// # Panics
    /// In a tokio runtime that has no timer; elsewhere only if no renewal thread could be had and the
    /// runtime that this was made in has no timer.
    pub fn timer(&self, duration: Duration) -> tokio::time::Sleep {
        // The timer belongs to the runtime that the sleep is created in. In the renewal thread's thread
        // that is its own: ours may be starved by the user's program.
        if IS_RENEWAL_THREAD.get() || self.is_inside() {
            return tokio::time::sleep(duration);
        }
        // A caller on another executor. Our runtime may be gone by now, in which case its timer
        // panics, or stand still because nobody drives it; the renewal thread's does neither.
        let renewal_thread = Self::renewal_thread();
        let _inside = renewal_thread.as_ref().unwrap_or(&self.handle).enter();
        tokio::time::sleep(duration)
    }

    /// Whether the caller runs in this runtime, which then has not gone.
    fn is_inside(&self) -> bool {
        tokio::runtime::Handle::try_current().is_ok_and(|caller| caller.id() == self.handle.id())
    }
}

/// The renewal thread's runtime, and whose it is.
struct RenewalThread {
    process: Option<u32>,
    handle: Option<tokio::runtime::Handle>,
}

impl RenewalThread {
    const NONE: Self = Self {
        process: None,
        handle: None,
    };

    /// That of this process, started if it has none.
    fn of_process(&mut self, process: u32) -> Option<tokio::runtime::Handle> {
        if self.process != Some(process) {
            *self = Self {
                process: Some(process),
                handle: start_renewal_thread(),
            };
        }
        self.handle.clone()
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
            // For the rest of the process: clients come and go.
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

    /// `host:pid`, the host's name cut to what fits.
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
    fn sleep_ends_for_callers_elsewhere_when_its_runtime_stands_still_or_is_gone() {
        let build = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_time().build().expect("a runtime")
        };
        let own = build();
        let runtime = TokioRuntime::new(own.handle().clone());
        // Without a timer.
        let other = tokio::runtime::Builder::new_current_thread().build();
        let other = other.expect("a runtime");
        other.block_on(runtime.sleep(Duration::from_millis(1)));
        drop(own);
        other.block_on(runtime.sleep(Duration::from_millis(1)));
    }

    #[test]
    fn a_forked_child_gets_a_renewal_thread_of_its_own() {
        let mut renewal_thread = RenewalThread::NONE;
        let mut of = |process| renewal_thread.of_process(process).expect("a thread").id();
        let parents = of(1);
        assert_eq!(of(1), parents, "started once");
        assert_ne!(of(2), parents, "its thread stayed with the parent");
    }
}
