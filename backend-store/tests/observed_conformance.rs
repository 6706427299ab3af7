//! The conformance suite on a store without a clock, in memory and in virtual time.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the store in memory uses tokio's paused clock"
)]

#[expect(dead_code, reason = "explorations use the rest")]
#[path = "observed/machine.rs"]
mod machine;
#[expect(dead_code, reason = "explorations use the rest")]
#[path = "observed/world.rs"]
mod world;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{BoxFuture, Capabilities, Key, List, LockBackend};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, Timing, WITHOUT_A_CLOCK};

use machine::Machine;
use world::{Connection, Faults, World};

/// Also those that need to know who listens.
const CANNOT_RUN: &[&str] = &[
    "long_spans::token_is_remembered",
    "long_spans::token_outlives_an_expired_holder",
    "notifications::group_is_notified_together",
    "notifications::last_reader_notifies_the_writer",
    "notifications::leaving_writer_lets_readers_in",
    "notifications::permits_change_hands_in_order",
    "notifications::pushed_grant_is_the_offer",
    "notifications::pushed_offer_expires_unless_confirmed",
    "outages::*",
    "unreachable::all_unreachable_counts_as_free",
    "unreachable::its_ticket_is_kept",
    "unreachable::marked_unreachable_at_most_twice",
    "unreachable::unreachable_is_shown",
    "unreachable::unreachable_waiter_is_passed_over",
];

const FOREIGN: &[u8] = b"another program's value";

#[derive(Debug)]
struct Memory;

#[async_trait]
impl Harness for Memory {
    fn name(&self) -> &'static str {
        "observed"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full();
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
            .virtual_time(true)
            .clock(false)
    }

    fn timing(&self) -> Timing {
        // A lease counts from another client's first look, some calls later.
        Timing::simulated().tolerance(Duration::from_millis(10))
    }

    fn block_on(&self, case: BoxFuture<'static, ()>) {
        world::block_on(case);
    }

    async fn environment(&self, _: &str) -> Result<Arc<dyn Environment>, SetupError> {
        // It pushes and removes.
        let world = World::new(0, Faults::default());
        let machine = Machine::exact(&world);
        let backends = Mutex::default();
        Ok(Arc::new(Clients {
            world,
            machine,
            backends,
        }))
    }
}

/// The clients of a case. They look at every key before time passes: a lease that nobody observes doesn't end.
#[derive(Debug)]
struct Clients {
    world: Arc<World>,
    machine: Arc<Machine>,
    backends: Mutex<Vec<Arc<dyn LockBackend>>>,
}

#[async_trait]
impl Environment for Clients {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        let backend: Arc<dyn LockBackend> = Arc::new(Connection::backend(&self.machine));
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
        self.world.put(&format!("key/{key}"), FOREIGN);
        Ok(())
    }

    async fn foreign_is_untouched(&self, key: &Key) -> Result<bool, SetupError> {
        let found = self.world.get(&format!("key/{key}"));
        Ok(found.is_some_and(|object| object.bytes == FOREIGN))
    }
}

fn main() -> ExitCode {
    leasehold_conformance::run(Memory, &[WITHOUT_A_CLOCK, CANNOT_RUN].concat())
}
