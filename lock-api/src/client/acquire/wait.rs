//! Taking a lock: the one loop behind every form of it.
//!
//! An *attempt* is one operation. It is sent until it has an answer; if that is a place in the
//! queue, the attempt waits there until it is granted, told by a push or by its own poll. What
//! cannot go on as the same operation (it came out of order, or its place was lost) goes on as a
//! new attempt. An attempt that is dropped while it may have left something on the server is
//! ended in the background, so no await point of this loop leaks.

use std::future::{Future, pending};
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select;
use tracing::Instrument;

use crate::bounds::{CHECK_EARLY, MAX_POLL_INTERVAL};
use crate::client::acquire::acquisition::Acquisition;
use crate::client::acquire::attempt::Attempt;
use crate::client::acquire::request::{Ask, WaitLimit};
use crate::client::error::{Error, Outcome, TimedOut};
use crate::client::hold::Hold;
use crate::client::state::answer::Answer;
use crate::client::state::backoff::Backoff;
use crate::client::state::polls::{Due, Polled};
use crate::client::state::router::{InboxEvent, PushedGrant};
use crate::error::BackendError;
use crate::mutants::mutant;
use crate::reply::{AcquireReply, Acquired, Contention, PollReply, Queued, Refused};
use crate::runtime::Moment;
use crate::time::Stamp;

/// Polls come this much after the moment that they are for, so that they do not just miss it.
const POLL_SPREAD: Duration = Duration::from_millis(20);
/// Polls of a place that are only due to its answers are at least this far apart, whatever those
/// say.
const SHORTEST_CHECK: Duration = Duration::from_millis(10);
/// A poll that expects no change may come earlier by this part of its time.
const EARLY_PARTS: u32 = 4;

/// How an attempt ended.
enum Step {
    Done(Outcome<Hold>),
    /// Go on with a new operation, after a pause.
    Again(Duration),
}

/// Takes a lock, or says why not, and reports on that.
pub(crate) async fn acquire(ask: Ask<'_>, limit: WaitLimit) -> Result<Outcome<Hold>, Error> {
    let acquisition = Acquisition::begin(ask);
    let acquired = WaitLoop::new(ask, limit).run();
    let acquired = acquired.instrument(acquisition.span()).await;
    acquisition.finish(&acquired);
    acquired
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slept {
    Enough,
    PastDeadline,
}

/// Why a queued attempt stops sleeping.
enum Woken {
    Granted(PushedGrant),
    /// Notifications say that it is time to poll.
    PollNow,
    Polled(Result<Answer<PollReply>, BackendError>),
    OwnerGranted,
    PastDeadline,
    Closed,
}

struct WaitLoop<'a> {
    ask: Ask<'a>,
    limit: WaitLimit,
    began: Moment,
    deadline: Option<Moment>,
    /// The last call's failure, until another call succeeds.
    trouble: Option<BackendError>,
    /// Whether the last call was answered.
    answered: bool,
    /// The refusal that it was answered with, if that may pass.
    refused: Option<Refused>,
    backoff: Backoff,
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
            trouble: None,
            answered: false,
            refused: None,
            backoff: Backoff::foreground(),
            ahead: None,
        }
    }

    /// Makes attempts until one ends the wait.
    async fn run(mut self) -> Result<Outcome<Hold>, Error> {
        let core = self.ask.client;
        loop {
            let attempt = Attempt::begin(self.ask);
            // Only now: a shutdown that has not seen the attempt is seen here.
            core.ensure_open()?;
            let pause = match self.run_attempt(attempt).await? {
                Step::Done(outcome) => {
                    // A hold made while the client was being shut down may have escaped its sweep.
                    core.ensure_open()?;
                    return Ok(outcome);
                }
                Step::Again(pause) => pause,
            };
            if self.sleep(pause).await? == Slept::PastDeadline {
                return self.out_of_time();
            }
        }
    }

    fn left(&self) -> Duration {
        self.deadline.map_or(Duration::MAX, |deadline| {
            deadline.saturating_since(self.ask.client.now())
        })
    }

    fn call_limit(&self) -> Duration {
        self.left().min(self.ask.client.settings.call_timeout)
    }

    /// The end of a wait: by contention a value, by an outage an error.
    fn out_of_time(&mut self) -> Result<Outcome<Hold>, Error> {
        if let Some(trouble) = self.trouble.take() {
            return Err(trouble.on(self.ask.key));
        }
        if matches!(self.limit, WaitLimit::Try) {
            if let Some(reason) = self.refused.take() {
                return Err(self.refusal(reason));
            }
            let reason = "no attempt came through in time";
            return Err(BackendError::unavailable(reason).on(self.ask.key));
        }
        Ok(Outcome::TimedOut(TimedOut {
            waited: self.ask.client.now().saturating_since(self.began),
            ahead: self.ahead,
        }))
    }

    /// Notes a failed call; fails if trying again is no use.
    fn note(&mut self, error: BackendError) -> Result<(), Error> {
        if !error.is_transient() {
            return Err(error.on(self.ask.key));
        }
        // A call that only the caller's own deadline cut short is no sign of an outage, if the
        // one before it was answered.
        if !(self.answered && self.left().is_zero()) {
            self.trouble = Some(error);
            self.answered = false;
        }
        Ok(())
    }

    fn went_well(&mut self) {
        self.was_answered();
        self.backoff.reset();
    }

    fn was_answered(&mut self) {
        self.refused = None;
        self.trouble = None;
        self.answered = true;
    }

    /// A pause before the next try, longer each time.
    fn next_pause(&mut self) -> Duration {
        self.ask.client.jittered(self.backoff.next())
    }

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
                Slept::Enough
            }
        };
        let closed = core.closed().map(|()| Err(Error::Closed));
        first(pin!(closed), pin!(slept.map(Ok))).await
    }

    /// Carries one attempt to its end.
    async fn run_attempt(&mut self, mut attempt: Attempt<'a>) -> Result<Step, Error> {
        loop {
            if self.left().is_zero() {
                return self.out_of_time().map(Step::Done);
            }
            let limit = self.call_limit();
            let answer = match attempt
                .acquire(self.limit.waits(), self.deadline, limit)
                .await
            {
                Ok(answer) => answer,
                Err(error) => {
                    self.note(error)?;
                    let pause = self.next_pause();
                    if self.sleep(pause).await? == Slept::PastDeadline {
                        return self.out_of_time().map(Step::Done);
                    }
                    continue;
                }
            };
            match answer.reply {
                AcquireReply::Acquired(acquired) => {
                    self.went_well();
                    return self.granted(attempt, answer.with(acquired)).await;
                }
                AcquireReply::Queued(queued) => {
                    self.went_well();
                    return self.wait_in_queue(attempt, answer.stamp, queued).await;
                }
                AcquireReply::Contended(held) => {
                    // The pause goes on growing: it is what a wait without a queue consists of.
                    self.was_answered();
                    return Ok(self.not_queued(held));
                }
                AcquireReply::Refused(Refused::Stale) => return Ok(Step::Again(Duration::ZERO)),
                AcquireReply::Refused(Refused::TooLate) => {
                    // The reply's stamp has corrected the clock; should that not help, it is
                    // no use to hurry.
                    let pause = if attempt.too_late() {
                        Duration::ZERO
                    } else {
                        self.next_pause()
                    };
                    if self.sleep(pause).await? == Slept::PastDeadline {
                        return self.out_of_time().map(Step::Done);
                    }
                }
                AcquireReply::Refused(Refused::WouldDeadlock) if self.ask.owner.has_no_guard() => {
                    self.was_answered();
                    self.refused = Some(Refused::WouldDeadlock);
                    return Ok(Step::Again(self.next_pause()));
                }
                AcquireReply::Refused(reason) => return Err(self.refusal(reason)),
            }
        }
    }

    fn refusal(&self, reason: Refused) -> Error {
        Error::Refused {
            key: self.ask.key.clone(),
            asked: self.ask.spec,
            reason,
        }
    }

    /// Somebody has it and there is no queue to wait in.
    fn not_queued(&mut self, held: Contention) -> Step {
        if !self.limit.waits() {
            return Step::Done(match self.limit {
                WaitLimit::Try => Outcome::Held(held),
                WaitLimit::Within(_) | WaitLimit::Forever => Outcome::TimedOut(TimedOut {
                    waited: self.ask.client.now().saturating_since(self.began),
                    ahead: None,
                }),
            });
        }
        Step::Again(self.next_pause())
    }

    /// Makes a hold of a grant, which is renewed first if too little is left of it.
    async fn granted(
        &mut self,
        attempt: Attempt<'a>,
        answer: Answer<Acquired>,
    ) -> Result<Step, Error> {
        if attempt.must_confirm(&answer) {
            return self.confirm(attempt).await;
        }
        Ok(Step::Done(Outcome::Acquired(attempt.into_hold(&answer))))
    }

    /// Renews a grant before it is handed out.
    async fn confirm(&mut self, mut attempt: Attempt<'a>) -> Result<Step, Error> {
        loop {
            if self.left().is_zero() {
                return self.out_of_time().map(Step::Done);
            }
            match attempt.renew(self.call_limit()).await {
                Ok(Some(answer)) => {
                    self.went_well();
                    if attempt.is_usable(&answer) {
                        return Ok(Step::Done(Outcome::Acquired(attempt.into_hold(&answer))));
                    }
                }
                // What is as good as over may be granted again at once, as to the owner of a
                // holder that was revoked.
                Ok(None) => return Ok(Step::Again(self.next_pause())),
                Err(error) => self.note(error)?,
            }
            let pause = self.next_pause();
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
        let waiter = attempt.polled();
        let mut due = self.next_poll(&attempt, stamp, &queued);
        self.ahead = Some(queued.ahead);
        loop {
            // Timers are coarse: one made anew after each event, for no time left, would let a wait
            // go on for as long as events come.
            if self.left().is_zero() {
                return self.out_of_time().map(Step::Done);
            }
            waiter.ask(core.now(), due);
            due = match self.wake_up(&attempt, &waiter).await {
                Woken::Closed => return Err(Error::Closed),
                Woken::PastDeadline => return self.out_of_time().map(Step::Done),
                Woken::OwnerGranted => return Ok(Step::Again(Duration::ZERO)),
                Woken::Granted(grant) => {
                    drop(waiter);
                    return match attempt.pushed(grant) {
                        Some(answer) => self.granted(attempt, answer).await,
                        None => self.confirm(attempt).await,
                    };
                }
                Woken::PollNow => Due::NOW,
                Woken::Polled(Ok(answer)) => {
                    self.went_well();
                    match answer.reply {
                        PollReply::Acquired(acquired) => {
                            drop(waiter);
                            return self.granted(attempt, answer.with(acquired)).await;
                        }
                        PollReply::Queued(queued) => {
                            self.ahead = Some(queued.ahead);
                            self.next_poll(&attempt, answer.stamp, &queued)
                        }
                        PollReply::Gone(_) => {
                            attempt.gone();
                            return Ok(Step::Again(Duration::ZERO));
                        }
                    }
                }
                Woken::Polled(Err(error)) => {
                    self.note(error)?;
                    let within = self.next_pause();
                    let early = within / 2;
                    Due { within, early }
                }
            };
        }
    }

    /// When to poll: when the reply says, a little later, and often enough to keep the place.
    fn next_poll(&self, attempt: &Attempt<'a>, stamp: Stamp, queued: &Queued) -> Due {
        let core = self.ask.client;
        if mutant!(LostWakeUpWithoutPoll) {
            return Due::exactly(Duration::MAX);
        }
        let most = MAX_POLL_INTERVAL.min(self.ask.spec.poll_interval());
        let mut base = queued.poll_after.min(most);
        // Those further back are told to come at some time or other.
        let mut flexible = queued.ahead >= CHECK_EARLY || queued.poll_after >= most;
        if attempt.can_be_prolonged(stamp, queued.waiter_remaining)
            && queued.waiter_remaining / 2 < base
        {
            base = queued.waiter_remaining / 2;
            flexible = true;
        }
        let base = base.max(SHORTEST_CHECK);
        let spread = POLL_SPREAD.min(base / 10);
        Due {
            within: base + core.random_between(Duration::from_micros(1), spread),
            early: if flexible {
                base / EARLY_PARTS
            } else {
                Duration::ZERO
            },
        }
    }

    /// Sleeps until something happens. What comes first in here wins, if several have happened.
    async fn wake_up(&self, attempt: &Attempt<'a>, waiter: &Polled) -> Woken {
        let core = self.ask.client;
        let closed = pin!(core.closed().map(|()| Woken::Closed));
        let pushed = pin!(attempt.event().map(|event| match event {
            InboxEvent::Granted(grant) => Woken::Granted(grant),
            InboxEvent::PollNow => Woken::PollNow,
        }));
        let nested = pin!(attempt.owner_granted().map(|()| Woken::OwnerGranted));
        let polled = pin!(waiter.answer().map(Woken::Polled));
        let timer = pin!(async {
            match self.deadline {
                Some(_) => core.runtime.sleep(self.left()).await,
                None => pending().await,
            }
            Woken::PastDeadline
        });
        let told = pin!(first(pushed, nested));
        let asked = pin!(first(polled, timer));
        first(closed, pin!(first(told, asked))).await
    }
}

/// The output of the future that ends first; of `one`, if both are ready.
async fn first<T>(
    one: impl Future<Output = T> + Unpin,
    other: impl Future<Output = T> + Unpin,
) -> T {
    select(one, other).await.factor_first().0
}
