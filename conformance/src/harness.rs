//! The interface between a backend's test and the suite: how to connect, and how time passes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{BoxFuture, Capabilities, Key, LockBackend};

/// A problem of the test set-up, such as a server that can't be reached. It fails the case; a
/// missing server is never a reason to skip.
pub type SetupError = Box<dyn std::error::Error + Send + Sync>;

/// The maximum length of a namespace. PostgreSQL cuts longer names off, and MySQL refuses them.
pub(crate) const NAMESPACE_BYTES: usize = 63;

/// A backend under test.
///
/// `tests/conformance.rs` of a backend implements this and calls [`run`](crate::run).
#[async_trait]
pub trait Harness: fmt::Debug + Send + Sync + 'static {
    /// The name of the backend in the summary line.
    fn name(&self) -> &str;

    /// The capabilities of the backend. Cases that need more are reported as ignored. One case
    /// checks that every backend of this harness has these capabilities.
    fn capabilities(&self) -> Capabilities;

    /// The optional abilities of the harness.
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    /// How time passes in cases.
    fn timing(&self) -> Timing {
        Timing::real()
    }

    /// Runs one case to completion. Each case has its own thread.
    ///
    /// - The default is a tokio runtime with two worker threads and real time.
    /// - A simulator starts a paused current-thread runtime here.
    ///
    /// # Panics
    /// The default panics if it can't start a runtime, which fails the case.
    fn block_on(&self, case: BoxFuture<'static, ()>) {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a tokio runtime starts")
            .block_on(case);
    }

    /// Creates an environment for one case, separate from those of other cases.
    ///
    /// - Called inside [`block_on`](Self::block_on).
    /// - `namespace` is unique for the case within the run, at most 63 bytes of `a-z`, `0-9`, `_`, `-`,
    ///   and random enough to be used as a key prefix or the name of a table on a shared server.
    async fn environment(&self, namespace: &str) -> Result<Arc<dyn Environment>, SetupError>;
}

/// The environment that one case runs in.
#[async_trait]
pub trait Environment: fmt::Debug + Send + Sync {
    /// Connects a new client to this environment's server.
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError>;

    /// Lets time pass, on the server and here: real time for a real server, virtual time for a
    /// simulator. A case may call this several times concurrently.
    async fn let_time_pass(&self, duration: Duration);

    /// Stores a foreign value under the key, as another program might.
    ///
    /// Called only with [`Abilities::plant_foreign`], and after a client of [`backend`](Self::backend) has
    /// said [`hello`](LockBackend::hello). So a table that the backend creates is there.
    async fn plant_foreign(&self, key: &Key) -> Result<(), SetupError> {
        let _ = key;
        Err("this harness cannot plant a foreign value".into())
    }

    /// Whether the foreign value under the key is unchanged.
    ///
    /// Called only with [`Abilities::plant_foreign`].
    async fn foreign_is_untouched(&self, key: &Key) -> Result<bool, SetupError> {
        let _ = key;
        Err("this harness cannot plant a foreign value".into())
    }

    /// Cuts all connections that the clients of this environment have now. New connections work.
    ///
    /// Called only with [`Abilities::cut`].
    async fn cut(&self) -> Result<(), SetupError> {
        Err("this harness cannot cut connections".into())
    }

    /// Lets nothing pass between the clients of this environment and their server, until it is
    /// called with `false`. Connections stay open, as if the network or the server were silent.
    /// Clients that connect later may be unaffected.
    ///
    /// Called only with [`Abilities::freeze`].
    async fn freeze(&self, frozen: bool) -> Result<(), SetupError> {
        let _ = frozen;
        Err("this harness cannot freeze connections".into())
    }

    /// Cleans up after the case, whether it passed or not.
    async fn close(&self) {}
}

/// The optional abilities of a harness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Abilities {
    /// [`Environment::plant_foreign`] works.
    pub plant_foreign: bool,
    /// Time is virtual, so that cases that take minutes can run.
    pub virtual_time: bool,
    /// [`Environment::cut`] works.
    pub cut: bool,
    /// [`Environment::freeze`] works.
    pub freeze: bool,
    /// Several servers vote on each attempt. Attempts that are made at the same moment may then all
    /// fail, and the stamps of different clients agree only within the
    /// [tolerance](Timing::tolerance).
    pub several_servers: bool,
    /// Tokens increase over the epochs of a key (rule 15). `true` by default. Set it to `false` while you write a
    /// backend: until then, any token above 0 will do.
    pub fencing_tokens: bool,
    /// A lease ends at a time of one clock. `true` by default. `false` for a store without a clock: a lease ends when somebody
    /// else has seen it for that long, so cases that know its end exactly are ignored.
    pub clock: bool,
    /// A waiter has the waiter lease of its request. `true` by default. `false` for a backend that gives it a longer one, because
    /// each write has its price.
    pub waiter_lease: bool,
}

impl Default for Abilities {
    fn default() -> Self {
        Self {
            plant_foreign: false,
            virtual_time: false,
            cut: false,
            freeze: false,
            several_servers: false,
            fencing_tokens: true,
            clock: true,
            waiter_lease: true,
        }
    }
}

impl Abilities {
    /// Sets whether the harness can store foreign values.
    #[must_use]
    pub const fn plant_foreign(mut self, can: bool) -> Self {
        self.plant_foreign = can;
        self
    }

    /// Sets whether time is virtual.
    #[must_use]
    pub const fn virtual_time(mut self, is: bool) -> Self {
        self.virtual_time = is;
        self
    }

    /// Sets whether the harness can cut connections.
    #[must_use]
    pub const fn cut(mut self, can: bool) -> Self {
        self.cut = can;
        self
    }

    /// Sets whether the harness can freeze connections.
    #[must_use]
    pub const fn freeze(mut self, can: bool) -> Self {
        self.freeze = can;
        self
    }

    /// Sets whether several servers vote on each attempt.
    #[must_use]
    pub const fn several_servers(mut self, vote: bool) -> Self {
        self.several_servers = vote;
        self
    }

    /// Sets whether tokens increase over the epochs of a key.
    #[must_use]
    pub const fn fencing_tokens(mut self, increase: bool) -> Self {
        self.fencing_tokens = increase;
        self
    }

    /// Sets whether a lease ends at a time of one clock.
    #[must_use]
    pub const fn clock(mut self, is: bool) -> Self {
        self.clock = is;
        self
    }

    /// Sets whether a waiter has the waiter lease of its request.
    #[must_use]
    pub const fn waiter_lease(mut self, is: bool) -> Self {
        self.waiter_lease = is;
        self
    }
}

/// How time passes in cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timing {
    /// The unit of time in cases. Pauses, time limits and most leases are multiples of it, plus the fixed bounds
    /// of the semantics: a poll interval and a call timeout of 1 s. A lease that must outlast a case is 300 units,
    /// or 30 s by default. A command must take a tenth of the unit at most. A case takes several units.
    pub unit: Duration,
    /// The maximum error of a time that the backend reports. Zero for an exact backend.
    pub tolerance: Duration,
    /// The real time after which a running case counts as hung.
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

    /// For a simulator: units of 100 ms, and no tolerance.
    pub const fn simulated() -> Self {
        Self {
            tolerance: Duration::ZERO,
            ..Self::real()
        }
    }

    /// Sets the unit, at least 10 ms.
    #[must_use]
    pub fn unit(mut self, unit: Duration) -> Self {
        self.unit = unit.max(Duration::from_millis(10));
        self
    }

    /// Sets the tolerance.
    #[must_use]
    pub const fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// Sets the watchdog.
    #[must_use]
    pub const fn watchdog(mut self, watchdog: Duration) -> Self {
        self.watchdog = watchdog;
        self
    }
}
