//! Reports the work of a client: `tracing` events, metrics, and the hook for losses.
//!
//! The rest of the client calls one method of [`Events`] for each thing that happens. The method
//! decides which event, metrics and hook calls follow. `docs/observability.md` lists the names,
//! levels and fields. No event carries anything that authorizes a command: no session, no owner and
//! no sequence number.
//!
//! Losses go into a queue. The renewal task drains it and calls the hook, so the hook never runs
//! under a lock or in the caller's thread.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::bounds::SHORT_LEASE;
use crate::client::error::Loss;
use crate::client::state::answer::Answer;
use crate::client::state::hold_state::HoldState;
use crate::client::state::holder::HolderCell;
use crate::client::state::loss::{Hook, LossEvent};
use crate::client::state::release_outcome::Acknowledged;
use crate::client::state::release_queue::PendingRelease;
use crate::client::state::settings::ClientSettings;
use crate::client::telemetry::failing::{Change, Failing};
use crate::client::telemetry::meter::{self, adjust, count, record};
use crate::error::{BackendError, Chain};
use crate::id::{FencingToken, Key, Label};
use crate::reply::{PollReply, Queued, ReleaseReply, RenewReply};
use crate::request::Mode;
use crate::runtime::Moment;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};
use crate::time::FireTime;

pub(crate) const TARGET: &str = "leasehold";

/// Emits a `tracing` event whose name is also its message.
macro_rules! emit {
    ($level:ident, $name:literal $(, $($field:tt)+)?) => {
        tracing::event!(
            name: $name,
            target: $crate::client::telemetry::events::TARGET,
            tracing::Level::$level,
            $($($field)+,)? $name
        )
    };
}
pub(crate) use emit;

#[derive(Debug)]
pub(crate) struct Events {
    label: Label,
    on_loss: Option<Hook>,
    /// Losses for which the hook was not called yet.
    losses: Mutex<VecDeque<LossEvent>>,
    short_lease_reported: AtomicBool,
    failing: Mutex<Failing>,
    /// Whether the subscription was lost, or failed, and is not back.
    subscription_is_lost: AtomicBool,
}

impl Events {
    pub(crate) fn new(settings: &ClientSettings) -> Self {
        #[cfg(feature = "metrics")]
        meter::describe();
        Self {
            label: settings.label.clone(),
            on_loss: settings.on_loss.clone(),
            losses: Mutex::default(),
            short_lease_reported: AtomicBool::new(false),
            failing: Mutex::default(),
            subscription_is_lost: AtomicBool::new(false),
        }
    }

    /// A call failed while its caller waits for a lock, and is retried. `attempt` counts the
    /// failures in a row.
    pub(crate) fn acquire_failed(
        &self,
        key: &Key,
        attempt: u32,
        retry_in: Duration,
        error: &BackendError,
    ) {
        let (key, retry_in_ms) = (key.as_str(), millis(retry_in));
        // The first failure tells everybody why nothing happens. The others are details.
        if attempt == 1 {
            emit!(INFO, "acquire failed", key, attempt, retry_in_ms, error = %Chain(error));
        } else {
            emit!(DEBUG, "acquire failed", key, attempt, retry_in_ms, error = %Chain(error));
        }
        count!(meter::ACQUIRE_RETRIES);
    }

    /// The server answers again, `after` the first of `failed` failures.
    pub(crate) fn acquire_recovered(&self, key: &Key, failed: u32, after: Duration) {
        let (key, after_ms) = (key.as_str(), millis(after));
        emit!(INFO, "acquire recovered", key, failed, after_ms);
    }

    pub(crate) fn queued(&self, key: &Key, mode: Mode, queued: &Queued) {
        let ahead = queued.ahead;
        emit!(DEBUG, "queued", key = key.as_str(), mode = %DisplayMode(mode), ahead);
        count!(meter::QUEUED, "mode" => mode_name(mode));
    }

    pub(crate) fn poll(&self, key: &Key, answer: &Result<Answer<PollReply>, BackendError>) {
        let (outcome, error) = match answer {
            Ok(answer) => match answer.reply {
                PollReply::Acquired(_) => ("acquired", None),
                PollReply::Queued(_) => ("queued", None),
                PollReply::Gone(_) => ("gone", None),
            },
            Err(error) => ("failed", Some(tracing::field::display(Chain(error)))),
        };
        emit!(TRACE, "polled", key = key.as_str(), outcome, error);
        count!(meter::POLLS, "outcome" => outcome);
    }

    pub(crate) fn renewal(&self, key: &Key, answer: &Result<Answer<RenewReply>, BackendError>) {
        let key = key.as_str();
        let outcome = match answer.as_ref().map(|answer| answer.reply) {
            Ok(RenewReply::Renewed { token, remaining }) => {
                let (token, remaining_ms) = (token.get(), millis(remaining));
                emit!(TRACE, "renewed", key, token, remaining_ms);
                "renewed"
            }
            Ok(RenewReply::Lost(reason)) => {
                emit!(DEBUG, "not renewed", key, reason = reason.name());
                "lost"
            }
            Err(error) => {
                emit!(DEBUG, "renewal failed", key, error = %Chain(error));
                "failed"
            }
        };
        count!(meter::RENEWALS, "outcome" => outcome);
    }

    /// A call that renews holders was answered.
    pub(crate) fn renewals<'a>(
        &self,
        holders: impl ExactSizeIterator<Item = &'a Arc<HolderCell>>,
        answers: &[Result<Answer<RenewReply>, BackendError>],
        now: Moment,
    ) {
        let count = holders.len();
        let answered = holders.zip(answers.iter().map(Result::is_err));
        let change = self.failing.lock().note(answered, now);
        let mut errors = answers.iter().filter_map(|answer| answer.as_ref().err());
        match (errors.next(), change) {
            (Some(error), change) => {
                let failed = 1 + errors.count();
                if change == Some(Change::Begun) {
                    emit!(INFO, "renewals failed", failed, count, error = %Chain(error));
                } else {
                    emit!(DEBUG, "renewals failed", failed, count, error = %Chain(error));
                }
            }
            (None, Some(Change::Over { failures, after })) => {
                let after_ms = millis(after);
                emit!(INFO, "renewals recovered", failed = failures, after_ms);
            }
            (None, _) => {}
        }
    }

    /// A conversion succeeded. `from` is the old mode if the guard is still in use.
    pub(crate) fn converted(
        &self,
        key: &Key,
        from: Option<Mode>,
        to: Mode,
        token: FencingToken,
        class: &'static str,
    ) {
        let token = token.get();
        emit!(DEBUG, "converted", key = key.as_str(), mode = %DisplayMode(to), token);
        if let Some(from) = from {
            adjust!(meter::GUARDS, -1.0, "mode" => mode_name(from), "class" => class);
            adjust!(meter::GUARDS, 1.0, "mode" => mode_name(to), "class" => class);
        }
    }

    /// A caller is about to get a guard.
    pub(crate) fn guard_made(&self, mode: Mode, class: &'static str) {
        adjust!(meter::GUARDS, 1.0, "mode" => mode_name(mode), "class" => class);
    }

    /// The release of a hold that was not lost has begun.
    pub(crate) fn releasing(&self, holder: &HolderCell, hold: &HoldState, now: Moment) {
        let held = now.saturating_since(hold.since);
        emit!(
            DEBUG,
            "releasing",
            key = holder.key.as_str(),
            mode = %DisplayMode(hold.mode),
            token = holder.token().get(),
            held_ms = millis(held)
        );
        meter_ended_guard(hold, held, "released");
    }

    /// A release was acknowledged or given up.
    pub(crate) fn released(
        &self,
        job: &PendingRelease,
        result: &Result<Acknowledged, BackendError>,
        now: impl Fn() -> Moment,
    ) {
        // Nobody has been told of this loss, and nobody is if the guard was dropped. If the lease has ended since, that
        // alone may be why nothing was left to release.
        let held = |holder: &Arc<HolderCell>| !holder.time_left(now()).is_zero();
        let is_new_loss = |it: &Acknowledged| !it.was_lost && it.loss().is_some();
        let found_loss =
            result.as_ref().is_ok_and(is_new_loss) && job.holder.as_ref().is_some_and(held);
        let (outcome, reason) = match result.as_ref().map(|it| it.reply) {
            Ok(ReleaseReply::Released { .. }) => ("released", None),
            Ok(ReleaseReply::Left) => ("left", None),
            Ok(ReleaseReply::NotHeld(reason)) => ("not_held", Some(reason.name())),
            Err(_) => ("given_up", None),
        };
        let outcome = if found_loss { "lost" } else { outcome };
        let (key, background) = (job.key.as_str(), job.background);
        match result {
            Ok(_) if found_loss => emit!(WARN, "released", key, outcome, reason, background),
            Ok(_) => emit!(DEBUG, "released", key, outcome, reason, background),
            Err(error) => emit!(INFO, "released", key, outcome, error = %Chain(error), background),
        }
        let by = if background { "background" } else { "release" };
        count!(meter::RELEASES, "outcome" => outcome, "by" => by);
    }

    /// A release failed and is retried.
    pub(crate) fn release_failed(&self, job: &PendingRelease, error: &BackendError) {
        let key = job.key.as_str();
        // The first refusal tells an operator what to mend while the lock stays taken. The others are details.
        if error.is_transient() || job.was_refused {
            emit!(DEBUG, "release failed", key, error = %Chain(error));
        } else {
            emit!(INFO, "release failed", key, error = %Chain(error));
        }
        count!(meter::RELEASE_RETRIES);
    }

    pub(crate) fn lost(&self, holder: &HolderCell, hold: &HoldState, reason: Loss, now: Moment) {
        let held = now.saturating_since(hold.since);
        let token = holder.token();
        emit!(
            WARN,
            "lost",
            key = holder.key.as_str(),
            mode = %DisplayMode(hold.mode),
            token = token.get(),
            reason = loss_name(reason),
            held_ms = millis(held)
        );
        meter_ended_guard(hold, held, "lost");
        let (mode, reason_name) = (mode_name(hold.mode), loss_name(reason));
        count!(meter::LOSSES, "mode" => mode, "reason" => reason_name, "class" => hold.class);
        if self.on_loss.is_some() {
            self.losses.lock().push_back(LossEvent {
                key: holder.key.clone(),
                mode: hold.mode,
                token,
                reason,
                held,
                label: self.label.clone(),
            });
        }
    }

    /// Calls the hook for each queued loss.
    pub(crate) fn call_hook(&self) {
        let Some(hook) = &self.on_loss else {
            return;
        };
        loop {
            // The hook may run any code, so the lock is released before the call.
            let Some(event) = self.losses.lock().pop_front() else {
                return;
            };
            if !hook.call(&event) {
                emit!(ERROR, "on_loss panicked", key = event.key.as_str());
            }
        }
    }

    /// The body of a job is about to run.
    pub(crate) fn job_started(&self, key: &Key, fire: FireTime, attempt: u32, token: FencingToken) {
        let (key, fire) = (key.as_str(), fire.as_millis());
        emit!(INFO, "job started", key, fire, attempt, token = token.get());
    }

    /// The body of a job is over.
    pub(crate) fn job_ended(
        &self,
        key: &Key,
        fire: FireTime,
        attempt: u32,
        outcome: &'static str,
        ran: Duration,
        class: &'static str,
    ) {
        let (key, fire, ran_ms) = (key.as_str(), fire.as_millis(), millis(ran));
        if outcome == "done" {
            emit!(INFO, "job ended", key, fire, attempt, outcome, ran_ms);
        } else {
            emit!(WARN, "job ended", key, fire, attempt, outcome, ran_ms);
        }
        record!(meter::JOB, ran, "outcome" => outcome, "class" => class);
    }

    pub(crate) fn job_missed(&self, key: &Key, last_done: Option<FireTime>) {
        let (key, last_done) = (key.as_str(), last_done.map(FireTime::as_millis));
        emit!(WARN, "job missed", key, last_done);
    }

    pub(crate) fn job_given_up(&self, key: &Key, attempts: u32) {
        emit!(WARN, "job given up", key = key.as_str(), attempts);
    }

    /// A call that runs a job has returned.
    pub(crate) fn job_call(&self, outcome: &'static str, class: &'static str) {
        count!(meter::JOBS, "outcome" => outcome, "class" => class);
    }

    /// A term of a leader has begun.
    pub(crate) fn elected(&self, key: &Key, term: FencingToken, class: &'static str) {
        let term = term.get();
        emit!(INFO, "elected", key = key.as_str(), term);
        count!(meter::TERMS, "class" => class);
    }

    /// A leader that has not lost its term ends it.
    pub(crate) fn resigned(&self, key: &Key, term: FencingToken, led: Duration) {
        let (key, term, led_ms) = (key.as_str(), term.get(), millis(led));
        emit!(INFO, "resigned", key, term, led_ms);
    }

    pub(crate) fn clock_stepped(&self) {
        emit!(WARN, "server clock stepped");
        count!(meter::CLOCK_STEPS);
    }

    /// The clocks of two servers differ by more than the drift allowance.
    pub(crate) fn clocks_apart(&self, ahead: &str, behind: &str, by: Duration) {
        let difference_ms = millis(by);
        emit!(WARN, "server clocks differ", ahead, behind, difference_ms);
    }

    pub(crate) fn subscription(&self, listening: bool) {
        let was_lost = self
            .subscription_is_lost
            .swap(!listening, Ordering::Relaxed);
        if listening && was_lost {
            emit!(INFO, "subscribed");
        } else if listening {
            emit!(DEBUG, "subscribed");
        } else {
            emit!(WARN, "subscription lost");
            count!(meter::SUBSCRIPTION_FAILURES);
        }
    }

    /// The server refused the subscription or did not answer.
    pub(crate) fn subscription_failed(&self, error: &BackendError) {
        self.subscription_is_lost.store(true, Ordering::Relaxed);
        emit!(WARN, "subscription failed", error = %Chain(error));
        count!(meter::SUBSCRIPTION_FAILURES);
    }

    /// An acquisition uses this lease. Warns once for each client if the lease is short.
    pub(crate) fn check_lease(&self, key: &Key, lease: Duration) {
        if lease < SHORT_LEASE && !self.short_lease_reported.swap(true, Ordering::Relaxed) {
            let (key, lease_ms) = (key.as_str(), millis(lease));
            emit!(WARN, "short lease", key, lease_ms);
        }
    }
}

/// Counts a guard that is no longer in use, and records for how long it was.
fn meter_ended_guard(hold: &HoldState, held: Duration, outcome: &'static str) {
    let (mode, class) = (mode_name(hold.mode), hold.class);
    adjust!(meter::GUARDS, -1.0, "mode" => mode, "class" => class);
    record!(meter::HOLD, held, "mode" => mode, "outcome" => outcome, "class" => class);
}

pub(crate) struct DisplayMode(pub(crate) Mode);

impl fmt::Display for DisplayMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Mode::Permits(count) => write!(f, "permits({count})"),
            mode => f.write_str(mode_name(mode)),
        }
    }
}

pub(crate) const fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Permits(_) => "permits",
    }
}

const fn loss_name(loss: Loss) -> &'static str {
    match loss {
        Loss::Deadline => "deadline",
        Loss::Expired => "expired",
        Loss::Forced => "forced",
        Loss::Unknown => "unknown",
        Loss::ClockStepped => "clock_stepped",
        Loss::MaxHold => "max_hold",
        Loss::ClientClosed => "client_closed",
    }
}

pub(crate) fn millis(duration: Duration) -> f64 {
    // Whole microseconds, so that the conversion adds no digits.
    duration.as_micros() as f64 / 1e3
}
