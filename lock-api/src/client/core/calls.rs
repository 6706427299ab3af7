//! Calls to the backend: time limits, and what each reply says about the server's clock.
//!
//! Every call races a timer. A call that loses has an unknown outcome: the request may still be
//! executed. The client notes the moment *before* it sends a request and keeps that moment with the
//! reply, because a lease is counted from there (rule 2). Each reply carries a stamp, which becomes
//! a sample of the [`ServerClock`](crate::client::state::clock::ServerClock). If the sample shows a
//! step of the server's clock, all holders that depend on that clock are lost. If it shows that the
//! clocks of two servers differ, the client warns.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;

use crate::client::core::Core;
use crate::client::error::Error;
use crate::client::state::answer::Answer;
use crate::error::BackendError;
use crate::id::Key;
use crate::reply::{InspectReply, Listed};
use crate::request::List;
use crate::runtime::Moment;
use crate::time::{ClockId, Rounded, ServerTime, Stamp, Stamped};

impl Core {
    /// Splits a batch into calls: one, or one for each key if the keys may be on several servers. The answers
    /// to a call come together, so a call for keys on two servers would wait for the slower one (decision 0056).
    pub(crate) fn split_into_calls<T>(
        &self,
        batch: Vec<T>,
        key: impl Fn(&T) -> &Key,
    ) -> Vec<Vec<T>> {
        if self.capabilities.batches {
            return vec![batch];
        }
        let mut calls: BTreeMap<Key, Vec<T>> = BTreeMap::new();
        for element in batch {
            calls
                .entry(key(&element).clone())
                .or_default()
                .push(element);
        }
        calls.into_values().collect()
    }

    /// Runs one call to the backend for at most `limit`, and samples the server's clock from its
    /// stamp.
    pub(crate) async fn exchange<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<Stamped<T>, BackendError>>,
    ) -> Result<Answer<T>, BackendError> {
        let sent = self.now();
        let stamped = self.bounded(limit, call).await?;
        Ok(self.answer(sent, stamped))
    }

    /// Like [`exchange`](Self::exchange), for a batch of one element.
    pub(crate) async fn exchange_one<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Vec<Result<Stamped<T>, BackendError>>>,
    ) -> Result<Answer<T>, BackendError> {
        let first = async { call.await.into_iter().next().unwrap_or_else(unanswered) };
        self.exchange(limit, first).await
    }

    /// Like [`exchange`](Self::exchange), for a batch of `count` elements. Returns `count` answers,
    /// even if the backend returns fewer.
    pub(crate) async fn exchange_batch<T>(
        &self,
        limit: Duration,
        count: usize,
        call: impl Future<Output = Vec<Result<Stamped<T>, BackendError>>>,
    ) -> Vec<Result<Answer<T>, BackendError>> {
        let sent = self.now();
        let limited = self.limited(limit, async { Ok(call.await) }).await;
        let mut answers: Vec<_> = match limited {
            Ok(results) => results
                .into_iter()
                .map(|result| result.map(|stamped| self.answer(sent, stamped)))
                .collect(),
            Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
        };
        answers.resize_with(count, unanswered);
        // One element that was answered is enough.
        let best = answers.iter().find(|answer| !is_transient(answer));
        if let Some(answer) = best.or(answers.first()) {
            self.note(sent, limit, answer);
        }
        answers
    }

    /// Like [`exchange_batch`](Self::exchange_batch), for a background task. A panic of the backend counts as no
    /// answer: the task must go on, because it serves all locks of the client.
    pub(crate) async fn exchange_in_background<T>(
        &self,
        count: usize,
        call: impl AsyncFnOnce() -> Vec<Result<Stamped<T>, BackendError>>,
    ) -> Vec<Result<Answer<T>, BackendError>> {
        let call = async {
            AssertUnwindSafe(async { call().await })
                .catch_unwind()
                .await
                .unwrap_or_default()
        };
        self.exchange_batch(self.settings.call_timeout, count, call)
            .await
    }

    pub(crate) async fn inspect(&self, key: &Key) -> Result<Answer<InspectReply>, Error> {
        self.ensure_open()?;
        let call = self.backend.inspect(key);
        let answer = self.exchange(self.settings.call_timeout, call).await;
        answer.map_err(|error| error.not_executed().on(key))
    }

    pub(crate) async fn list(&self, request: &List) -> Result<Listed, Error> {
        self.ensure_open()?;
        let limit = self.settings.call_timeout;
        let page = self.bounded(limit, self.backend.list(request)).await;
        page.map_err(|error| error.not_executed().about_no_key())
    }

    /// Asks the service for an answer, with the time of a whole call.
    pub(crate) async fn ping(&self) -> Result<Answer<()>, BackendError> {
        let sent = self.now();
        let hello = self.bounded(self.settings.call_timeout, self.backend.hello());
        let stamp = hello.await.map_err(BackendError::not_executed)?;
        let reply = ();
        Ok(self.answer(sent, Stamped { stamp, reply }))
    }

    /// Runs one call to the backend for at most `limit`; the outcome is unknown after that.
    pub(crate) async fn bounded<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let sent = self.now();
        let result = self.limited(limit, call).await;
        self.note(sent, limit, &result);
        result
    }

    /// Notes what a call says about the service.
    fn note<T>(&self, sent: Moment, limit: Duration, result: &Result<T, BackendError>) {
        match result {
            Err(error) if error.is_transient() => {
                let was_cut_short = matches!(error, BackendError::OutcomeUnknown { .. })
                    && limit < self.settings.call_timeout;
                if !was_cut_short {
                    self.outage.failed(sent, self.now(), error);
                }
            }
            _ => self.outage.answered(sent),
        }
    }

    /// Like [`bounded`](Self::bounded), for a call that says nothing about the service.
    pub(crate) async fn limited<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let answer = self.runtime.timeout(limit, call).await;
        answer.unwrap_or_else(|| {
            let reason = format!("no answer within {}", Rounded(limit));
            Err(BackendError::outcome_unknown(reason))
        })
    }

    fn answer<T>(&self, sent: Moment, stamped: Stamped<T>) -> Answer<T> {
        let Stamped { stamp, reply } = stamped;
        self.observe(sent, stamp);
        self.answer_of(sent, stamp, reply)
    }

    /// An answer whose clock has been noted.
    pub(crate) const fn answer_of<T>(&self, sent: Moment, stamp: Stamp, reply: T) -> Answer<T> {
        Answer {
            sent,
            stamp,
            clock_error: self.capabilities.clock_error,
            reply,
        }
    }

    fn observe(&self, sent: Moment, stamp: Stamp) {
        let found = self.clock.observe(sent, stamp, self.now());
        if found.stepped {
            self.events.clock_stepped();
            self.renewals.clock_stepped(stamp.clock);
        }
        if let Some(apart) = found.apart {
            let server = |clock: ClockId| {
                let address = self.backend.clock_address(clock);
                address.unwrap_or_else(|| format!("clock {}", clock.get()))
            };
            self.events
                .clocks_apart(&server(apart.ahead), &server(apart.behind), apart.by);
        }
    }

    /// A lower bound of the time on the server of `key`; `None` before the first sample of its
    /// clock.
    pub(crate) fn server_now(&self, key: &Key) -> Option<ServerTime> {
        self.clock.server_now(self.now(), self.backend.clock(key))
    }

    /// Returns the deliver-before of an acquire of `key` that is sent now, and the rest of its
    /// `limit`.
    ///
    /// Without a sample of the clock of the key's server, it reads that clock first.
    pub(crate) async fn deliver_before(
        &self,
        key: &Key,
        limit: Duration,
    ) -> Result<(ServerTime, Duration), BackendError> {
        let timeout = self.settings.call_timeout;
        let sent = self.now();
        let clock = self.backend.clock(key);
        let (until, left) = match self.clock.deliver_before(sent, clock, timeout) {
            Some(until) => (until, limit),
            None => {
                let stamp = self
                    .bounded(limit, self.backend.read_clock(key))
                    .await
                    .map_err(BackendError::not_executed)?;
                self.observe(sent, stamp);
                let elapsed = self.now().saturating_since(sent);
                let until = self.clock.latest_delivery(stamp.at, timeout);
                (until, limit.saturating_sub(elapsed))
            }
        };
        if left.is_zero() {
            return Err(BackendError::unavailable("no time is left for the call"));
        }
        Ok((until, left))
    }
}

fn is_transient<T>(result: &Result<T, BackendError>) -> bool {
    matches!(result, Err(error) if error.is_transient())
}

/// The answer for an element that the backend left out of its reply to a batch.
fn unanswered<T>() -> Result<T, BackendError> {
    Err(BackendError::outcome_unknown("no answer in the batch"))
}
