//! Reports one acquisition: a span around the call, and an event and metrics at its end.
//!
//! `finish` reports the outcome. If the future of the call is dropped first, the `Drop`
//! implementation reports the outcome `dropped`. So each acquisition is counted exactly once.

use tracing::Span;
use tracing::field::Empty;

use crate::client::acquire::request::{Ask, WaitLimit};
use crate::client::error::Error;
use crate::client::hold::Hold;
use crate::client::outcome::Outcome;
use crate::client::telemetry::events::{DisplayMode, TARGET, emit, millis, mode_name};
use crate::client::telemetry::meter::{self, adjust, count, record};
use crate::error::Chain;
use crate::runtime::Moment;

/// The report of one call that acquires a lock.
pub(crate) struct Acquisition<'a> {
    ask: Ask<'a>,
    limit: WaitLimit,
    began: Moment,
    span: Span,
    reported: bool,
}

impl<'a> Acquisition<'a> {
    pub(crate) fn begin(ask: Ask<'a>, limit: WaitLimit) -> Self {
        ask.client.events.check_lease(ask.key, ask.options.lease);
        let span = tracing::debug_span!(
            target: TARGET,
            "acquire",
            key = ask.key.as_str(),
            mode = %DisplayMode(ask.mode),
            outcome = Empty,
            token = Empty,
            waited_ms = Empty,
        );
        let acquisition = Self {
            ask,
            limit,
            began: ask.client.now(),
            span,
            reported: false,
        };
        acquisition.adjust_waiting(1.0);
        acquisition
    }

    /// A call that doesn't wait has its answer soon, and isn't counted.
    fn adjust_waiting(&self, by: f64) {
        if self.limit.waits() {
            let mode = mode_name(self.ask.mode);
            adjust!(meter::WAITING, by, "mode" => mode, "class" => self.ask.options.class);
        }
    }

    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    pub(crate) fn finish(mut self, result: &Result<Outcome<Hold>, Error>) {
        match result {
            Ok(Outcome::Acquired(hold)) => self.report("acquired", Some(hold), None),
            Ok(Outcome::Contended(late)) if late.timed_out => self.report("timed_out", None, None),
            Ok(Outcome::Contended(_)) => self.report("contended", None, None),
            Err(error @ Error::Refused { .. }) => self.report("refused", None, Some(error)),
            Err(error) => self.report("failed", None, Some(error)),
        }
    }

    fn report(&mut self, outcome: &'static str, hold: Option<&Hold>, error: Option<&Error>) {
        self.reported = true;
        let waited = self.ask.client.now().saturating_since(self.began);
        let token = hold.map(|hold| hold.token().get());
        self.span.record("outcome", outcome);
        self.span.record("token", token);
        self.span.record("waited_ms", millis(waited));
        let _entered = self.span.enter();
        let key = self.ask.key.as_str();
        let (mode, waited_ms) = (DisplayMode(self.ask.mode), millis(waited));
        if let Some(hold) = hold {
            let holds = hold.holder.holds();
            emit!(DEBUG, "granted", key, %mode, token, holds, waited_ms);
        } else {
            let error = error.map(|error| tracing::field::display(Chain(error)));
            emit!(DEBUG, "not granted", key, %mode, outcome, waited_ms, error);
        }
        self.adjust_waiting(-1.0);
        let (mode, class) = (mode_name(self.ask.mode), self.ask.options.class);
        count!(meter::ACQUISITIONS, "mode" => mode, "outcome" => outcome, "class" => class);
        record!(meter::WAIT, waited, "mode" => mode, "outcome" => outcome, "class" => class);
    }
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        if !self.reported {
            self.report("dropped", None, None);
        }
    }
}
