//! What a backend's test tells the suite: how to reach the backend, and what time is there.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{BoxFuture, Capabilities, Key, LockBackend};

/// A problem of the test set-up, such as a server that cannot be reached. It fails the case: a
/// missing server is never a reason to skip.
pub type SetupError = Box<dyn std::error::Error + Send + Sync>;

/// One backend, as the suite sees it.
///
/// `tests/conformance.rs` of a backend implements this and calls [`run`](crate::run).
#[async_trait]
pub trait Harness: fmt::Debug + Send + Sync + 'static {
    /// Name of the backend in the summary line.
    fn name(&self) -> &str;

    /// What the backend can do; cases that need more are ignored, visibly. A case checks that
    /// every backend made here says the same.
    fn capabilities(&self) -> Capabilities;

    /// What else the harness can do.
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    /// How the scenarios' time relates to real time.
    fn timing(&self) -> Timing {
        Timing::real()
    }

    /// Runs one case to its end, on a thread of the case's own.
    ///
    /// - The default is a tokio runtime with two worker threads and real time.
    /// - A simulator starts a paused current-thread runtime here.
    ///
    /// # Panics
    /// The default panics if no runtime can be started; that fails the case.
    fn block_on(&self, case: BoxFuture<'static, ()>) {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a tokio runtime starts")
            .block_on(case);
    }

    /// A fresh place for one case: nothing of any other case is seen in it.
    ///
    /// - Called inside [`block_on`](Self::block_on).
    /// - `namespace` is unique for the case within the run, made of `a-z`, `0-9`, `_`, `-`, and
    ///   random enough to be used as a key prefix on a shared server.
    async fn environment(&self, namespace: &str) -> Result<Arc<dyn Environment>, SetupError>;
}

/// The place that one case runs in.
#[async_trait]
pub trait Environment: fmt::Debug + Send + Sync {
    /// One more client of this environment's server, with connections of its own.
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError>;

    /// Lets time pass, on the server as well as here: real time for a real server, virtual time
    /// for a simulator. A case may let several spans pass at once.
    async fn let_time_pass(&self, duration: Duration);

    /// Puts something else under the key, as another program might.
    ///
    /// Called only with [`Abilities::plant_foreign`].
    async fn plant_foreign(&self, key: &Key) -> Result<(), SetupError> {
        let _ = key;
        Err("this harness cannot plant a foreign value".into())
    }

    /// Whether what was planted under the key is still there, unchanged.
    ///
    /// Called only with [`Abilities::plant_foreign`].
    async fn foreign_is_untouched(&self, key: &Key) -> Result<bool, SetupError> {
        let _ = key;
        Err("this harness cannot plant a foreign value".into())
    }

    /// Tidies up after the case, whether it passed or not.
    async fn close(&self) {}
}

/// What a harness can do besides giving clients and time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Abilities {
    /// [`Environment::plant_foreign`] works.
    pub plant_foreign: bool,
    /// Time is virtual: minutes pass in no time, so that cases about long spans can run.
    pub virtual_time: bool,
}

impl Abilities {
    /// The same with, or without, planting foreign values.
    #[must_use]
    pub const fn with_plant_foreign(mut self, can: bool) -> Self {
        self.plant_foreign = can;
        self
    }

    /// The same with, or without, virtual time.
    #[must_use]
    pub const fn with_virtual_time(mut self, is: bool) -> Self {
        self.virtual_time = is;
        self
    }
}

/// How the scenarios' time relates to real time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timing {
    /// What scenarios count time in. A command must take much less; a case takes a few.
    pub unit: Duration,
    /// By how much a time reported by the backend may be off. Zero for an exact backend.
    pub tolerance: Duration,
    /// Real time after which a case that has not ended counts as hung.
    pub watchdog: Duration,
}

impl Timing {
    /// For a server in real time, on a machine that may be busy: units of 100 ms.
    pub const fn real() -> Self {
        Self {
            unit: Duration::from_millis(100),
            tolerance: Duration::from_millis(2),
            watchdog: Duration::from_secs(60),
        }
    }

    /// For a simulator: the same unit, and no tolerance.
    pub const fn simulated() -> Self {
        Self {
            tolerance: Duration::ZERO,
            ..Self::real()
        }
    }

    /// The same with another unit, at least 10 ms.
    #[must_use]
    pub fn with_unit(mut self, unit: Duration) -> Self {
        self.unit = unit.max(Duration::from_millis(10));
        self
    }

    /// The same with another tolerance.
    #[must_use]
    pub const fn with_tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// The same with another watchdog.
    #[must_use]
    pub const fn with_watchdog(mut self, watchdog: Duration) -> Self {
        self.watchdog = watchdog;
        self
    }
}
