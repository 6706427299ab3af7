//! The conformance suite on three simulated servers, in virtual time.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{
    BoxFuture, Capabilities, Key, LockBackend, Runtime, bounds, forward_lock_backend,
};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, Timing};
use leasehold_quorum::Quorum;
use leasehold_sim::{SimBackend, SimOptions, SimServer};

const FOREIGN: &str = "string";

/// The cases that need a capability that a quorum lacks.
const CANNOT_RUN: &[&str] = &[
    "batches::acquires_of_one_key_in_order",
    "batches::each_poll_by_itself",
    "batches::polls_of_a_long_queue",
    "outages::*",
    "batches::releases_of_one_key_in_order",
    "client_batching::dropped_calls_harm_no_other",
    "client_cancel::*",
    "client_care::shutdown_leaves_nothing_behind",
    "client_handoff::copied_text_is_adopted_once",
    "client_handoff::hold_is_adopted_elsewhere",
    "client_handoff::late_copy_spares_the_next_holder",
    "client_handoff::other_kind_is_refused_before_any_io",
    "client_handoff::readers_and_writers_are_handed_off",
    "client_handoff::revoked_handoff_is_refused",
    "client_handoff::secret_is_not_shown",
    "client_handoff::sender_releases_nothing",
    "client_handoff::sender_renews_nothing",
    "client_handoff::spent_handoff_is_refused",
    "client_locks::available_permits_are_counted",
    "client_locks::deadline_lies_before_the_lease",
    "client_locks::inspection_answers_is_it_held",
    "client_locks::label_is_what_others_see",
    "client_many::kinds_may_be_mixed",
    "client_many::loss_of_one_is_the_loss_of_all",
    "client_many::loss_while_waiting_takes_all_anew",
    "client_push::*",
    "client_renewal::force_spares_later_holders",
    "client_renewal::forced_now_is_noticed",
    "client_renewal::forced_release_stops_a_body",
    "client_renewal::revoked_before_the_subscription_is_noticed",
    "client_renewal::revoked_guard_is_lost",
    "client_sharing::downgrade_never_lets_go",
    "client_sharing::handles_are_owners",
    "client_sharing::nested_guards_share_token_and_deadline",
    "client_sharing::nested_writer_downgrades_by_dropping",
    "client_sharing::other_kind_follows_a_drop",
    "client_sharing::other_terms_are_refused",
    "client_sharing::permits_are_shared",
    "client_sharing::readers_share_and_writers_do_not",
    "client_sharing::reentrant_guards_are_counted",
    "client_sharing::refused_upgrade_keeps_reading",
    "client_sharing::upgrade_of_the_sole_reader",
    "client_sharing::writing_over_reading_is_refused",
    "client_waiting::abandoned_wait_leaves_no_waiter",
    "client_waiting::budget_below_a_round_trip_is_a_timeout",
    "client_waiting::dropped_anywhere_leaves_nothing",
    "client_waiting::dropped_wait_leaves_no_waiter",
    "client_waiting::reader_is_not_starved_by_writers",
    "client_waiting::waiters_are_served_in_order",
    "client_waiting::writer_is_not_starved_by_readers",
    "conversion::*",
    "expiry::dead_permit_comes_back_alone",
    "expiry::holder_expires_while_another_waits",
    "expiry::one_reader_of_several",
    "expiry::renewing_one_reader_extends_no_other",
    "expiry::short_reader_never_cuts_a_long_one",
    "expiry::waiter_is_told_when_to_come_back",
    "forced::*",
    "foreign::convert_reports_it",
    "foreign::force_release_reports_it",
    "foreign::inspect_reports_it",
    "foreign::poll_reports_it",
    "inspection::*",
    "limits::*",
    "names::hostile_names_wait_and_convert",
    "names::labels_are_any_text",
    "notifications::*",
    "offers::*",
    "ownership::leaving_the_queue",
    "ownership::leaving_twice_spares_the_next_waiter",
    "ownership::release_gives_up_an_offer",
    "readers_writers::*",
    "redelivery_queue::*",
    "reentrancy::*",
    "semaphores::*",
    "stalls::stalled_writer_takes_no_read_key",
    "starvation::*",
    "tokens::next_readers_have_another",
    "tokens::overlapping_readers_share_one",
    "tokens::read_guard_kept_over_its_write_hold",
    "tokens::reader_that_saw_more_starts_an_epoch",
    "tokens::reader_that_saw_this_epoch_shares_it",
    "tokens::store_follows_conversions",
    "tokens::store_takes_readers_then_a_writer",
    "tokens::tokens_increase_over_offers",
    "unreachable::*",
    "waiting::*",
];

#[derive(Debug)]
struct Simulated;

#[async_trait]
impl Harness for Simulated {
    fn name(&self) -> &'static str {
        "quorum"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::minimal();
        capabilities.fencing_tokens = true;
        capabilities.independent_renewal = true;
        capabilities.batches = true;
        capabilities
    }

    fn abilities(&self) -> Abilities {
        Abilities::default()
            .plant_foreign(true)
            .virtual_time(true)
            .several_servers(true)
    }

    fn timing(&self) -> Timing {
        Timing::simulated()
    }

    fn block_on(&self, case: BoxFuture<'static, ()>) {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O starts")
            .block_on(case);
    }

    async fn environment(&self, namespace: &str) -> Result<Arc<dyn Environment>, SetupError> {
        // Each case has its own seed, which is the same in every run.
        let case = namespace
            .rsplit_once('-')
            .map_or(namespace, |(case, _)| case);
        let seed = case.bytes().fold(0, |seed: u64, byte| {
            seed.wrapping_mul(31).wrapping_add(byte.into())
        });
        // With one latency for all messages, the expiry that a client is told is exact.
        let servers = [0, 1, 2].map(|n| SimServer::with_options(SimOptions::new(seed ^ n)));
        servers[1].step_clock_forward(Duration::from_secs(3_600));
        let runtime = servers[0].client("process").runtime();
        Ok(Arc::new(SimEnvironment { servers, runtime }))
    }
}

#[derive(Debug)]
struct SimEnvironment {
    servers: [SimServer; 3],
    /// All clients are in one process, so they have one clock.
    runtime: Arc<dyn Runtime>,
}

#[derive(Debug)]
struct InProcess(SimBackend, Arc<dyn Runtime>);

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockBackend for InProcess {
    forward_lock_backend! {
        |wrapper| wrapper.0;
        capabilities hello clock read_clock listen acquire poll renew release convert inspect
        force_release close
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.1)
    }
}

#[async_trait]
impl Environment for SimEnvironment {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        let links = self.servers.iter().map(|server| server.client("client"));
        let links = links.map(|link| InProcess(link, Arc::clone(&self.runtime)));
        Ok(Arc::new(Quorum::new(links)?.max_lease(bounds::MAX_LEASE)?))
    }

    async fn let_time_pass(&self, duration: Duration) {
        self.servers[0].advance(duration).await;
    }

    async fn plant_foreign(&self, key: &Key) -> Result<(), SetupError> {
        for server in &self.servers {
            server.plant_foreign(key, FOREIGN);
        }
        Ok(())
    }

    async fn foreign_is_untouched(&self, key: &Key) -> Result<bool, SetupError> {
        let is_there = |server: &SimServer| server.foreign(key).as_deref() == Some(FOREIGN);
        Ok(self.servers.iter().all(is_there))
    }
}

fn main() -> ExitCode {
    leasehold_conformance::run(Simulated, CANNOT_RUN)
}
