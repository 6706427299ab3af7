//! The wait loop behind every method that acquires a lock.
//!
//! The loop makes attempts until one gets the lock, fails for good or runs out of time. An attempt
//! is one operation. It sends its acquire until that is answered. If the answer is `Queued`, the
//! attempt waits in the queue until a notification or the answer to a poll brings the grant. If an
//! operation cannot continue, because it is stale or its waiter is gone, the loop begins a new
//! attempt.
//!
//! Transient errors are retried with a backoff. At the deadline, the loop returns the last error,
//! or a timeout if the last call was answered. A call that only the deadline cut short says nothing
//! about the server, so its error does not count. You can drop the future at any await point: a
//! dropped attempt is released in the background. The time for an outage is counted for the whole client, so it may
//! have passed before the first call: then none is sent.
//!
//! A key may still have a hold or a waiter that this client is releasing. If the key is refused
//! because of that, the loop tries again.

use std::future::{Future, pending};
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select;
use tracing::Instrument;

use crate::backoff::Backoff;
use crate::bounds::FIRST_WAITERS;
use crate::client::acquire::acquisition::Acquisition;
use crate::client::acquire::attempt::Attempt;
use crate::client::acquire::request::{Ask, WaitLimit};
use crate::client::error::Error;
use crate::client::hold::Hold;
use crate::client::outcome::{Contention, Outcome};
use crate::client::state::answer::{Answer, GrantReply};
use crate::client::state::polls::{Due, PollHandle};
use crate::client::state::router::InboxEvent;
use crate::client::task::probe;
use crate::error::BackendError;
use crate::id::{FencingToken, Label};
use crate::reply::{AcquireReply, Contended, PollReply, Queued, Refused};
use crate::runtime::Moment;
use crate::time::Stamp;

/// A poll is sent up to this long after the moment of the expected change, so that it does not
/// narrowly miss the change.
const POLL_SPREAD: Duration = Duration::from_millis(20);
/// The shortest time between the answer to a poll and the next poll, unless a notification asks for
/// one.
const MIN_POLL_PAUSE: Duration = Duration::from_millis(10);
/// A poll that expects no change may be sent earlier, by its time divided by this. With a half, two groups
/// that poll every T, one x after the other, always become one: the smaller of x and T − x is at most T/2
/// (decision 0026).
const EARLY_PARTS: u32 = 2;

enum Step {
    Done(Outcome<Hold>),
    /// Begin a new attempt after a pause.
    Retry(Duration),
}

pub(crate) async fn acquire(ask: Ask<'_>, limit: WaitLimit) -> Result<Outcome<Hold>, Error> {
    let acquisition = Acquisition::begin(ask, limit);
    let result = WaitLoop::new(ask, limit).run();
    let result = result.instrument(acquisition.span()).await;
    acquisition.finish(&result);
    result
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slept {
    Fully,
    PastDeadline,
}

/// Why a queued attempt wakes.
enum Woken {
    Notified(InboxEvent),
    Polled(Result<Answer<PollReply>, BackendError>),
    /// Another attempt of the same owner was granted.
    OwnerGranted,
    PastDeadline,
    Closed,
}

struct WaitLoop<'a> {
    ask: Ask<'a>,
    limit: WaitLimit,
    began: Moment,
    deadline: Option<Moment>,
    /// The error of the last call. A call that succeeds clears it.
    last_error: Option<BackendError>,
    /// Whether the last call was answered.
    answered: bool,
    /// The refusal in that answer, if it is temporary.
    refused: Option<Refused>,
    /// The calls that failed since the last answer, and when the first of them failed.
    failures: u32,
    failing_since: Moment,
    backoff: Backoff,
    obstacle: Obstacle,
    /// Whether a call so far brought no grant.
    waited: bool,
}

/// Why the last answer was no grant.
#[derive(Default)]
struct Obstacle {
    /// `None` while this attempt is in the queue: the answer `Queued` names no holder.
    holder: Option<Label>,
    /// When a lease may end; in the queue, when the server asks for a poll.
    changes_at: Option<Moment>,
    /// How many waiters were ahead, if this one was in the queue.
    ahead: Option<u32>,
}

impl<'a> WaitLoop<'a> {
    fn new(ask: Ask<'a>, limit: WaitLimit) -> Self {
        let core = ask.client;
        let began = core.now();
        let deadline = limit.deadline(began, core.settings.call_timeout);
        Self {
            ask,
            limit,
            began,
            deadline,
            last_error: None,
            answered: false,
            refused: None,
            failures: 0,
            failing_since: began,
            backoff: Backoff::foreground(),
            obstacle: Obstacle::default(),
            waited: false,
        }
    }

    /// Makes attempts until one has a final result.
    async fn run(mut self) -> Result<Outcome<Hold>, Error> {
        let core = self.ask.client;
        loop {
            let attempt = Attempt::begin(self.ask);
            // This check comes after `begin`, so that a shutdown either waits for the attempt or is
            // seen here.
            core.ensure_open()?;
            let pause = match self.run_attempt(attempt).await? {
                Step::Done(mut outcome) => {
                    // A shutdown may not have seen a hold that was created meanwhile.
                    core.ensure_open()?;
                    if let Outcome::Acquired(hold) = &mut outcome {
                        hold.waited = self.waited;
                    }
                    return Ok(outcome);
                }
                Step::Retry(pause) => pause,
            };
            if self.sleep(pause).await? == Slept::PastDeadline {
                return self.out_of_time();
            }
        }
    }

    /// The time that is left for the caller's turn, or for an outage.
    fn left(&self) -> Duration {
        let now = self.ask.client.now();
        let ends = [self.deadline, self.outage_ends()];
        let left = ends
            .into_iter()
            .flatten()
            .map(|end| end.saturating_since(now));
        left.min().unwrap_or(Duration::MAX)
    }

    /// The end of the caller's patience with an outage, while there is one.
    ///
    /// The client sees none if only the server of this key is away and others answer, so the own failures count too.
    fn outage_ends(&self) -> Option<Moment> {
        let limit = self.ask.options.outage_limit?;
        let of_client = self.ask.client.outage.since(self.ask.client.now());
        let of_this_wait = (self.failures > 0).then_some(self.failing_since);
        let since = of_client.into_iter().chain(of_this_wait).min()?;
        Some(since.saturating_add(limit))
    }

    /// Waits until no time is left.
    async fn time_passes(&self) {
        let core = self.ask.client;
        loop {
            let version = core.outage.changed.version();
            let timer = async {
                match self.left() {
                    Duration::MAX => pending().await,
                    left => core.runtime.sleep(left).await,
                }
            };
            select(pin!(timer), core.outage.changed.changed(version)).await;
            if self.left().is_zero() {
                return;
            }
        }
    }

    fn call_limit(&self) -> Duration {
        self.left().min(self.ask.client.settings.call_timeout)
    }

    /// The result at the deadline: a value after contention, an error after an outage.
    fn out_of_time(&mut self) -> Result<Outcome<Hold>, Error> {
        if self.ask.options.outage_limit.is_some() {
            self.give_up_in_outage()?;
        }
        if let Some(error) = self.last_error.take() {
            return Err(error.on(self.ask.key));
        }
        if !self.limit.waits() {
            if let Some(reason) = self.refused.take() {
                return Err(self.refusal(reason));
            }
            let reason = "no attempt succeeded in time";
            return Err(BackendError::unavailable(reason).on(self.ask.key));
        }
        Ok(self.contention())
    }

    /// The result at the deadline of a wait in the queue. If its poll is unanswered for half of its time, and nothing was answered
    /// that was sent later, this wait fails: the error of the poll would come too late. Others learn of an outage by a call that had
    /// its whole time, such as that of the probe.
    fn out_of_time_in_queue(&mut self, polls: &PollHandle) -> Result<Step, Error> {
        let core = self.ask.client;
        let is_limited = self.ask.options.outage_limit.is_some();
        if let Some(sent) = polls.unanswered_since()
            && is_limited
            && core.now().saturating_since(sent) >= core.settings.call_timeout / 2
            && !core.outage.has_answer_since(sent)
        {
            probe::start(core);
            let error = BackendError::unavailable("the lock service does not answer a poll");
            self.last_error = Some(error);
        }
        self.out_of_time().map(Step::Done)
    }

    /// Fails if an outage has ended the wait, or is known at its end.
    fn give_up_in_outage(&self) -> Result<(), Error> {
        let core = self.ask.client;
        let ends_early = self.deadline.is_none_or(|deadline| core.now() < deadline);
        if core.outage.since(core.now()).is_none() && !ends_early {
            return Ok(());
        }
        // This call asks no more, so somebody else must find the end of the outage.
        probe::start(core);
        let own = self.last_error.clone();
        Err(own.unwrap_or_else(|| core.outage.error()).on(self.ask.key))
    }

    /// The outcome of a call that ends without the lock.
    fn contention(&mut self) -> Outcome<Hold> {
        let now = self.ask.client.now();
        let Obstacle {
            holder,
            changes_at,
            ahead,
        } = std::mem::take(&mut self.obstacle);
        Outcome::Contended(Contention {
            key: self.ask.key.clone(),
            timed_out: self.limit.waits(),
            holder,
            retry_after: changes_at.map_or(Duration::ZERO, |at| at.saturating_since(now)),
            waited: now.saturating_since(self.began),
            ahead,
        })
    }

    /// Notes the error of a call that had `limit` to answer. Returns the pause before the next
    /// call. Fails if a retry cannot help.
    fn saw_error(&mut self, error: BackendError, limit: Duration) -> Result<Duration, Error> {
        if !error.is_transient() {
            return Err(error.on(self.ask.key));
        }
        let core = self.ask.client;
        let (left, pause) = (self.left(), self.next_pause());
        if pause < left {
            if self.failures == 0 {
                self.failing_since = core.now();
            }
            self.failures += 1;
            core.events
                .acquire_failed(self.ask.key, self.failures, pause, &error);
        }
        // Before the deadline, every error counts. At it, only that of a try, or of a call that had its whole time, and
        // only if the call before wasn't answered.
        let counts_at_the_deadline = !self.limit.waits() || limit >= core.settings.call_timeout;
        if !left.is_zero() || (counts_at_the_deadline && !self.answered) {
            self.last_error = Some(error);
            self.answered = false;
        }
        Ok(pause)
    }

    /// Notes an answer that resets the backoff.
    fn saw_progress(&mut self) {
        self.saw_answer();
        self.backoff.reset();
    }

    fn saw_answer(&mut self) {
        let failures = std::mem::take(&mut self.failures);
        if failures > 0 {
            let core = self.ask.client;
            let after = core.now().saturating_since(self.failing_since);
            core.events.acquire_recovered(self.ask.key, failures, after);
        }
        self.refused = None;
        self.last_error = None;
        self.answered = true;
    }

    /// The pause before the next attempt. It grows each time.
    fn next_pause(&mut self) -> Duration {
        self.ask.client.jittered(self.backoff.next())
    }

    /// Sleeps for a pause, but not past the deadline. Fails when the client is closed.
    async fn sleep(&self, pause: Duration) -> Result<Slept, Error> {
        let core = self.ask.client;
        let slept = async {
            let left = self.left();
            if !pause.is_zero() {
                core.runtime.sleep(pause.min(left)).await;
            }
            if pause >= left {
                Slept::PastDeadline
            } else {
                Slept::Fully
            }
        };
        let closed = core.closed().map(|()| Err(Error::Closed));
        first(pin!(closed), pin!(slept.map(Ok))).await
    }

    async fn run_attempt(&mut self, mut attempt: Attempt<'a>) -> Result<Step, Error> {
        let mut was_too_late = false;
        loop {
            if self.left().is_zero() {
                return self.out_of_time().map(Step::Done);
            }
            let limit = self.call_limit();
            let is_releasing = self.ask.client.releases.has(self.ask.key);
            let answer = match attempt
                .acquire(self.limit.waits(), self.deadline, limit)
                .await
            {
                Ok(answer) => {
                    self.waited |= !matches!(answer.reply, AcquireReply::Acquired(_));
                    answer
                }
                Err(error) => {
                    self.waited = true;
                    let pause = self.saw_error(error, limit)?;
                    if self.sleep(pause).await? == Slept::PastDeadline {
                        return self.out_of_time().map(Step::Done);
                    }
                    continue;
                }
            };
            match answer.reply {
                AcquireReply::Acquired(acquired) => {
                    self.saw_progress();
                    return self.granted(attempt, answer.with(acquired.into())).await;
                }
                AcquireReply::Queued(queued) => {
                    self.saw_progress();
                    return self.wait_in_queue(attempt, answer.stamp, queued).await;
                }
                AcquireReply::Contended(contended) => {
                    // The backoff is not reset, because a wait without a queue consists of these
                    // pauses.
                    self.saw_answer();
                    return Ok(self.not_queued(contended));
                }
                AcquireReply::Stale => return Ok(Step::Retry(Duration::ZERO)),
                AcquireReply::TooLate => {
                    // The stamp of the reply has corrected the clock, so the first retry is
                    // immediate.
                    let pause = match std::mem::replace(&mut was_too_late, true) {
                        true => self.next_pause(),
                        false => Duration::ZERO,
                    };
                    if self.sleep(pause).await? == Slept::PastDeadline {
                        return self.out_of_time().map(Step::Done);
                    }
                }
                AcquireReply::Refused(reason) => return self.refused(reason, is_releasing),
            }
        }
    }

    /// Tries again after a refusal if this client is still releasing what the refusal is about.
    /// `is_releasing` says whether it was releasing the key when it sent the acquire.
    fn refused(&mut self, reason: Refused, is_releasing: bool) -> Result<Step, Error> {
        let is_ours = match reason {
            Refused::Mismatch { .. } => is_releasing,
            Refused::WouldDeadlock => self.ask.owner.has_no_guard(),
            _ => false,
        };
        if !is_ours {
            return Err(self.refusal(reason));
        }
        self.saw_answer();
        self.refused = Some(reason);
        Ok(Step::Retry(self.next_pause()))
    }

    fn refusal(&self, reason: Refused) -> Error {
        Error::Refused {
            key: self.ask.key.clone(),
            asked: self.ask.spec,
            reason,
        }
    }

    /// What follows from an answer that the attempt got no lock and is not in the queue.
    fn not_queued(&mut self, contended: Contended) -> Step {
        let now = self.ask.client.now();
        self.obstacle = Obstacle {
            holder: contended.holder,
            changes_at: Some(now.saturating_add(contended.retry_after)),
            ahead: None,
        };
        if self.limit.waits() {
            Step::Retry(self.next_pause())
        } else {
            Step::Done(self.contention())
        }
    }

    fn saw_queued(&mut self, queued: &Queued) {
        let now = self.ask.client.now();
        self.obstacle = Obstacle {
            holder: None,
            changes_at: Some(now.saturating_add(queued.poll_after)),
            ahead: Some(queued.ahead),
        };
    }

    /// Turns a grant into a hold, after a renewal if [`Attempt::must_confirm`] says so.
    async fn granted(
        &mut self,
        attempt: Attempt<'a>,
        answer: Answer<GrantReply>,
    ) -> Result<Step, Error> {
        if attempt.must_confirm(&answer) {
            return self.confirm(attempt).await;
        }
        self.hold(attempt, &answer)
    }

    /// Makes the hold of a grant. Nobody can fence with token 0, so such a grant is an error, and the dropped attempt
    /// gives it back.
    fn hold(&self, attempt: Attempt<'a>, answer: &Answer<GrantReply>) -> Result<Step, Error> {
        if answer.reply.token == FencingToken::default() {
            return Err(BackendError::unsupported("fencing tokens").on(self.ask.key));
        }
        Ok(Step::Done(Outcome::Acquired(attempt.into_hold(answer))))
    }

    async fn confirm(&mut self, mut attempt: Attempt<'a>) -> Result<Step, Error> {
        loop {
            if self.left().is_zero() {
                return self.out_of_time().map(Step::Done);
            }
            let limit = self.call_limit();
            let pause = match attempt.renew(limit).await {
                Ok(Some(answer)) => {
                    self.saw_progress();
                    if attempt.is_usable(&answer) {
                        return self.hold(attempt, &answer);
                    }
                    self.next_pause()
                }
                // The server may grant again at once, for example to the owner of a revoked
                // holder. The pause avoids a busy loop.
                Ok(None) => return Ok(Step::Retry(self.next_pause())),
                Err(error) => self.saw_error(error, limit)?,
            };
            if self.sleep(pause).await? == Slept::PastDeadline {
                return self.out_of_time().map(Step::Done);
            }
        }
    }

    async fn wait_in_queue(
        &mut self,
        mut attempt: Attempt<'a>,
        stamp: Stamp,
        queued: Queued,
    ) -> Result<Step, Error> {
        let Ask {
            client: core,
            key,
            mode,
            ..
        } = self.ask;
        core.events.queued(key, mode, &queued);
        let polls = attempt.register_polls();
        let mut due = self.next_poll(&attempt, stamp, &queued);
        self.saw_queued(&queued);
        loop {
            // Each event creates a new timer, and timers may fire late. Without this check,
            // frequent events would extend the wait.
            if self.left().is_zero() {
                return self.out_of_time_in_queue(&polls);
            }
            polls.schedule(core.now(), due);
            due = match self.wait_for_event(&attempt, &polls).await {
                Woken::Closed => return Err(Error::Closed),
                Woken::PastDeadline => return self.out_of_time_in_queue(&polls),
                Woken::OwnerGranted => return Ok(Step::Retry(Duration::ZERO)),
                Woken::Notified(InboxEvent::Granted(grant)) => {
                    drop(polls);
                    return match attempt.pushed_answer(grant) {
                        Some(answer) => self.granted(attempt, answer).await,
                        None => self.confirm(attempt).await,
                    };
                }
                Woken::Notified(InboxEvent::PollNow) => Due::NOW,
                Woken::Polled(Ok(answer)) => {
                    self.saw_progress();
                    match answer.reply {
                        PollReply::Acquired(acquired) => {
                            drop(polls);
                            return self.granted(attempt, answer.with(acquired.into())).await;
                        }
                        PollReply::Queued(queued) => {
                            self.saw_queued(&queued);
                            self.next_poll(&attempt, answer.stamp, &queued)
                        }
                        PollReply::Gone(_) => {
                            attempt.set_gone();
                            return Ok(Step::Retry(Duration::ZERO));
                        }
                    }
                }
                Woken::Polled(Err(error)) => {
                    let after = self.saw_error(error, core.settings.call_timeout)?;
                    let early = after / EARLY_PARTS;
                    Due { after, early }
                }
            };
        }
    }

    /// When to poll next: shortly after the time in the reply, and often enough to keep the waiter.
    fn next_poll(&self, attempt: &Attempt<'a>, stamp: Stamp, queued: &Queued) -> Due {
        let core = self.ask.client;
        let interval = self.ask.spec.poll_interval();
        let mut base = queued.poll_after.min(interval);
        // Only the first waiters poll at an exact time, if they expect a change before the next regular
        // poll (rule 3).
        let mut flexible = queued.ahead >= FIRST_WAITERS || queued.poll_after >= interval;
        if attempt.polls_extend(stamp, queued.waiter_remaining)
            && queued.waiter_remaining / 2 < base
        {
            base = queued.waiter_remaining / 2;
            flexible = true;
        }
        let base = base.max(MIN_POLL_PAUSE);
        let spread = POLL_SPREAD.min(base / 10);
        Due {
            after: base + core.random_between(Duration::from_micros(1), spread),
            early: if flexible {
                base / EARLY_PARTS
            } else {
                Duration::ZERO
            },
        }
    }

    /// Waits for the next event. If several are ready, the order is: closed, notification, grant of
    /// the owner, answer to a poll, deadline.
    async fn wait_for_event(&self, attempt: &Attempt<'a>, polls: &PollHandle) -> Woken {
        let core = self.ask.client;
        let closed = pin!(core.closed().map(|()| Woken::Closed));
        let pushed = pin!(attempt.notification().map(Woken::Notified));
        let nested = pin!(attempt.owner_granted().map(|()| Woken::OwnerGranted));
        let polled = pin!(polls.next_answer().map(Woken::Polled));
        let timer = pin!(self.time_passes().map(|()| Woken::PastDeadline));
        let granted = pin!(first(pushed, nested));
        let polled = pin!(first(polled, timer));
        first(closed, pin!(first(granted, polled))).await
    }
}

/// The output of the future that completes first, or of `one` if both are ready.
async fn first<T>(
    one: impl Future<Output = T> + Unpin,
    other: impl Future<Output = T> + Unpin,
) -> T {
    select(one, other).await.factor_first().0
}
