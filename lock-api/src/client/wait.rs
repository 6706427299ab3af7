//! Taking a lock: the one loop behind every form of it.
//!
//! An *attempt* is one operation. It is sent until it has an answer; if that is a place in the
//! queue, the attempt waits there until it is granted, told by a push or by its own poll. What
//! cannot go on as the same operation (it came out of order, or its place was lost) goes on as a
//! new attempt. An attempt that is dropped while it may have left something on the server is
//! ended in the background, so no await point of this loop leaks.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use tracing::Instrument;

use crate::bounds::{CHECK_EARLY, MAX_POLL_INTERVAL};
use crate::client::attempt::Attempt;
use crate::client::core::{Anchor, Answer};
use crate::client::error::{Error, Outcome, TimedOut};
use crate::client::events::Acquisition;
use crate::client::hold::Hold;
use crate::client::hub::Event;
use crate::client::lock::Owner;
use crate::client::polls::{Due, Polled};
use crate::client::settings::Options;
use crate::error::BackendError;
use crate::id::Key;
use crate::mutants::mutant;
use crate::reply::{AcquireReply, Held, PollReply, Queued, Refused};
use crate::request::{LockSpec, Mode};
use crate::runtime::Moment;
use crate::sync::Arc;
use crate::time::Stamp;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// Polls come this much after the moment that they are for, so that they do not just miss it.
const POLL_SPREAD: Duration = Duration::from_millis(20);
/// Polls of a place that are only due to its answers are at least this far apart, whatever those
/// say.
const SHORTEST_CHECK: Duration = Duration::from_millis(10);
/// A poll that expects no change may come earlier by this part of its time.
const EARLY_PARTS: u32 = 4;

/// How long a caller is ready to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// Not for anybody who holds the lock; at most one call time-out for the server.
    Try,
    Within(Duration),
    Forever,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) anchor: &'a Arc<Anchor>,
    pub(crate) key: &'a Key,
    pub(crate) spec: LockSpec,
    pub(crate) mode: Mode,
    pub(crate) owner: &'a Owner,
    pub(crate) options: &'a Options,
}

/// How an attempt ended.
enum Step {
    Done(Outcome<Hold>),
    /// Go on with a new operation, after a pause.
    Again(Duration),
}

pub(crate) async fn obtain(ask: Ask<'_>, patience: Patience) -> Result<Outcome<Hold>, Error> {
    let acquisition = Acquisition::begin(ask);
    let taken = take(ask, patience).instrument(acquisition.span()).await;
    acquisition.finish(&taken);
    taken
}

async fn take(ask: Ask<'_>, patience: Patience) -> Result<Outcome<Hold>, Error> {
    let mut wait = WaitLoop::new(ask, patience);
    loop {
        let attempt = Attempt::begin(ask);
        // Only now: a shutdown that has not seen the attempt is seen here.
        ask.anchor.ensure_open()?;
        let pause = match wait.run(attempt).await? {
            Step::Done(outcome) => {
                // A hold made while the client was being shut down may have escaped its sweep.
                ask.anchor.ensure_open()?;
                return Ok(outcome);
            }
            Step::Again(pause) => pause,
        };
        if wait.sleep(pause).await? == Slept::PastDeadline {
            return wait.out_of_time();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slept {
    Enough,
    PastDeadline,
}

/// Why a queued attempt stops sleeping.
enum Woken {
    Event(Event),
    Answer(Result<Answer<PollReply>, BackendError>),
    OwnerGranted,
    PastDeadline,
}

struct WaitLoop<'a> {
    ask: Ask<'a>,
    patience: Patience,
    began: Moment,
    deadline: Option<Moment>,
    /// The last call's failure, until another call succeeds.
    trouble: Option<BackendError>,
    /// Whether the last call was answered.
    answered: bool,
    /// The refusal that it was answered with, if that may pass.
    refused: Option<Refused>,
    pause: Duration,
    ahead: Option<u32>,
}

impl<'a> WaitLoop<'a> {
    fn new(ask: Ask<'a>, patience: Patience) -> Self {
        let core = ask.anchor;
        let began = core.now();
        let deadline = match patience {
            Patience::Within(time) if !time.is_zero() => Some(began.saturating_add(time)),
            Patience::Try | Patience::Within(_) => {
                Some(began.saturating_add(core.settings.call_timeout))
            }
            Patience::Forever => None,
        };
        Self {
            ask,
            patience,
            began,
            deadline,
            trouble: None,
            answered: false,
            refused: None,
            pause: FIRST_PAUSE,
            ahead: None,
        }
    }

    /// Whether a place in the queue is of any use.
    fn waits(&self) -> bool {
        match self.patience {
            Patience::Try => false,
            Patience::Within(time) => !time.is_zero(),
            Patience::Forever => true,
        }
    }

    fn left(&self) -> Duration {
        self.deadline.map_or(Duration::MAX, |deadline| {
            deadline.saturating_since(self.ask.anchor.now())
        })
    }

    fn call_limit(&self) -> Duration {
        self.left().min(self.ask.anchor.settings.call_timeout)
    }

    /// The end of a wait: by contention a value, by an outage an error.
    fn out_of_time(&mut self) -> Result<Outcome<Hold>, Error> {
        if let Some(trouble) = self.trouble.take() {
            return Err(trouble.on(self.ask.key));
        }
        if matches!(self.patience, Patience::Try) {
            if let Some(reason) = self.refused.take() {
                return Err(self.refusal(reason));
            }
            let why = "no attempt came through in time";
            return Err(BackendError::unavailable(why).on(self.ask.key));
        }
        Ok(Outcome::TimedOut(TimedOut {
            waited: self.ask.anchor.now().saturating_since(self.began),
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
        self.pause = FIRST_PAUSE;
    }

    fn was_answered(&mut self) {
        self.refused = None;
        self.trouble = None;
        self.answered = true;
    }

    /// A pause before the next try, longer each time.
    fn next_pause(&mut self) -> Duration {
        let pause = self.ask.anchor.random_between(self.pause / 2, self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        pause
    }

    async fn sleep(&self, pause: Duration) -> Result<Slept, Error> {
        let core = self.ask.anchor;
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
        match select(pin!(core.closed()), pin!(slept)).await {
            Either::Left(_) => Err(Error::Closed),
            Either::Right((slept, _)) => Ok(slept),
        }
    }

    /// Carries one attempt to its end.
    async fn run(&mut self, mut attempt: Attempt<'a>) -> Result<Step, Error> {
        loop {
            if self.left().is_zero() {
                return self.out_of_time().map(Step::Done);
            }
            let limit = self.call_limit();
            let reply = match attempt.acquire(self.waits(), self.deadline, limit).await {
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
            let Answer { sent, stamp, reply } = reply;
            match reply {
                AcquireReply::Acquired(acquired) => {
                    self.went_well();
                    return self
                        .take(
                            attempt,
                            Answer {
                                sent,
                                stamp,
                                reply: acquired,
                            },
                        )
                        .await;
                }
                AcquireReply::Queued(queued) => {
                    self.went_well();
                    return self.wait_in_queue(attempt, stamp, queued).await;
                }
                AcquireReply::Held(held) => {
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
                AcquireReply::Refused(Refused::WouldDeadlock) if self.all_given_up() => {
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

    /// Whether the owner has no guard any more: what the server knows of is being ended.
    fn all_given_up(&self) -> bool {
        match self.ask.owner {
            Owner::Fresh => false,
            Owner::Reentrant(owner) => {
                let tenure = owner.tenure.lock().upgrade();
                tenure.is_none_or(|tenure| tenure.is_over())
            }
        }
    }

    /// Somebody has it and there is no queue to wait in.
    fn not_queued(&mut self, held: Held) -> Step {
        if !self.waits() {
            return Step::Done(match self.patience {
                Patience::Try => Outcome::Held(held),
                Patience::Within(_) | Patience::Forever => Outcome::TimedOut(TimedOut {
                    waited: self.ask.anchor.now().saturating_since(self.began),
                    ahead: None,
                }),
            });
        }
        Step::Again(self.next_pause())
    }

    async fn take(
        &mut self,
        attempt: Attempt<'a>,
        answer: Answer<crate::reply::Acquired>,
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
                // tenure that was revoked.
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
            anchor: core,
            key,
            mode,
            ..
        } = self.ask;
        core.events.queued(key, mode, &queued);
        let place = attempt.polled();
        let mut due = self.next_poll(&attempt, stamp, &queued);
        self.ahead = Some(queued.ahead);
        loop {
            // Timers are coarse: one made anew after each event, for no time left, would let a wait
            // go on for as long as events come.
            if self.left().is_zero() {
                return self.out_of_time().map(Step::Done);
            }
            place.ask(core.now(), due);
            due = match self.wake_up(&attempt, &place).await? {
                Woken::PastDeadline => return self.out_of_time().map(Step::Done),
                Woken::OwnerGranted => return Ok(Step::Again(Duration::ZERO)),
                Woken::Event(Event::Granted(grant)) => {
                    drop(place);
                    return match attempt.pushed(grant) {
                        Some(answer) => self.take(attempt, answer).await,
                        None => self.confirm(attempt).await,
                    };
                }
                Woken::Event(Event::PollNow) => Due::NOW,
                Woken::Answer(Ok(Answer { sent, stamp, reply })) => {
                    self.went_well();
                    match reply {
                        PollReply::Acquired(reply) => {
                            drop(place);
                            return self.take(attempt, Answer { sent, stamp, reply }).await;
                        }
                        PollReply::Queued(queued) => {
                            self.ahead = Some(queued.ahead);
                            self.next_poll(&attempt, stamp, &queued)
                        }
                        PollReply::Gone(_) => {
                            attempt.gone();
                            return Ok(Step::Again(Duration::ZERO));
                        }
                    }
                }
                Woken::Answer(Err(error)) => {
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
        let core = self.ask.anchor;
        if mutant!(LostWakeUpWithoutPoll) {
            return Due::exactly(Duration::MAX);
        }
        let most = MAX_POLL_INTERVAL.min(self.ask.spec.poll_interval());
        let mut base = queued.check_in.min(most);
        // Those further back are told to come at some time or other.
        let mut flexible = queued.ahead >= CHECK_EARLY || queued.check_in >= most;
        if attempt.can_be_prolonged(stamp, queued.place_remaining)
            && queued.place_remaining / 2 < base
        {
            base = queued.place_remaining / 2;
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

    async fn wake_up(&self, attempt: &Attempt<'a>, place: &Polled) -> Result<Woken, Error> {
        let core = self.ask.anchor;
        let (pushed, granted) = (pin!(attempt.event()), pin!(attempt.owner_granted()));
        let (answered, closed) = (pin!(place.answer()), pin!(core.closed()));
        let timer = pin!(async {
            match self.deadline {
                Some(_) => core.runtime.sleep(self.left()).await,
                None => std::future::pending().await,
            }
        });
        let told = select(pushed, granted);
        match select(closed, select(told, select(answered, timer))).await {
            Either::Left(_) => Err(Error::Closed),
            Either::Right((Either::Left((Either::Left((event, _)), _)), _)) => {
                Ok(Woken::Event(event))
            }
            Either::Right((Either::Left((Either::Right(_), _)), _)) => Ok(Woken::OwnerGranted),
            Either::Right((Either::Right((Either::Left((answer, _)), _)), _)) => {
                Ok(Woken::Answer(answer))
            }
            Either::Right((Either::Right((Either::Right(_), _)), _)) => Ok(Woken::PastDeadline),
        }
    }
}
