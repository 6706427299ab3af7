//! The suite's harness on an object store.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{Capabilities, ConnectError, Key, List, LockBackend, bounds};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, Timing};
use leasehold_object_store::{ObjectStoreBackend, Options};

/// Also cases that need notifications, and that know when a row is written.
pub(crate) const CANNOT_RUN: &[&str] = &[
    "client_push::*",
    "client_renewal::revoked_before_the_subscription_is_noticed",
    "inspection::holder_is_shown",
    "inspection::waiters_are_shown_in_order",
    "limits::other_waiter_lease_is_told_what_lives_there",
    "long_spans::*",
    "notifications::*",
    "outages::*",
    "unreachable::*",
];

const FOREIGN: &str = "another program's value";

/// The server for all cases, or what takes its place.
#[async_trait]
pub(crate) trait Store: Debug + Send + Sync + 'static {
    async fn connect(&self, options: Options) -> Result<ObjectStoreBackend, ConnectError>;

    /// Writes an object as another program.
    async fn put(&self, path: &str, text: &'static str) -> Result<(), SetupError>;

    async fn get(&self, path: &str) -> Result<String, SetupError>;
}

/// The locks of one store. Each case has a separate prefix.
#[derive(Debug)]
pub(crate) struct Objects<S> {
    pub(crate) name: &'static str,
    pub(crate) timing: Timing,
    pub(crate) store: Arc<S>,
}

#[async_trait]
impl<S: Store> Harness for Objects<S> {
    fn name(&self) -> &str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full();
        capabilities.push = false;
        capabilities.reachability = false;
        capabilities.rw_locks = false;
        capabilities.semaphores = false;
        capabilities.convert = false;
        capabilities.time_of_day = false;
        capabilities.independent_renewal = false;
        capabilities.batches = false;
        capabilities
    }

    fn abilities(&self) -> Abilities {
        Abilities::default()
            .plant_foreign(true)
            .clock(false)
            .waiter_lease(false)
    }

    fn timing(&self) -> Timing {
        self.timing
    }

    async fn environment(&self, namespace: &str) -> Result<Arc<dyn Environment>, SetupError> {
        Ok(Arc::new(Namespace {
            store: Arc::clone(&self.store),
            prefix: namespace.to_owned(),
            backends: Mutex::default(),
        }))
    }
}

/// The clients of a case. They look at every key before time passes: a lease that nobody observes doesn't end.
#[derive(Debug)]
struct Namespace<S> {
    store: Arc<S>,
    prefix: String,
    backends: Mutex<Vec<Arc<dyn LockBackend>>>,
}

impl<S> Namespace<S> {
    fn path(&self, key: &Key) -> String {
        let hex =
            |text: &str| -> String { text.bytes().map(|byte| format!("{byte:02x}")).collect() };
        format!("{}_/{}", hex(&self.prefix), hex(&format!("key/{key}")))
    }
}

#[async_trait]
impl<S: Store> Environment for Namespace<S> {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        // A busy machine may need longer than the default.
        let options = Options::new()
            .key_prefix(self.prefix.as_str())
            .call_timeout(bounds::MAX_CALL_TIMEOUT);
        let backend: Arc<dyn LockBackend> = Arc::new(self.store.connect(options).await?);
        self.backends
            .lock()
            .expect("no panic")
            .push(Arc::clone(&backend));
        Ok(backend)
    }

    async fn let_time_pass(&self, duration: Duration) {
        let backends = self.backends.lock().expect("no panic").clone();
        for backend in backends {
            // A closed backend looks at nothing.
            let keys = backend.list(&List::new("")).await.map(|page| page.keys);
            for key in keys.unwrap_or_default() {
                drop(backend.inspect(&key).await);
            }
        }
        tokio::time::sleep(duration).await;
    }

    async fn plant_foreign(&self, key: &Key) -> Result<(), SetupError> {
        self.store.put(&self.path(key), FOREIGN).await
    }

    async fn foreign_is_untouched(&self, key: &Key) -> Result<bool, SetupError> {
        Ok(self.store.get(&self.path(key)).await? == FOREIGN)
    }
}
