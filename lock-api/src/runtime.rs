//! Where time, randomness and tasks come from.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// A boxed future, as the runtime trait takes and gives them.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A point on a runtime's own clock; points of different runtimes must not be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// A point from the time since the clock's origin.
    pub const fn from_origin(since: Duration) -> Self {
        Self(since)
    }

    /// Time since the clock's origin.
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// This point moved later, stopping at the end of the range.
    #[must_use]
    pub const fn saturating_add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }

    /// This point moved earlier, stopping at the origin.
    #[must_use]
    pub const fn saturating_sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(by))
    }

    /// Time from `earlier` until this point; zero if `earlier` is later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Time, randomness and tasks, supplied by the backend, so that simulated and real time cannot
/// be mixed.
///
/// Everything above [`LockBackend`](crate::LockBackend) reads clocks, sleeps, spawns and draws
/// only through this trait.
pub trait Runtime: Send + Sync + fmt::Debug {
    /// The local clock. It is monotonic and **counts suspend** (`CLOCK_BOOTTIME` on Linux):
    /// guards are judged by it.
    fn now(&self) -> Moment;

    /// Sleeps for at least `duration` of running time; the time of a suspend may or may not
    /// count, so a deadline is checked against [`now`](Self::now) after waking.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// Runs a future to its end in the background.
    fn spawn(&self, future: BoxFuture<'static, ()>);

    /// Runs a future where a blocked user program cannot starve it, if the runtime has such a
    /// place; otherwise like [`spawn`](Self::spawn).
    fn spawn_on_renewal_thread(&self, future: BoxFuture<'static, ()>) {
        self.spawn(future);
    }

    /// Fills `bytes` from the source of randomness: the operating system's in production, the
    /// seed in a simulation. Secrets are drawn from it.
    fn fill_random(&self, bytes: &mut [u8]);

    /// Tells processes apart, so that a client that came through a `fork` is noticed: it draws a
    /// new session.
    fn process_id(&self) -> u32 {
        std::process::id()
    }

    /// What a client of this process calls itself to others, unless its user says otherwise.
    fn default_label(&self) -> String {
        "client".into()
    }

    /// 64 random bits.
    fn random_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill_random(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}
