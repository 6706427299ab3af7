//! Mutants that wrap the state machine from outside.
//!
//! Each mutant alters a [`Step`]. It changes the input of the real step and
//! [reruns](Step::rerun) it, or it changes the result. The state stays consistent, so the
//! machine's invariant checks never catch a mutant. A test must catch it.

mod conversion;
mod delivery;
mod leases;
mod notes;
mod queue;
mod reasons;
mod step;
mod tokens;

use crate::machine::{self, Command, Env, Message, Reply, State, StateParts};

use step::Step;

/// [`machine::step`], altered by the planted mutant.
pub fn step(state: &mut State, env: Env<'_>, command: &Command) -> (Reply, Vec<Message>) {
    let Some(alter) = super::alteration() else {
        return machine::step(state, env, command);
    };
    // Clears an expired state like the real step, so that mutants never see one.
    let before = match state.stored_end() <= env.now {
        true => StateParts::default(),
        false => state.to_parts(),
    };
    let mut step = Step {
        before,
        env,
        command: command.clone(),
        after: StateParts::default(),
        reply: Reply::Inspect(Default::default()),
        messages: Vec::new(),
    };
    step.rerun();
    alter(&mut step);
    step.balance();
    *state = State::from_parts(step.after).expect("mutants keep the state consistent");
    (step.reply, step.messages)
}

/// How a mutant alters a step.
pub(super) type Alter = fn(&mut Step<'_>);

/// The mutants of the state machine, each with the rule that it breaks.
#[rustfmt::skip]
pub(super) const MUTANTS: &[(&str, &str, Alter)] = &[
    ("expiry-edge-off-by-one", "rule 1", leases::expiry_edge),
    ("cached-reply-to-a-redelivered-renew", "rule 2", leases::cached_renewal),
    ("remaining-too-long", "rule 2", leases::remaining_too_long),
    ("redelivery-extends", "rule 2", leases::redelivery_extends),
    ("release-counts-the-hold-that-it-released", "rule 2", leases::release_counts_itself),
    ("waiter-is-turned-down", "rule 2", queue::waiter_turned_down),
    ("held-key-changes-with-its-last-holder", "rule 3", leases::held_for_the_longest),
    ("held-key-names-who-ends-last", "rule 2", leases::held_by_the_last),
    ("first-in-line-comes-back-after-an-expiry", "rule 3", leases::head_ignores_expiry),
    ("check-too-late", "rule 3", leases::check_too_late),
    ("one-readers-expiry-drops-all", "rule 4", leases::one_expiry_drops_all),
    ("renewal-of-one-reader-extends-a-dead-one", "rule 4", leases::renewal_extends_all),
    ("release-at-count-2-frees", "rule 5", leases::release_at_two_frees),
    ("inner-lease-shortens", "rule 5", leases::inner_lease_shortens),
    ("upgrade-self-deadlock", "rule 5", conversion::upgrade_self_deadlock),
    ("hold-limit-is-ignored", "rule 5", delivery::hold_limit_ignored),
    ("duplicate-downgrade-undoes-an-upgrade", "rule 6", conversion::duplicate_conversion_acts),
    ("upgrade-not-sole", "rule 6", conversion::upgrade_not_sole),
    ("upgrade-is-always-refused", "rule 6", conversion::upgrade_always_refused),
    ("upgrade-twice-while-others-wait", "rule 6", conversion::upgrades_again),
    ("release-tells-the-previous-token", "rule 6", conversion::release_tells_old_token),
    ("downgrade-overtakes-a-queued-writer", "rule 6", conversion::downgrade_overtakes),
    ("dead-waiter-blocks-the-queue", "rule 7", queue::dead_waiter_blocks),
    ("newcomer-passes-the-queue", "rule 7", queue::newcomer_passes),
    ("light-waiters-pass-heavy-ones", "rule 7", queue::light_waiters_first),
    ("grant-is-not-pushed", "rule 8", queue::grant_untold),
    ("grant-is-pushed-to-the-next-in-line", "rule 8", queue::grant_told_to_next),
    ("grant-is-pushed-with-an-older-token", "rule 8", queue::grant_told_with_old_token),
    ("grant-is-pushed-with-a-full-lease", "rule 8", queue::grant_told_with_full_lease),
    ("release-grants-nobody", "rule 8", queue::release_grants_nobody),
    ("unknown-reachability-counts-as-unreachable", "rule 9", queue::unknown_is_unreachable),
    ("grant-is-pushed-and-then-taken-back", "rule 9", queue::grant_taken_back),
    ("unreachable-waiter-loses-its-ticket", "rule 9", queue::unreachable_loses_ticket),
    ("full-lease-instead-of-an-offer-for-a-pushed-grant", "rule 10", queue::full_lease_for_offer),
    ("offer-ignores-the-lease", "rule 10", queue::offer_ignores_lease),
    ("poll-extends-offer", "rule 10", queue::poll_extends_offer),
    ("poll-keeps-the-waiters-of-dead-clients", "rule 10", queue::poll_keeps_all),
    ("poll-does-not-refresh-its-waiter", "rule 10", queue::poll_keeps_nothing),
    ("poll-revives-an-expired-waiter", "rule 10", queue::poll_revives),
    ("release-that-misses-an-offer", "rule 10", queue::release_misses_offer),
    ("acquire-that-skips-a-sequence-is-stale", "rule 12", delivery::stale_too_soon),
    ("expiry-is-told-as-unknown", "why", reasons::expiry_untold),
    ("release-is-told-as-expiry", "why", reasons::release_told_as_expiry),
    ("revoked-holder-is-renewed", "forced release", reasons::revoked_is_renewed),
    ("revocation-is-not-pushed", "forced release", reasons::revocation_untold),
    ("forced-release-counts-all-who-hold", "forced release", reasons::force_counts_all),
    ("inspection-shows-what-has-expired", "inspection", reasons::inspection_shows_expired),
    ("no-watermark-kept-after-a-release", "rule 12", delivery::no_watermark_after_release),
    ("duplicated-release-frees-the-next-holder", "rule 12", delivery::release_again_frees_next),
    ("retried-acquire-counts-twice", "rule 12", delivery::retry_counts_twice),
    ("deliver-before-ignored", "rule 12", delivery::deliver_before_ignored),
    ("write-before-refusal", "rule 13", delivery::write_before_refusal),
    ("stored-end-earlier-than-token-and-t", "rule 14", tokens::stored_end_too_early),
    ("token-not-monotonic-after-a-restart", "rule 15", tokens::token_counts_by_one),
    ("readers-with-distinct-tokens", "rule 15", tokens::readers_distinct_tokens),
    ("token-not-monotonic-after-failover-to-a-stale-replica", "rule 15", tokens::floor_ignored),
    ("note-of-a-hold-that-is-gone", "rule 16", notes::note_without_hold),
    ("older-note-reverts-a-newer-one", "rule 16", notes::old_note_reverts),
    ("note-ends-with-its-epoch", "rule 16", notes::note_ends_too_soon),
    ("check-then-act-release", "S3", delivery::release_ignores_owner),
    ("renew-arriving-after-release-revives", "S3", delivery::renew_revives),
];
