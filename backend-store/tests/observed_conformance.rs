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
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, Timing};

use machine::Machine;
use world::{Connection, Faults, World};

/// Locks with several holders, jobs, cases that know exactly when a lease ends, and those that need to know who listens.
const CANNOT_RUN: &[&str] = &[
    "batches::polls_of_a_long_queue",
    "client_cancel::dropped_conversion_leaves_nothing",
    "client_jobs::dropped_attempt_counts",
    "client_jobs::failed_attempts_count_everywhere",
    "client_jobs::it_waits_for_its_fire_time",
    "client_jobs::last_success_is_remembered",
    "client_jobs::late_timer_finds_it_done",
    "client_jobs::one_of_many_machines_runs_it",
    "client_jobs::running_job_is_told_and_not_reset",
    "client_locks::available_permits_are_counted",
    "client_locks::inspection_answers_is_it_held",
    "client_sharing::downgrade_never_lets_go",
    "client_sharing::nested_writer_downgrades_by_dropping",
    "client_sharing::other_kind_follows_a_drop",
    "client_sharing::other_terms_are_refused",
    "client_sharing::permits_are_shared",
    "client_sharing::readers_share_and_writers_do_not",
    "client_sharing::refused_upgrade_keeps_reading",
    "client_sharing::upgrade_of_the_sole_reader",
    "client_sharing::writing_over_reading_is_refused",
    "client_waiting::reader_is_not_starved_by_writers",
    "client_waiting::writer_is_not_starved_by_readers",
    "conversion::*",
    "expiry::dead_permit_comes_back_alone",
    "expiry::one_reader_of_several",
    "expiry::renewal_never_shortens",
    "expiry::renewing_one_reader_extends_no_other",
    "expiry::short_reader_never_cuts_a_long_one",
    "forced::all_readers_of_the_epoch",
    "forced::only_the_permit_that_was_named",
    "foreign::convert_reports_it",
    "inspection::permits_are_shown",
    "inspection::readers_are_counted",
    "inspection::time_left_is_shown",
    "limits::expired_holders_leave_room",
    "limits::expired_key_takes_the_newcomers_terms",
    "limits::holders_full",
    "limits::idle_key_takes_the_newcomers_terms",
    "limits::other_capacity_is_told_what_lives_there",
    "limits::other_kind_is_told_what_lives_there",
    "limits::refused_attempt_changes_nothing",
    "limits::waiters_keep_the_key_as_it_is",
    "long_spans::token_is_remembered",
    "long_spans::token_outlives_an_expired_holder",
    "names::hostile_names_wait_and_convert",
    "notes::readers_and_permits_leave_notes",
    "notifications::group_is_notified_together",
    "notifications::last_reader_notifies_the_writer",
    "notifications::leaving_writer_lets_readers_in",
    "notifications::permits_change_hands_in_order",
    "notifications::pushed_grant_is_the_offer",
    "notifications::pushed_offer_expires_unless_confirmed",
    "offers::confirmation_never_shortens",
    "offers::expired_offer_cannot_be_confirmed",
    "offers::offer_expires_when_its_waiter_would",
    "offers::poll_never_extends_an_offer",
    "offers::short_lease_shortens_the_offer",
    "outages::*",
    "readers_writers::*",
    "redelivery::acquire_again_says_the_time_left",
    "redelivery_queue::doubled_downgrade_undoes_no_upgrade",
    "redelivery_queue::doubled_upgrade_undoes_no_downgrade",
    "redelivery_queue::granted_acquire_again_reports_the_offer",
    "redelivery_queue::late_conversion_after_the_release",
    "redelivery_queue::permit_acquired_twice_is_taken_once",
    "reentrancy::dropping_the_write_hold_downgrades",
    "reentrancy::inner_lease_never_shortens",
    "reentrancy::nested_readers_weigh_one",
    "reentrancy::permits_do_not_nest",
    "reentrancy::reader_reenters_past_a_waiting_writer",
    "reentrancy::writer_may_read",
    "reentrancy::writing_over_reading_would_deadlock",
    "semaphores::*",
    "stalls::crash_in_an_acquire_costs_one_lease",
    "stalls::stalled_writer_takes_no_read_key",
    "starvation::readers_against_endless_writers",
    "starvation::writer_against_endless_readers",
    "tokens::next_readers_have_another",
    "tokens::overlapping_readers_share_one",
    "tokens::read_guard_kept_over_its_write_hold",
    "tokens::reader_that_saw_more_starts_an_epoch",
    "tokens::reader_that_saw_this_epoch_shares_it",
    "tokens::store_follows_conversions",
    "tokens::store_takes_readers_then_a_writer",
    "tokens::token_is_at_least_the_servers_time",
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
    leasehold_conformance::run(Memory, CANNOT_RUN)
}
