//! One call that takes a lock, as it is reported: a span, an event and metrics.

use tracing::Span;
use tracing::field::Empty;

use crate::client::acquire::request::Ask;
use crate::client::error::{Error, Outcome};
use crate::client::hold::Hold;
use crate::client::telemetry::events::{Shown, TARGET, millis, mode_name, tell};
use crate::client::telemetry::meter::{self, count, record};
use crate::runtime::Moment;

/// One call that takes a lock, as it is told of.
pub(crate) struct Acquisition<'a> {
    ask: Ask<'a>,
    began: Moment,
    span: Span,
    told: bool,
}

impl<'a> Acquisition<'a> {
    pub(crate) fn begin(ask: Ask<'a>) -> Self {
        ask.client.events.asked(ask.key, ask.options.lease);
        let span = tracing::debug_span!(
            target: TARGET,
            "acquire",
            key = ask.key.as_str(),
            mode = %Shown(ask.mode),
            outcome = Empty,
            token = Empty,
            waited_ms = Empty,
        );
        Self {
            ask,
            began: ask.client.now(),
            span,
            told: false,
        }
    }

    /// What the call runs in.
    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    pub(crate) fn finish(mut self, result: &Result<Outcome<Hold>, Error>) {
        match result {
            Ok(Outcome::Acquired(hold)) => self.tell("acquired", Some(hold), None),
            Ok(Outcome::Held(_)) => self.tell("held", None, None),
            Ok(Outcome::TimedOut(_)) => self.tell("timed_out", None, None),
            Err(error @ Error::Refused { .. }) => self.tell("refused", None, Some(error)),
            Err(error) => self.tell("failed", None, Some(error)),
        }
    }

    fn tell(&mut self, outcome: &'static str, hold: Option<&Hold>, error: Option<&Error>) {
        self.told = true;
        let events = &self.ask.client.events;
        let waited = self.ask.client.now().saturating_since(self.began);
        let token = hold.and_then(|hold| events.number(hold.token()));
        self.span.record("outcome", outcome);
        self.span.record("token", token);
        self.span.record("waited_ms", millis(waited));
        let _inside = self.span.enter();
        let key = self.ask.key.as_str();
        let (mode, waited_ms) = (Shown(self.ask.mode), millis(waited));
        if let Some(hold) = hold {
            let holds = hold.holder.holds();
            tell!(DEBUG, "granted", key, %mode, token, holds, waited_ms);
        } else {
            let error = error.map(tracing::field::display);
            tell!(DEBUG, "not granted", key, %mode, outcome, waited_ms, error);
        }
        let mode = mode_name(self.ask.mode);
        count!(meter::ACQUISITIONS, "mode" => mode, "outcome" => outcome);
        record!(meter::WAIT, waited, "mode" => mode, "outcome" => outcome);
    }
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        if !self.told {
            self.tell("dropped", None, None);
        }
    }
}
