//! The conformance suite on an etcd server.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{Capabilities, Key, List, LockBackend, bounds};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, TcpProxy, Timing};
use leasehold_etcd::{EtcdBackend, Options};
use leasehold_test_servers::{Authority, EtcdServer};

const FOREIGN: &str = "another program's value";

/// Locks with several holders, jobs, cases that know exactly when a lease ends or which poll is written, that need to know who
/// listens, and that take hours.
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
    "long_spans::*",
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

/// One server for all cases. Each case has a separate key prefix.
#[derive(Debug)]
struct Etcd {
    server: Arc<EtcdServer>,
    /// With `LEASEHOLD_TLS`, it requires TLS, and certificates of clients.
    authority: Option<Authority>,
}

#[async_trait]
impl Harness for Etcd {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full();
        capabilities.reachability = false;
        capabilities.rw_locks = false;
        capabilities.semaphores = false;
        capabilities.convert = false;
        capabilities.time_of_day = false;
        capabilities.batches = false;
        capabilities
    }

    fn abilities(&self) -> Abilities {
        let abilities = Abilities::default().plant_foreign(true).clock(false);
        abilities.cut(true).freeze(true)
    }

    fn timing(&self) -> Timing {
        // A busy machine may stall a process for more than 100 ms.
        Timing::real().unit(Duration::from_millis(300))
    }

    async fn environment(&self, namespace: &str) -> Result<Arc<dyn Environment>, SetupError> {
        let prefix = format!("{namespace}:");
        // A busy machine may need longer than the default.
        let mut options = Options::new()
            .key_prefix(prefix.as_str())
            .call_timeout(bounds::MAX_CALL_TIMEOUT);
        let mut url = self.server.url();
        if let Some(authority) = &self.authority {
            let client = authority.issue("client");
            options = options.root_certificates(authority.certificate());
            options = options.client_certificate(client.certificate, client.key);
        }
        let mut proxy = None;
        if namespace.starts_with("outages-") {
            let started = TcpProxy::start(([127, 0, 0, 1], self.server.port()).into()).await?;
            let port = format!(":{}", started.address().port());
            url = url.replace(&format!(":{}", self.server.port()), &port);
            options = options.call_timeout(bounds::CALL_TIMEOUT);
            proxy = Some(started);
        }
        Ok(Arc::new(Namespace {
            server: Arc::clone(&self.server),
            url,
            options,
            proxy,
            backends: Mutex::default(),
        }))
    }
}

/// The clients of a case. They look at every key before time passes: a lease that nobody observes doesn't end.
#[derive(Debug)]
struct Namespace {
    server: Arc<EtcdServer>,
    url: String,
    options: Options,
    /// Between the backends and the server, in the cases that need it.
    proxy: Option<TcpProxy>,
    backends: Mutex<Vec<Arc<dyn LockBackend>>>,
}

impl Namespace {
    fn backends(&self) -> std::sync::MutexGuard<'_, Vec<Arc<dyn LockBackend>>> {
        self.backends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self, key: &Key) -> String {
        format!("leasehold/{}/key/{key}", self.options.key_prefix)
    }
}

#[async_trait]
impl Environment for Namespace {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        let connecting = EtcdBackend::connect_with(&self.url, self.options.clone());
        let backend: Arc<dyn LockBackend> = Arc::new(connecting.await?);
        self.backends().push(Arc::clone(&backend));
        Ok(backend)
    }

    async fn let_time_pass(&self, duration: Duration) {
        let backends = self.backends().clone();
        for backend in backends {
            // A closed backend looks at nothing.
            let keys = backend.list(&List::new("")).await.map(|page| page.keys);
            for key in keys.unwrap_or_default() {
                drop(backend.inspect(&key).await);
            }
        }
        tokio::time::sleep(duration).await;
    }

    async fn cut(&self) -> Result<(), SetupError> {
        self.proxy.as_ref().ok_or("no proxy")?.cut();
        Ok(())
    }

    async fn freeze(&self, frozen: bool) -> Result<(), SetupError> {
        self.proxy.as_ref().ok_or("no proxy")?.freeze(frozen);
        Ok(())
    }

    async fn plant_foreign(&self, key: &Key) -> Result<(), SetupError> {
        self.server.execute(&["put", &self.key(key), FOREIGN]);
        Ok(())
    }

    async fn foreign_is_untouched(&self, key: &Key) -> Result<bool, SetupError> {
        let value = ["get", "--print-value-only", &self.key(key)];
        Ok(self.server.execute(&value) == FOREIGN)
    }
}

fn main() -> ExitCode {
    let authority = std::env::var_os("LEASEHOLD_TLS").map(|_| Authority::new());
    let with_tls = |it: &Authority| EtcdServer::start_with_tls(&it.issue("127.0.0.1"), it);
    let server = authority.as_ref().map(with_tls);
    let server = Arc::new(server.unwrap_or_else(EtcdServer::start));
    leasehold_conformance::run(Etcd { server, authority }, CANNOT_RUN)
}
