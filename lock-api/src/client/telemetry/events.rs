//! What a client tells of its work: `tracing` events, metrics, and the hook for losses.
//!
//! Whatever happens is told by one call from where it happens, and what that comes to is decided
//! here. Names, levels and fields are those of `docs/observability.md`. No event carries what
//! authorises anything: no session, no owner, no sequence.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::backend::Capabilities;
use crate::bounds::SHORT_LEASE;
use crate::client::error::Loss;
use crate::client::state::hold_state::HoldState;
use crate::client::state::holder::HolderCell;
use crate::client::state::loss::{Hook, LossEvent};
use crate::client::state::settings::Settings;
use crate::client::telemetry::meter::{self, count, record, shift};
use crate::error::BackendError;
use crate::id::{FencingToken, Key, Label};
use crate::reply::{EndReason, PollReply, Queued, ReleaseReply, RenewReply};
use crate::request::Mode;
use crate::runtime::Moment;
use crate::sync::{AtomicBool, Mutex, Ordering};

pub(crate) const TARGET: &str = "leasehold";

/// An event; its name is its message too.
macro_rules! tell {
    ($level:ident, $name:literal $(, $($field:tt)+)?) => {
        tracing::event!(
            name: $name,
            target: $crate::client::telemetry::events::TARGET,
            tracing::Level::$level,
            $($($field)+,)? $name
        )
    };
}
pub(crate) use tell;

#[derive(Debug)]
pub(crate) struct Events {
    label: Label,
    has_tokens: bool,
    on_loss: Option<Hook>,
    /// Losses that the hook has not been called with.
    losses: Mutex<VecDeque<LossEvent>>,
    short_lease_told: AtomicBool,
}

impl Events {
    pub(crate) fn new(settings: &Settings, capabilities: Capabilities) -> Self {
        #[cfg(feature = "metrics")]
        meter::describe();
        Self {
            label: settings.label.clone(),
            has_tokens: capabilities.fencing_tokens,
            on_loss: settings.on_loss.clone(),
            losses: Mutex::default(),
            short_lease_told: AtomicBool::new(false),
        }
    }

    fn token(&self, token: FencingToken) -> Option<FencingToken> {
        self.has_tokens.then_some(token)
    }

    pub(crate) fn number(&self, token: FencingToken) -> Option<u64> {
        self.token(token).map(FencingToken::get)
    }

    /// An attempt has a place in the queue.
    pub(crate) fn queued(&self, key: &Key, mode: Mode, waiter: &Queued) {
        let ahead = waiter.ahead;
        tell!(DEBUG, "queued", key = key.as_str(), mode = %Shown(mode), ahead);
        count!(meter::QUEUED, "mode" => mode_name(mode));
    }

    /// A place in the queue was looked at.
    pub(crate) fn poll(&self, key: &Key, result: Result<&PollReply, &BackendError>) {
        let outcome = match result {
            Ok(PollReply::Acquired(_)) => "acquired",
            Ok(PollReply::Queued(_)) => "queued",
            Ok(PollReply::Gone(_)) => "gone",
            Err(_) => "failed",
        };
        let error = result.err().map(tracing::field::display);
        tell!(TRACE, "polled", key = key.as_str(), outcome, error);
        count!(meter::POLLS, "outcome" => outcome);
    }

    /// A holder was to be renewed; what fails is tried again until the deadline.
    pub(crate) fn renewal(&self, key: &Key, result: Result<&RenewReply, &BackendError>) {
        let key = key.as_str();
        let outcome = match result {
            Ok(RenewReply::Renewed { token, remaining }) => {
                let token = self.number(*token);
                tell!(
                    TRACE,
                    "renewed",
                    key,
                    token,
                    remaining_ms = millis(*remaining)
                );
                "renewed"
            }
            Ok(RenewReply::Lost(reason)) => {
                tell!(DEBUG, "not renewed", key, reason = reason_name(*reason));
                "lost"
            }
            Err(error) => {
                tell!(DEBUG, "renewal failed", key, %error);
                "failed"
            }
        };
        count!(meter::RENEWALS, "outcome" => outcome);
    }

    /// A call that was to renew `count` holders failed for `failed` of them.
    pub(crate) fn renewals_failed(&self, failed: usize, count: usize, error: &BackendError) {
        tell!(INFO, "renewals failed", failed, count, %error);
    }

    /// A conversion acted, on a guard that was in use in the mode `from`, if it was.
    pub(crate) fn converted(&self, key: &Key, from: Option<Mode>, to: Mode, token: FencingToken) {
        let token = self.number(token);
        tell!(DEBUG, "converted", key = key.as_str(), mode = %Shown(to), token);
        if let Some(from) = from {
            shift!(meter::GUARDS, -1.0, "mode" => mode_name(from));
            shift!(meter::GUARDS, 1.0, "mode" => mode_name(to));
        }
    }

    /// A guard is about to be handed out.
    pub(crate) fn guard_made(&self, mode: Mode) {
        shift!(meter::GUARDS, 1.0, "mode" => mode_name(mode));
    }

    /// The end of a hold that was not lost has begun.
    pub(crate) fn ending(&self, holder: &HolderCell, hold: &HoldState, now: Moment) {
        let held = now.saturating_since(hold.since);
        tell!(
            DEBUG,
            "ending",
            key = holder.key.as_str(),
            mode = %Shown(hold.mode),
            token = self.number(holder.token()),
            held_ms = millis(held)
        );
        Self::guard_over(hold.mode, held, "ended");
    }

    fn guard_over(mode: Mode, held: Duration, how: &'static str) {
        let mode = mode_name(mode);
        shift!(meter::GUARDS, -1.0, "mode" => mode);
        record!(meter::HOLD, held, "mode" => mode, "outcome" => how);
    }

    /// A hold was handed off; this client keeps it no longer.
    pub(crate) fn handed_off(&self, holder: &HolderCell, hold: &HoldState, now: Moment) {
        let held = now.saturating_since(hold.since);
        tell!(
            DEBUG,
            "handed off",
            key = holder.key.as_str(),
            mode = %Shown(hold.mode),
            token = self.number(holder.token()),
            held_ms = millis(held)
        );
        Self::guard_over(hold.mode, held, "handed_off");
    }

    /// A hold that was handed off was adopted by this client.
    pub(crate) fn adopted(&self, holder: &HolderCell, mode: Mode) {
        let token = self.number(holder.token());
        tell!(DEBUG, "adopted", key = holder.key.as_str(), mode = %Shown(mode), token);
    }

    /// An end was acknowledged, or given up.
    pub(crate) fn ended(
        &self,
        key: &Key,
        background: bool,
        result: &Result<ReleaseReply, BackendError>,
    ) {
        let (outcome, reason) = match result {
            Ok(ReleaseReply::Released { .. }) => ("released", None),
            Ok(ReleaseReply::Left) => ("left", None),
            Ok(ReleaseReply::NotHeld(reason)) => ("not_held", Some(reason_name(*reason))),
            Err(_) => ("given_up", None),
        };
        let key = key.as_str();
        match result {
            Ok(_) => tell!(DEBUG, "ended", key, outcome, reason, background),
            Err(error) => tell!(INFO, "ended", key, outcome, %error, background),
        }
        let by = if background { "background" } else { "release" };
        count!(meter::RELEASES, "outcome" => outcome, "by" => by);
    }

    /// An end got no answer; it is sent again.
    pub(crate) fn release_failed(&self, key: &Key, error: &BackendError) {
        tell!(DEBUG, "end failed", key = key.as_str(), %error);
        count!(meter::RELEASE_RETRIES);
    }

    /// A guard is lost.
    pub(crate) fn lost(&self, holder: &HolderCell, hold: &HoldState, reason: Loss, now: Moment) {
        let held = now.saturating_since(hold.since);
        let token = holder.token();
        tell!(
            WARN,
            "lost",
            key = holder.key.as_str(),
            mode = %Shown(hold.mode),
            token = self.number(token),
            reason = loss_name(reason),
            held_ms = millis(held)
        );
        Self::guard_over(hold.mode, held, "lost");
        count!(meter::LOSSES, "mode" => mode_name(hold.mode), "reason" => loss_name(reason));
        if self.on_loss.is_some() {
            self.losses.lock().push_back(LossEvent {
                key: holder.key.clone(),
                mode: hold.mode,
                token: self.token(token),
                reason,
                held,
                label: self.label.clone(),
            });
        }
    }

    /// Calls the hook with each loss that it has not been told.
    pub(crate) fn call_hook(&self) {
        let Some(hook) = &self.on_loss else {
            return;
        };
        loop {
            // Not under the lock: the hook may do anything.
            let Some(event) = self.losses.lock().pop_front() else {
                return;
            };
            if !hook.call(&event) {
                tell!(ERROR, "on_loss panicked", key = event.key.as_str());
            }
        }
    }

    /// The server's clock did not go on as the local one did.
    pub(crate) fn clock_stepped(&self) {
        tell!(WARN, "server clock stepped");
        count!(meter::CLOCK_STEPS);
    }

    /// Notifications come from now on, or come no longer.
    pub(crate) fn subscription(&self, listening: bool) {
        if listening {
            tell!(DEBUG, "subscribed");
        } else {
            tell!(WARN, "subscription lost");
            count!(meter::SUBSCRIPTION_FAILURES);
        }
    }

    /// The server does not let the client subscribe, or does not answer.
    pub(crate) fn not_subscribed(&self, error: &BackendError) {
        tell!(WARN, "subscription failed", %error);
        count!(meter::SUBSCRIPTION_FAILURES);
    }

    /// A lock is asked for with this lease.
    pub(crate) fn asked(&self, key: &Key, lease: Duration) {
        if lease < SHORT_LEASE && !self.short_lease_told.swap(true, Ordering::Relaxed) {
            tell!(
                WARN,
                "short lease",
                key = key.as_str(),
                lease_ms = millis(lease)
            );
        }
    }
}

/// A mode as events show it.
pub(crate) struct Shown(pub(crate) Mode);

impl fmt::Display for Shown {
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

const fn reason_name(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Expired => "expired",
        EndReason::Forced => "forced",
        EndReason::Released => "ended",
        EndReason::Unknown => "unknown",
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
    // Whole microseconds, so that no digits come from the conversion.
    duration.as_micros() as f64 / 1e3
}
