//! The suite's harness on an object store.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{Capabilities, ConnectError, Key, List, LockBackend, bounds};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, Timing};
use leasehold_object_store::{ObjectStoreBackend, Options};

/// Locks with several holders, jobs, cases that know exactly when a lease or a waiter ends, and those that need a push or virtual time.
pub(crate) const CANNOT_RUN: &[&str] = &[
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
    "client_push::*",
    "client_renewal::revoked_before_the_subscription_is_noticed",
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
    "inspection::holder_is_shown",
    "inspection::permits_are_shown",
    "inspection::readers_are_counted",
    "inspection::time_left_is_shown",
    "inspection::waiters_are_shown_in_order",
    "limits::expired_holders_leave_room",
    "limits::expired_key_takes_the_newcomers_terms",
    "limits::holders_full",
    "limits::idle_key_takes_the_newcomers_terms",
    "limits::other_capacity_is_told_what_lives_there",
    "limits::other_kind_is_told_what_lives_there",
    "limits::other_waiter_lease_is_told_what_lives_there",
    "limits::refused_attempt_changes_nothing",
    "limits::waiters_keep_the_key_as_it_is",
    "long_spans::*",
    "names::hostile_names_wait_and_convert",
    "notes::readers_and_permits_leave_notes",
    "notifications::*",
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
