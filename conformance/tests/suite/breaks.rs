//! Tests the suite with broken backends: each backend breaks one rule, and the named cases must
//! fail.

use std::slice::from_ref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::support::{Reference, Server};
use crate::{assert_each_fails, case, unfair};
use async_trait::async_trait;
use futures_util::stream;
use leasehold_api::bounds::MAX_LEASE;
use leasehold_api::{
    Acquire, AcquireReply, Acquired, BackendError, Capabilities, ClockId, Convert, ConvertReply,
    FencingToken, ForceMode, ForceRelease, ForceReply, InspectReply, Key, Kind, Limits, List,
    Listed, LockBackend, LockSpec, Mode, Notifications, Operation, Poll, PollReply, Queued,
    Release, ReleaseReply, Renew, RenewReply, ServerTime, SessionId, Stamp, Stamped, Wait,
};
use leasehold_conformance::{Harness, run_case};

breaks! {
    ListsNothing: "trait contract", "listing::keys_in_use_are_listed",
        "listing::only_the_prefix_is_listed", "listing::client_lists_all_pages";
    ListsAllPrefixes: "trait contract", "listing::only_the_prefix_is_listed";
    ListsOnePage: "trait contract", "listing::pages_cover_all_keys";
    ReleasesAnyHolder: "S3", "ownership::another_session_cannot_release",
        "client_renewal::late_release_spares_the_next_holder";
    RenewalResurrects: "S3", "expiry::expired_holder_cannot_renew";
    ReleasesNothing: "S3", "client_locks::drop_releases",
        "client_jobs::stopped_leader_lets_the_next_one_lead",
        "client_locks::lock_excludes_until_released",
        "client_care::shutdown_leaves_nothing_behind",
        "client_waiting::dropped_wait_leaves_no_waiter",
        "client_cancel::dropped_wait_leaves_nothing",
        "client_cancel::dropped_when_granted_leaves_nothing",
        "client_cancel::dropped_try_leaves_nothing",
        "client_cancel::dropped_release_goes_on",
        "client_cancel::dropped_without_an_answer_leaves_nothing",
        "client_cancel::dropped_conversion_leaves_nothing",
        "client_many::all_are_held_until_released",
        "client_many::held_key_is_named_and_the_rest_given_back",
        "client_many::dropped_midway_gives_back",
        "client_many::drop_gives_all_back",
        "client_locks::drop_outside_of_a_runtime_releases",
        "client_locks::dropped_release_goes_on",
        "client_care::shutdown_releases_everything",
        "client_waiting::abandoned_wait_leaves_no_waiter",
        "client_waiting::budget_below_a_round_trip_is_a_timeout",
        "client_sharing::other_kind_follows_a_drop",
        "client_waiting::dropped_anywhere_leaves_nothing",
        "client_renewal::with_runs_and_releases",
        "client_locks::release_twice_reports_the_same";
    DoublesTheRemainingTime: "S2", "client_locks::deadline_lies_before_the_lease",
        "client_locks::guard_tells_its_validity";
    RenewsNothing: "L4", "client_renewal::renewal_keeps_a_lock",
        "client_renewal::renewing_by_hand_keeps_a_fixed_lease",
        "client_care::dropped_client_lets_its_guards_be";
    GrantsHeldKeys: "S1", "client_waiting::counter_under_contention",
        "client_jobs::running_job_is_told_and_not_reset",
        "client_locks::handles_of_one_client_exclude_each_other",
        "client_waiting::budget_bounds_the_wait",
        "client_many::one_budget_for_all",
        "client_many::wait_ends_when_all_are_free",
        "client_many::opposite_order_does_not_deadlock",
        "client_locks::contention_is_a_value",
        "client_waiting::no_budget_is_a_try",
        "client_waiting::try_ends_in_one_call",
        "client_sharing::handles_are_owners",
        "client_locks::label_is_what_others_see";
    HidesGrantsFromPolls: "L2", "client_waiting::turn_comes_within_the_budget",
        "client_push::unreachable_client_keeps_its_turn";
    ForcesNothing: "S3", "client_renewal::forced_now_is_noticed",
        "client_many::loss_of_one_is_the_loss_of_all",
        "client_many::loss_while_waiting_takes_all_anew",
        "client_renewal::forced_release_stops_a_body",
        "client_renewal::revoked_before_the_subscription_is_noticed",
        "client_renewal::revoked_guard_is_lost";
    FailsItsOwnCheck: "rule 12", "stalls::backend_finds_no_fault_of_its_own";
    ActsInTwoSteps: "S1", "stalls::stalled_acquire_takes_no_held_key";
    NeverExpires: "L1", "expiry::unattended_lease_frees_the_key",
        "client_waiting::crashed_holder_is_waited_out",
        "client_renewal::fixed_lease_ends",
        "client_renewal::longest_hold_ends",
        "client_renewal::late_release_spares_the_next_holder";
    ExpiresLate: "rule 1", "expiry::not_a_moment_early";
    ClockOfEachReply: "rule 1", "exclusion::stamps_advance_on_one_clock";
    ReportsTheWholeLease: "rule 2", "redelivery::acquire_again_says_the_time_left";
    RenewalReportsItsLease: "rule 2", "expiry::renewal_never_shortens";
    PollAfterTooLong: "rule 3", "waiting::advice_stays_within_the_poll_interval";
    OneReaderExpiresAll: "rule 4", "expiry::one_reader_of_several";
    OneReleaseFreesAllHolds: "rule 5", "reentrancy::nested_holds_are_counted",
        "client_sharing::reentrant_guards_are_counted",
        "client_sharing::nested_writer_downgrades_by_dropping",
        "client_sharing::nested_guards_share_token_and_deadline";
    ConvertsInAnyEpoch: "rule 6", "redelivery_queue::doubled_downgrade_undoes_no_upgrade";
    PrefersReaders: "rule 7", "starvation::writer_against_endless_readers",
        "client_waiting::writer_is_not_starved_by_readers";
    PrefersWriters: "rule 7", "starvation::readers_against_endless_writers",
        "client_waiting::reader_is_not_starved_by_writers";
    ServesTheLatest: "rule 7", "starvation::fair_bound_of_overtaking",
        "waiting::first_come_first_served";
    LetsNewcomersPass: "rule 7", "waiting::nobody_overtakes_a_waiter";
    PushesNothing: "rule 8", "notifications::grant_is_pushed",
        "client_push::grant_comes_without_another_call",
        "client_push::push_may_come_before_the_reply";
    UnsubscribedPollRemovesTheWaiter: "rule 9", "client_push::waiters_outlive_a_lost_subscription";
    EveryReleaseSucceeds: "S3", "ownership::second_release_reports_not_held";
    AcceptsEverything: "S3", "client_renewal::revoked_guard_is_lost";
    NeverUnreachable: "rule 9", "unreachable::unreachable_waiter_is_passed_over";
    PollConfirms: "rule 10", "offers::poll_never_extends_an_offer";
    WaitersNeverExpire: "rule 10", "offers::dead_waiter_costs_at_most_one_waiter_lease";
    OffersIgnoreTheLease: "rule 10", "offers::dead_granted_waiter_costs_its_own_lease",
        "offers::short_lease_shortens_the_offer";
    LimitsIgnored: "rule 10", "limits::queue_full";
    CountsDeliveries: "rule 12", "redelivery::acquire_twice_holds_once";
    ForgetsEarlyReleases: "rule 12", "redelivery::release_before_acquire_makes_it_stale";
    DeliversAnyTime: "rule 12", "redelivery::acquire_after_its_window_is_too_late";
    PollCreates: "rule 12", "redelivery_queue::poll_after_the_release_creates_nothing";
    HoldsAndRefuses: "rule 13", "limits::holders_full";
    ForeignIsUnavailable: "rule 14", "foreign::acquire_reports_it";
    TokensDecrease: "S4", "tokens::tokens_increase_over_epochs",
        "client_locks::tokens_of_guards_increase",
        "client_sharing::store_fences_a_sleeper";
    TokensOfEachReader: "rule 15", "tokens::overlapping_readers_share_one";
    FloorIgnored: "rule 15", "tokens::floor_lifts_the_token";
    FoldsCaseOfKeys: "S1", "names::no_two_names_collide";
    TruncatesKeys: "S1", "names::longest_names";
    OnePermitTooMany: "S1", "semaphores::permits_add_up_to_the_capacity",
        "client_sharing::permits_are_shared";
    ReadersExclude: "S1", "readers_writers::readers_share",
        "client_sharing::readers_share_and_writers_do_not",
        "client_sharing::downgrade_never_lets_go",
        "client_sharing::upgrade_of_the_sole_reader",
        "client_sharing::writing_over_reading_is_refused";
    RevokesImmediately: "S1", "forced::revoked_holder_keeps_its_lease";
    ForcesAnyEpoch: "S3", "forced::never_a_later_epoch",
        "client_renewal::force_spares_later_holders";
    InspectionRenews: "L1", "inspection::looking_extends_nothing";
    HidesNotes: "rule 16", "notes::note_stands_after_the_release",
        "client_jobs::late_timer_finds_it_done",
        "client_jobs::one_of_many_machines_runs_it",
        "client_jobs::last_success_is_remembered",
        "client_jobs::failed_attempts_count_everywhere",
        "client_jobs::dropped_attempt_counts",
        "client_jobs::followers_find_the_leader",
        "client_jobs::observers_see_each_term";
    ReversesReplies: "trait contract", "batches::each_renewal_by_itself",
        "batches::each_acquire_by_itself";
    OneErrorFailsAll: "trait contract", "batches::one_error_touches_no_other",
        "batches::acquire_of_a_foreign_key_touches_no_other";
    DeclaresMore: "trait contract", "exclusion::capabilities_are_as_declared";
}

fn harness(how: Break) -> Arc<dyn Harness> {
    Arc::new(Reference::wrapped(Arc::new(move |inner, server| {
        let server = Arc::clone(server);
        let step = match how {
            Break::PrefersReaders => Some(unfair::readers_first as _),
            Break::PrefersWriters => Some(unfair::writers_first as _),
            Break::ServesTheLatest => Some(unfair::latest_first as _),
            Break::LetsNewcomersPass => Some(unfair::newcomers_first as _),
            _ => None,
        };
        if let Some(step) = step {
            server.step.get_or_init(|| step);
        }
        Arc::new(Broken { inner, server, how })
    })))
}

#[test]
fn each_break_fails_its_case() {
    assert_each_fails(BREAKS, harness);
}

#[test]
fn reference_passes_the_same_cases() {
    let plain: Arc<dyn Harness> = Arc::new(Reference::plain());
    for (_, _, name) in BREAKS {
        assert_eq!(run_case(&plain, case(name)), Ok(()), "{name}");
    }
}

/// A backend that breaks one rule.
#[derive(Debug)]
struct Broken {
    inner: Arc<dyn LockBackend>,
    server: Arc<Server>,
    how: Break,
}

impl Broken {
    fn notes<T>(&self, with: impl FnOnce(&mut Vec<Acquire>) -> T) -> T {
        let notes: &Mutex<Vec<Acquire>> = &self.server.notes;
        with(&mut notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The request that first carried the operation.
    fn noted(&self, operation: Operation) -> Option<Acquire> {
        self.notes(|notes| {
            let mut requests = notes.iter();
            requests.find(|it| it.operation == operation).cloned()
        })
    }

    fn key(&self, key: &Key) -> Key {
        let name = match self.how {
            Break::FoldsCaseOfKeys => key.as_str().to_lowercase(),
            Break::TruncatesKeys => key.as_str().chars().take(64).collect(),
            _ => return key.clone(),
        };
        Key::new(name).expect("not longer than before")
    }

    fn spec(&self, spec: LockSpec) -> LockSpec {
        let permits = spec.capacity() + u32::from(self.how == Break::OnePermitTooMany);
        let same = match spec.kind() {
            Kind::Mutex => LockSpec::mutex(),
            Kind::RwLock => LockSpec::rw_lock(),
            Kind::Semaphore => LockSpec::semaphore(permits).expect("few"),
        };
        let lease = match self.how {
            Break::WaitersNeverExpire => Duration::from_secs(60),
            _ => spec.waiter_lease(),
        };
        same.with_waiter_lease(lease).expect("a valid waiter lease")
    }

    /// Returns the request to send to the reference instead.
    async fn altered(&self, request: &Acquire) -> Acquire {
        let mut sent = request.clone();
        sent.key = self.key(&request.key);
        sent.spec = self.spec(request.spec);
        match self.how {
            Break::NeverExpires => sent.lease = Duration::from_secs(3_000),
            Break::ExpiresLate => sent.lease += Duration::from_millis(3),
            Break::OffersIgnoreTheLease if sent.wait.is_some() => sent.lease = MAX_LEASE,
            Break::NeverUnreachable => sent.wait = sent.wait.map(|_| Wait::new(false)),
            Break::LimitsIgnored | Break::HoldsAndRefuses => sent.limits = Limits::default(),
            Break::FloorIgnored => sent.floor = None,
            Break::ReadersExclude if sent.mode == Mode::Shared => sent.mode = Mode::Exclusive,
            Break::DeliversAnyTime => sent.deliver_before = self.soon().await,
            Break::CountsDeliveries if self.noted(request.operation).is_some() => {
                sent.operation.sequence += 1_000_000;
            }
            _ => {}
        }
        sent
    }

    /// Answers without a call of the reference.
    async fn answer_without<T>(&self, reply: T) -> Result<Stamped<T>, BackendError> {
        let stamp = self.inner.hello().await?;
        Ok(Stamped { stamp, reply })
    }

    async fn soon(&self) -> ServerTime {
        let stamp = self.inner.hello().await.expect("a reply");
        stamp.at.saturating_add(Duration::from_secs(1))
    }

    fn token(&self, token: FencingToken, operation: Operation) -> FencingToken {
        FencingToken::new(match self.how {
            Break::TokensDecrease => (1 << 53) - token.get(),
            Break::TokensOfEachReader => token.get() + u64::from(operation.session.as_bytes()[0]),
            _ => token.get(),
        })
    }

    fn acquired(&self, acquired: Acquired, request: &Acquire) -> Acquired {
        let remaining = match self.how {
            Break::ReportsTheWholeLease => request.lease,
            Break::DoublesTheRemainingTime => acquired.remaining * 2,
            Break::ExpiresLate => acquired.remaining - Duration::from_millis(3),
            _ => acquired.remaining,
        };
        Acquired {
            token: self.token(acquired.token, request.operation),
            remaining,
            ..acquired
        }
    }

    fn stamp(&self, stamp: Stamp) -> Stamp {
        match self.how {
            Break::ClockOfEachReply => Stamp {
                clock: ClockId::new(stamp.at.as_micros()),
                ..stamp
            },
            _ => stamp,
        }
    }

    async fn poll_one(&self, request: &Poll) -> Result<Stamped<PollReply>, BackendError> {
        let sent = Poll::new(self.key(&request.key), request.operation, request.listening);
        let mut reply = first(self.inner.poll(from_ref(&sent)).await)?;
        match (&mut reply.reply, self.how) {
            (PollReply::Acquired(_), Break::PollConfirms) => {
                self.renew_for_long(&sent.key, request.operation).await?;
                reply = first(self.inner.poll(&[sent]).await)?;
            }
            (PollReply::Queued(queued), Break::PollAfterTooLong) => {
                queued.poll_after = Duration::from_secs(5);
            }
            (PollReply::Acquired(_), Break::HidesGrantsFromPolls) => {
                reply.reply = PollReply::Queued(Queued {
                    ahead: 0,
                    poll_after: Duration::from_secs(1),
                    waiter_remaining: Duration::from_secs(5),
                });
            }
            (PollReply::Queued(_), Break::UnsubscribedPollRemovesTheWaiter)
                if !request.listening =>
            {
                let release = Release::new(sent.key, request.operation);
                first(self.inner.release(&[release]).await)?;
                reply.reply = PollReply::Gone(leasehold_api::EndReason::Expired);
            }
            (PollReply::Gone(_), Break::PollCreates) => {
                if let Some(mut again) = self.noted(request.operation) {
                    again.operation.sequence += 1_000_000;
                    again.deliver_before = self.soon().await;
                    self.inner.acquire(from_ref(&again)).await.remove(0)?;
                }
            }
            _ => {}
        }
        Ok(reply)
    }

    async fn acquire_one(&self, request: &Acquire) -> Result<Stamped<AcquireReply>, BackendError> {
        let sent = self.altered(request).await;
        self.notes(|notes| notes.push(request.clone()));
        let was_free = self.how == Break::ActsInTwoSteps && {
            let free = self.current(&sent.key).await?.is_empty();
            tokio::task::yield_now().await;
            free
        };
        let Stamped { stamp, reply } = match self.inner.acquire(from_ref(&sent)).await.remove(0) {
            Err(BackendError::ForeignValue { .. }) if self.how == Break::ForeignIsUnavailable => {
                return Err(BackendError::unavailable("the key is unusable"));
            }
            reply => reply?,
        };
        let reply = match reply {
            AcquireReply::Acquired(acquired) => {
                AcquireReply::Acquired(self.acquired(acquired, request))
            }
            AcquireReply::Contended(_) | AcquireReply::Queued(_)
                if self.how == Break::GrantsHeldKeys || was_free =>
            {
                AcquireReply::Acquired(Acquired {
                    token: FencingToken::new(1),
                    holds: 1,
                    remaining: request.lease,
                })
            }
            AcquireReply::Queued(mut queued) if self.how == Break::PollAfterTooLong => {
                queued.poll_after = Duration::from_secs(5);
                AcquireReply::Queued(queued)
            }
            other => other,
        };
        let stamp = self.stamp(stamp);
        Ok(Stamped { stamp, reply })
    }

    async fn renew_for_long(
        &self,
        key: &Key,
        operation: Operation,
    ) -> Result<Stamped<RenewReply>, BackendError> {
        let lease = Duration::from_secs(30);
        let request = Renew::new(key.clone(), operation, lease).expect("a valid lease");
        first(self.inner.renew(&[request]).await)
    }

    async fn renew_one(&self, request: &Renew) -> Result<Stamped<RenewReply>, BackendError> {
        let mut sent = request.clone();
        sent.key = self.key(&request.key);
        if self.how == Break::RenewsNothing {
            sent.lease = Duration::from_millis(1);
        }
        let mut reply = first(self.inner.renew(&[sent]).await)?;
        match (&mut reply.reply, self.how) {
            (RenewReply::Lost(_), Break::RenewalResurrects | Break::AcceptsEverything) => {
                reply.reply = RenewReply::Renewed {
                    token: FencingToken::new(1),
                    remaining: request.lease,
                };
            }
            (RenewReply::Renewed { remaining, .. }, Break::RenewalReportsItsLease) => {
                *remaining = request.lease;
            }
            (RenewReply::Lost(_), Break::OneReaderExpiresAll) => {
                let others = self.notes(|notes| notes.clone());
                for other in others.iter().filter(|other| other.mode == Mode::Shared) {
                    let release = Release::new(other.key.clone(), other.operation);
                    first(self.inner.release(&[release]).await)?;
                }
            }
            _ => {}
        }
        Ok(reply)
    }

    async fn release_one(&self, request: &Release) -> Result<Stamped<ReleaseReply>, BackendError> {
        let mut sent = request.clone();
        sent.key = self.key(&request.key);
        let known = self.noted(request.operation);
        match self.how {
            Break::ReleasesAnyHolder => {
                let last = self.notes(|notes| notes.last().map(|last| last.operation));
                sent.operation = last.unwrap_or(sent.operation);
            }
            Break::ReleasesNothing => {
                let (holds_left, holder) = (0, None);
                let reply = ReleaseReply::Released { holds_left, holder };
                return self.answer_without(reply).await;
            }
            Break::ForgetsEarlyReleases if known.is_none() => {
                let reply = ReleaseReply::NotHeld(leasehold_api::EndReason::Unknown);
                return self.answer_without(reply).await;
            }
            Break::OneReleaseFreesAllHolds => {
                let all = self.notes(|notes| notes.clone());
                for other in all.iter().filter(|o| o.operation != sent.operation) {
                    let release = Release::new(other.key.clone(), other.operation);
                    first(self.inner.release(&[release]).await)?;
                }
            }
            _ => {}
        }
        let mut reply = first(self.inner.release(&[sent]).await)?;
        if let (ReleaseReply::NotHeld(_), Break::EveryReleaseSucceeds | Break::AcceptsEverything) =
            (&reply.reply, self.how)
        {
            reply.reply = ReleaseReply::Released {
                holds_left: 1,
                holder: Some(leasehold_api::HolderStatus {
                    mode: Mode::Exclusive,
                    token: FencingToken::new(1),
                    remaining: Duration::from_secs(1),
                }),
            };
        }
        Ok(reply)
    }

    /// The tokens of the current holders.
    async fn current(&self, key: &Key) -> Result<Vec<FencingToken>, BackendError> {
        let view = self.inner.inspect(key).await?.reply;
        Ok(view.holders.iter().map(|holder| holder.token).collect())
    }
}

fn first<T>(mut replies: Vec<Result<T, BackendError>>) -> Result<T, BackendError> {
    replies.remove(0)
}

/// Sends the requests of a batch one by one, and changes the replies.
macro_rules! one_by_one {
    ($broken:ident, $batch:ident, $one:ident) => {{
        let mut replies = Vec::new();
        for request in $batch {
            replies.push($broken.$one(request).await);
        }
        change_replies($broken.how, replies)
    }};
}

/// Changes the replies to a batch.
fn change_replies<T>(
    how: Break,
    mut replies: Vec<Result<T, BackendError>>,
) -> Vec<Result<T, BackendError>> {
    let failed = replies.iter().find_map(|it| it.as_ref().err().cloned());
    match (how, failed) {
        (Break::ReversesReplies, _) => replies.reverse(),
        (Break::OneErrorFailsAll, Some(error)) => {
            replies = replies.into_iter().map(|_| Err(error.clone())).collect();
        }
        _ => {}
    }
    replies
}

#[async_trait]
impl LockBackend for Broken {
    fn capabilities(&self) -> Capabilities {
        if self.how == Break::DeclaresMore {
            return Capabilities::minimal();
        }
        self.inner.capabilities()
    }

    async fn hello(&self) -> Result<Stamp, BackendError> {
        Ok(self.stamp(self.inner.hello().await?))
    }

    async fn self_check(&self, key: &Key) -> Result<(), BackendError> {
        if self.how == Break::FailsItsOwnCheck {
            return Err(BackendError::rejected("late writes are applied"));
        }
        self.inner.self_check(key).await
    }

    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        let notifications = self.inner.listen(session).await?;
        if matches!(self.how, Break::PushesNothing | Break::HidesGrantsFromPolls) {
            // Keeps the subscription but delivers nothing.
            return Ok(Box::pin(stream::poll_fn(move |_| {
                let _ = &notifications;
                std::task::Poll::Pending
            })));
        }
        Ok(notifications)
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        one_by_one!(self, batch, acquire_one)
    }

    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        one_by_one!(self, batch, poll_one)
    }

    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        one_by_one!(self, batch, renew_one)
    }

    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>> {
        one_by_one!(self, batch, release_one)
    }

    async fn convert(&self, request: &Convert) -> Result<Stamped<ConvertReply>, BackendError> {
        let mut sent = request.clone();
        if self.how == Break::ConvertsInAnyEpoch {
            let current = self.current(&request.key).await?;
            sent.expected = current.first().copied().unwrap_or(sent.expected);
        }
        self.inner.convert(&sent).await
    }

    async fn inspect(&self, key: &Key) -> Result<Stamped<InspectReply>, BackendError> {
        if self.how == Break::InspectionRenews {
            let last = self.notes(|notes| notes.last().map(|last| last.operation));
            if let Some(operation) = last {
                self.renew_for_long(key, operation).await?;
            }
        }
        let mut answer = self.inner.inspect(key).await?;
        if self.how == Break::HidesNotes {
            answer.reply.note = None;
        }
        Ok(answer)
    }

    leasehold_api::forward_lock_backend! { |broken| broken.inner; runtime write_note close }

    async fn list(&self, request: &List) -> Result<Listed, BackendError> {
        let mut sent = request.clone();
        if self.how == Break::ListsAllPrefixes {
            sent.prefix.clear();
        }
        let mut page = self.inner.list(&sent).await?;
        match self.how {
            Break::ListsNothing => page = Listed::default(),
            Break::ListsOnePage => page.next = None,
            _ => {}
        }
        Ok(page)
    }

    async fn force_release(
        &self,
        request: &ForceRelease,
    ) -> Result<Stamped<ForceReply>, BackendError> {
        let mut sent = request.clone();
        match self.how {
            Break::ForcesNothing => sent.tokens.clear(),
            Break::RevokesImmediately => sent.how = ForceMode::Now,
            Break::ForcesAnyEpoch => sent.tokens = self.current(&request.key).await?,
            _ => {}
        }
        self.inner.force_release(&sent).await
    }
}
