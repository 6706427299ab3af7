//! A specimen, and its clients.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_api::{BackendError, Capabilities, LockBackend, TokioRuntime};

use crate::lock::{HandWritten, HandWrittenBackend, Watermarks};
use crate::store::{Store, failed};

/// How far the clocks of two successive clients differ, if they do.
const CLOCK_STEP: Duration = Duration::from_secs(60);
/// The number of clients in a case with differing clocks, at most.
const CLOCK_STEPS: u32 = 20;

/// A lock as a tutorial writes it.
#[derive(Debug)]
pub struct Specimen {
    /// Its name in the output of the test.
    pub name: &'static str,
    /// The commands that acquire and release it, in Markdown.
    pub how: &'static str,
    /// Why the suite rejects it. Empty for a lock that passes.
    pub faults: &'static [Fault],
    /// Cases that it passes all the same. They show that it is rejected for its fault, and not
    /// because it does not work at all.
    pub passes: &'static [&'static str],
    pub(crate) make: fn() -> Box<dyn HandWritten>,
    pub(crate) extras: Extras,
}

/// A case that a specimen fails.
#[derive(Debug)]
pub struct Fault {
    /// The name of the case.
    pub case: &'static str,
    /// The rule that the failure names.
    pub rule: &'static str,
    /// What the text of the failure contains.
    pub shows: &'static str,
    /// What the specimen did, in Markdown.
    pub did: &'static str,
}

/// What differs from a mutex with watermarks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extras {
    pub(crate) queue: bool,
    pub(crate) rw_locks: bool,
    pub(crate) reentrancy: bool,
    pub(crate) watermarks: bool,
    pub(crate) clocks: Clocks,
}

/// The clocks of the clients of one case.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clocks {
    Agree,
    /// Each is ahead of the one before.
    EachAhead,
    /// Each is behind the one before.
    EachBehind,
}

impl Clocks {
    /// How far the clock of this client is ahead of the server's.
    fn ahead(self, client: u32) -> Duration {
        match self {
            Self::Agree => Duration::ZERO,
            Self::EachAhead => CLOCK_STEP * client,
            Self::EachBehind => CLOCK_STEP * CLOCK_STEPS.saturating_sub(client),
        }
    }
}

impl Specimen {
    /// What the tutorial offers, besides a mutex.
    pub fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::minimal();
        capabilities.queue = self.extras.queue;
        capabilities.rw_locks = self.extras.rw_locks;
        capabilities.reentrancy = self.extras.reentrancy;
        capabilities
    }

    /// Prepares the clients of one case, which share a key prefix.
    pub fn clients(&'static self, url: &str, prefix: &str) -> Clients {
        Clients {
            specimen: self,
            url: url.into(),
            prefix: prefix.into(),
            watermarks: Watermarks::default(),
            connected: AtomicU32::new(0),
        }
    }
}

/// The clients of one case.
#[derive(Debug)]
pub struct Clients {
    specimen: &'static Specimen,
    url: String,
    prefix: String,
    watermarks: Watermarks,
    connected: AtomicU32,
}

impl Clients {
    /// Connects one more client.
    ///
    /// # Errors
    /// [`BackendError::OutcomeUnknown`] if the server does not answer within 5 s.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub async fn connect(&self) -> Result<Arc<dyn LockBackend>, BackendError> {
        let extras = self.specimen.extras;
        let ahead = extras
            .clocks
            .ahead(self.connected.fetch_add(1, Ordering::Relaxed));
        let store = Store::connect(&self.url, ahead).await.map_err(failed)?;
        Ok(Arc::new(HandWrittenBackend {
            lock: (self.specimen.make)(),
            store,
            capabilities: self.specimen.capabilities(),
            prefix: self.prefix.clone(),
            watermarks: extras.watermarks.then(|| Arc::clone(&self.watermarks)),
            waiting: Mutex::default(),
            runtime: Arc::new(TokioRuntime::current()),
            closed: AtomicBool::new(false),
        }))
    }
}
