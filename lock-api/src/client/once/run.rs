//! Runs an occurrence: looks at the record, takes the lock, notes the attempt, runs the body, notes the result.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};

use crate::backoff::Backoff;
use crate::bounds::MAX_NOTE_KEEP;
use crate::client::error::Error;
use crate::client::guard::MutexGuard;
use crate::client::hold::{OnRefusal, ReleaseOnDrop};
use crate::client::once::decide::{Decision, When, Wish};
use crate::client::once::record::Record;
use crate::client::once::report::{Reported, report};
use crate::client::once::{Job, JobFailure, JobOutcome, Occurrence, Once};
use crate::client::outcome::Outcome;
use crate::id::{Key, Label};
use crate::reply::{NoteReply, NoteView};
use crate::runtime::Moment;
use crate::sync::Arc;
use crate::time::ServerTime;

/// The versions of the notes of one attempt.
const BEGUN: u32 = 1;
const ENDED: u32 = 2;
/// Above all versions of attempts.
const RESET: u32 = u32::MAX;
/// The shortest sleep until a time of the server.
const SHORTEST_SLEEP: Duration = Duration::from_millis(10);
/// The longest sleep without another look at the server's clock.
const LONGEST_SLEEP: Duration = Duration::from_secs(60 * 60);
/// What is left at most when a sleep goes to its end.
const FINAL_SLEEP: Duration = Duration::from_secs(60);
/// For how long a call that is too late asks what became of its occurrence.
const SHORTEST_PATIENCE: Duration = Duration::from_secs(60);
/// How long the record of an occurrence is kept: longer than any window, because another machine may have a longer one
/// than this.
const KEEP: Duration = MAX_NOTE_KEEP;

/// What the lock service says about a job.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) record: Record,
    /// When it said so, on its clock.
    pub(super) at: ServerTime,
    pub(super) holder: Option<Label>,
}

enum Attempted<T, E> {
    /// The body succeeded: `Done`, or `RanUnrecorded`.
    Ended(JobOutcome<T, E>),
    /// `Seen` has the record that the attempt left.
    Failed(E, Seen),
    /// It isn't due, as the record says that was found under the lock.
    NotDue(Seen),
    /// The lock was lost before the body ran.
    Again,
}

impl Occurrence {
    /// Runs the body, unless the occurrence is done, late or given up. If another machine runs it, waits for
    /// that, and tries if that one fails.
    ///
    /// The body may run several times: if it returns an error, the next attempt follows after a pause of
    /// 30 s, then 60 s, and so on. If the lock is lost while the body runs, the body is dropped at its current
    /// await point, and another attempt follows. Tasks that the body has spawned go on: keep them in a `JoinSet`
    /// of the body. Before the fire time, the call sleeps, by the server's clock.
    ///
    /// The call returns at the latest when the occurrence is [`Missed`](JobOutcome::Missed), or when its own
    /// body returns. Nothing is recorded before the fire time, so you can drop the call until then.
    ///
    /// # Errors
    /// - [`Error::InvalidInput`] for a window outside its limits, or no attempts, before any I/O.
    /// - [`Error::FireTimeAhead`] if a time in the record of the job is further ahead of the server's clock than
    ///   the window: that clock was wrong. See [`Once::reset`]. Also if the fire time is more than 366 days ahead.
    /// - [`Error::ForeignValue`] if the key has the note of something else.
    /// - [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the service gave no answer until it was too late to
    ///   start, and for at least a minute, or for as long as the window if this client doesn't know the server's time.
    /// - The permanent errors of [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Panics
    /// If the body panics. The lock is released, and the attempt counts.
    ///
    /// # Cancel safety
    /// If you drop the future, the body is dropped at its current await point, and the lock is released in the
    /// background. The attempt counts. [`LockClient::shutdown`](crate::LockClient::shutdown) doesn't wait for
    /// the body.
    ///
    /// # Examples
    /// See [`Once`].
    pub async fn run<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        body: impl FnMut(Job) -> F,
    ) -> Result<JobOutcome<T, E>, Error> {
        self.check()?;
        let outcome = self.attempts(body).await;
        report(&self.once, &outcome);
        outcome
    }

    async fn attempts<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        mut body: impl FnMut(Job) -> F,
    ) -> Result<JobOutcome<T, E>, Error> {
        let mut failure = None;
        let mut wish = None;
        loop {
            let until = wish.unwrap_or(self.wish).until;
            let mut seen = match self.look_through_outages(until).await {
                // It is too late for another attempt.
                Err(error) if error.is_transient() && failure.is_some() => {
                    let last_done = None;
                    return Ok(JobOutcome::Missed { last_done, failure });
                }
                seen => seen?,
            };
            let wish = *wish.get_or_insert_with(|| self.wish.of_a_call(&seen.record, seen.at));
            let mut decision = wish.decide_without_the_lock(&seen);
            if let Decision::Start { .. } = decision {
                // Zero would not wait at all.
                let left = wish.until.map(|until| until.saturating_since(seen.at));
                let limit = left.unwrap_or_default().max(Duration::from_millis(1));
                let guard = match self.once.mutex.try_lock_for(limit).await {
                    Ok(Outcome::Acquired(guard)) => guard,
                    Ok(Outcome::Contended(_)) => continue,
                    Err(error) if error.is_transient() => continue,
                    Err(error) => return Err(error),
                };
                match self.attempt(guard, wish, Waits(true), &mut body).await {
                    Ok(Attempted::Ended(outcome)) => return Ok(outcome),
                    Ok(Attempted::NotDue(found)) => {
                        // No other look, which would be without the lock: a caller that holds it now, to find out
                        // the same, would pass for a running attempt. All would queue behind each other.
                        decision = wish.decide(&found.record, found.at);
                        seen = found;
                    }
                    Ok(Attempted::Failed(error, _)) => {
                        failure = Some(JobFailure::Error(error));
                        continue;
                    }
                    Ok(Attempted::Again) => continue,
                    Err(Error::Lost { reason, .. }) => {
                        failure = Some(JobFailure::Lost(reason));
                        continue;
                    }
                    Err(error) if error.is_transient() => continue,
                    Err(error) => return Err(error),
                }
            }
            match decision {
                Decision::Wait(until) => self.once.sleep_until(until, seen.at).await?,
                decision => return self.final_outcome(decision, &seen, failure),
            }
        }
    }

    /// Runs the body if it can start now: the occurrence is due, and nobody runs it. Otherwise says why not.
    ///
    /// Apart from the body, the call takes a few call timeouts. It makes at most one attempt. Before the fire
    /// time, the call sleeps, by the server's clock.
    ///
    /// # Errors
    /// The same as [`run`](Self::run), and:
    /// - [`Error::Lost`] if the lock was lost while the body ran. The attempt counts.
    /// - [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the service gave no answer.
    ///
    /// # Cancel safety
    /// The same as [`run`](Self::run).
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, FireTime, JobOutcome, LockClient};
    /// # async fn example(locks: LockClient, fire: FireTime) -> Result<(), Error> {
    /// let report = locks.once("report")?.at(fire);
    /// if let JobOutcome::Running { by } = report.try_run(async |_job| Ok::<_, Error>(())).await? {
    ///     println!("{by:?} runs it");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_run<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        body: impl FnMut(Job) -> F,
    ) -> Result<JobOutcome<T, E>, Error> {
        self.check()?;
        let outcome = self.one_attempt(body).await;
        report(&self.once, &outcome);
        outcome
    }

    async fn one_attempt<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        mut body: impl FnMut(Job) -> F,
    ) -> Result<JobOutcome<T, E>, Error> {
        let mut failure = None;
        let mut wish = None;
        loop {
            let mut seen = self.once.look().await?;
            let wish = *wish.get_or_insert_with(|| self.wish.of_a_call(&seen.record, seen.at));
            let mut decision = wish.decide_without_the_lock(&seen);
            if let Decision::Start { .. } = decision {
                let guard = match self.once.mutex.try_lock().await? {
                    Outcome::Acquired(guard) => guard,
                    Outcome::Contended(contention) => {
                        let by = contention.holder.or(seen.holder);
                        return Ok(JobOutcome::Running { by });
                    }
                };
                match self.attempt(guard, wish, Waits(false), &mut body).await? {
                    Attempted::Ended(outcome) => return Ok(outcome),
                    Attempted::NotDue(found) => {
                        decision = wish.decide(&found.record, found.at);
                        seen = found;
                    }
                    Attempted::Failed(error, left) => {
                        failure = Some(JobFailure::Error(error));
                        decision = wish.decide(&left.record, left.at);
                        seen = left;
                    }
                    Attempted::Again => continue,
                }
            }
            match decision {
                // The fire time has not come.
                Decision::Wait(until) if !wish.retries(&seen) => {
                    self.once.sleep_until(until, seen.at).await?;
                }
                Decision::Wait(until) => {
                    let retry_after = until.saturating_since(seen.at);
                    return Ok(JobOutcome::Failed {
                        failure,
                        retry_after,
                    });
                }
                decision => return self.final_outcome(decision, &seen, failure),
            }
        }
    }

    /// Asks the lock service for the record, through outages: until this time if it is known, at least for a
    /// minute, because the answer tells whether another machine has run it, and as long as the window if this
    /// client doesn't know the server's time.
    async fn look_through_outages(&self, until: Option<ServerTime>) -> Result<Seen, Error> {
        let once = &self.once;
        let core = &once.mutex.lock.client;
        let until = match self.wish.when {
            When::At(fire) => Some(fire.after(self.wish.window)),
            When::NotWithin(_) => until,
        };
        let began = core.now();
        let mut backoff = Backoff::background();
        let may_start = || match (until, once.server_now()) {
            (Some(until), Some(now)) => {
                now < until || core.now() < began.saturating_add(SHORTEST_PATIENCE)
            }
            _ => core.now() < began.saturating_add(self.wish.window),
        };
        loop {
            match once.look().await {
                Err(error) if error.is_transient() && may_start() => {
                    once.sleep(core.jittered(backoff.next())).await?;
                }
                seen => return seen,
            }
        }
    }

    /// The server's time, from an answer that has just come. Waits for it through outages, as [`run`](Self::run) does.
    pub(super) async fn server_time(&self) -> Result<ServerTime, Error> {
        self.look_through_outages(None).await.map(|seen| seen.at)
    }

    fn final_outcome<T, E>(
        &self,
        decision: Decision,
        seen: &Seen,
        failure: Option<JobFailure<E>>,
    ) -> Result<JobOutcome<T, E>, Error> {
        Ok(match decision {
            Decision::Done { fire, .. } => JobOutcome::AlreadyDone { fire },
            Decision::GaveUp { attempts } => JobOutcome::GaveUp { attempts, failure },
            Decision::Ahead { fire } => {
                return Err(Error::FireTimeAhead {
                    key: self.once.mutex.lock.key.clone(),
                    fire,
                    ahead: fire.server_time().saturating_since(seen.at),
                });
            }
            Decision::Missed | Decision::Start { .. } | Decision::Wait(_) => JobOutcome::Missed {
                last_done: seen.record.done,
                failure,
            },
        })
    }

    /// Makes one attempt under the lock, if it is still due. The lock is released at the end.
    async fn attempt<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        guard: MutexGuard,
        wish: Wish,
        waits: Waits,
        body: impl FnMut(Job) -> F,
    ) -> Result<Attempted<T, E>, Error> {
        let guard = Arc::new(guard);
        let _released = ReleaseOnDrop(&guard.hold);
        let attempted = self.attempt_with(&guard, wish, waits, body).await;
        // A release without an answer goes on in the background.
        drop(guard.release().await);
        attempted
    }

    async fn attempt_with<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        guard: &Arc<MutexGuard>,
        wish: Wish,
        waits: Waits,
        mut body: impl FnMut(Job) -> F,
    ) -> Result<Attempted<T, E>, Error> {
        // Nobody else changes the record while this guard is valid.
        let seen = self.once.look().await?;
        let decision = wish.decide(&seen.record, seen.at);
        let Decision::Start { fire, attempt } = decision else {
            return Ok(Attempted::NotDue(seen));
        };
        let begun = Record {
            tried: Some(fire),
            tried_at: seen.at,
            attempts: attempt,
            last: Some(wish.last(&guard.hold.client.settings.label)),
            ..seen.record
        };
        if !self.begin(guard, wish, waits, &begun).await? {
            return Ok(Attempted::Again);
        }
        let exit_status = Arc::default();
        let job = Job {
            guard: Arc::clone(guard),
            fire,
            attempt,
            exit_status: Arc::clone(&exit_status),
        };
        let mut reported = Reported::begin(guard, fire, attempt);
        let result = guard.protect(body(job)).await;
        reported.body_ended(&result);
        let result = result?;
        // When it ended, on the server's clock: a lower bound.
        let now = self.once.server_now().unwrap_or(seen.at).max(seen.at);
        let exit_status = *exit_status.lock();
        let last = begun.last.map(|it| it.ended(result.is_err(), exit_status));
        let ended = match &result {
            Ok(_) => Record {
                done: Some(fire).max(begun.done),
                done_at: Some(now),
                tried_at: now,
                last,
                ..begun
            },
            Err(_) => Record {
                tried_at: now,
                last,
                ..begun
            },
        };
        // Beyond the lease: the answer to a copy tells whether an earlier one was in time.
        let timeout = guard.hold.client.settings.call_timeout;
        let until = guard.hold.valid_until().saturating_add(timeout);
        let noted = write(guard, ENDED, &ended, KEEP, until).await;
        Ok(match (result, noted) {
            (Ok(output), Ok((is_own, stands))) if is_own || stands.done >= Some(fire) => {
                reported.recorded();
                Attempted::Ended(JobOutcome::Done(output))
            }
            (Ok(output), _) => Attempted::Ended(JobOutcome::RanUnrecorded(output)),
            (Err(error), _) => {
                let left = Seen {
                    record: ended,
                    at: now,
                    holder: None,
                };
                Attempted::Failed(error, left)
            }
        })
    }

    /// Notes that an attempt begins. Returns whether its body may run.
    async fn begin(
        &self,
        guard: &MutexGuard,
        wish: Wish,
        waits: Waits,
        begun: &Record,
    ) -> Result<bool, Error> {
        let core = &guard.hold.client;
        let until = core.now().saturating_add(match (waits, wish.until) {
            (Waits(true), Some(until)) => until.saturating_since(begun.tried_at),
            // Nothing has happened yet, so the caller needn't wait for it.
            _ => core.settings.call_timeout * 3,
        });
        let until = until.min(guard.hold.valid_until());
        let written = write(guard, BEGUN, begun, KEEP, until).await;
        written.map(|(stands, _)| stands)
    }
}

impl Wish {
    /// Decides without the lock. While an attempt may be running, nothing is decided about the next one: the
    /// caller waits for the lock.
    fn decide_without_the_lock(&self, seen: &Seen) -> Decision {
        let decision = self.decide(&seen.record, seen.at);
        match (decision, seen.record.tried) {
            (Decision::Wait(_) | Decision::GaveUp { .. }, Some(fire))
                if seen.holder.is_some() && self.retries(seen) =>
            {
                let attempt = seen.record.attempts.saturating_add(1);
                Decision::Start { fire, attempt }
            }
            (decision, _) => decision,
        }
    }

    /// Whether the wait that was decided is the pause after an attempt.
    fn retries(&self, seen: &Seen) -> bool {
        match self.when {
            When::At(fire) => fire.server_time() <= seen.at,
            When::NotWithin(_) => true,
        }
    }
}

/// Whether the call waits through outages, as [`Occurrence::run`] does.
#[derive(Clone, Copy, Debug)]
struct Waits(bool);

/// Notes a record, again and again until there is an answer, at most until `until`. Once the body has run, a refusal is
/// no answer: without the record the job would run again. Returns whether this record stands, and the one that does.
async fn write(
    guard: &MutexGuard,
    version: u32,
    record: &Record,
    keep: Duration,
    until: Moment,
) -> Result<(bool, Record), Error> {
    let (hold, bytes) = (&guard.hold, record.to_bytes());
    let token = hold.token();
    let on_refusal = match version {
        ENDED => OnRefusal::Retry,
        _ => OnRefusal::Fail,
    };
    let answer = hold.note(version, &bytes, keep, until, on_refusal).await?;
    let stands = match answer.reply {
        NoteReply::Noted(note) => Some(note),
        NoteReply::Lost { note, .. } => note,
    };
    let is_own = |note: &NoteView| (note.token, note.version) == (token, version);
    let own = stands.as_ref().is_some_and(is_own);
    let record = record_of(stands.as_ref(), &hold.holder.key)?;
    Ok((own, record))
}

fn record_of(note: Option<&NoteView>, key: &Key) -> Result<Record, Error> {
    let Some(note) = note else {
        return Ok(Record::default());
    };
    Record::from_bytes(&note.bytes).ok_or_else(|| Error::ForeignValue {
        key: key.clone(),
        found: "a note that no job has written".into(),
    })
}

/// The result of [`Once::reset`].
///
/// # Examples
/// See [`Once::reset`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobReset {
    /// The job has no record any more.
    Reset,
    /// The job is running, and its record was not changed.
    Running {
        /// The label of the client that runs it.
        by: Option<Label>,
    },
}

impl Once {
    /// Forgets what is done and how often it was tried, as an operator: each occurrence can run again.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the service gave no answer, [`Error::Lost`] if
    /// the lock was lost at once, and the permanent errors of [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// If you drop the future, the job may or may not be reset.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, JobReset, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// if let JobReset::Running { by } = locks.once("report")?.reset().await? {
    ///     println!("{by:?} runs it; try again later");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reset(&self) -> Result<JobReset, Error> {
        let guard = match self.mutex.try_lock().await? {
            Outcome::Acquired(guard) => guard,
            Outcome::Contended(contention) => {
                let by = contention.holder;
                return Ok(JobReset::Running { by });
            }
        };
        // The empty record replaces the old one. It isn't kept beyond the epoch of this hold, so nothing is left of it.
        let record = Record::default();
        let core = &guard.hold.client;
        let until = core.now().saturating_add(core.settings.call_timeout * 3);
        let written = write(&guard, RESET, &record, Duration::ZERO, until).await;
        drop(guard.release().await);
        match written? {
            (true, _) => Ok(JobReset::Reset),
            (false, _) => Err(guard.hold.loss_error(crate::client::error::Loss::Unknown)),
        }
    }

    /// Asks the lock service for the record.
    pub(super) async fn look(&self) -> Result<Seen, Error> {
        let (core, key) = (&self.mutex.lock.client, &self.mutex.lock.key);
        core.ensure_open()?;
        let answer = core.inspect(key).await?;
        let holder = answer.reply.holders.into_iter().next();
        Ok(Seen {
            record: record_of(answer.reply.note.as_ref(), key)?,
            at: core.backend.time_of_day(answer.stamp.at),
            holder: holder.map(|holder| holder.label),
        })
    }

    /// A lower bound of the server's time.
    fn server_now(&self) -> Option<ServerTime> {
        let lock = &self.mutex.lock;
        let now = lock.client.server_now(&lock.key)?;
        Some(lock.client.backend.time_of_day(now))
    }

    /// Sleeps until about `until` on the server's clock, which showed `now` a moment ago. A long sleep ends
    /// halfway, at the latest after an hour: somebody may have set that clock meanwhile.
    pub(super) async fn sleep_until(
        &self,
        until: ServerTime,
        now: ServerTime,
    ) -> Result<(), Error> {
        let left = until.saturating_since(now).max(SHORTEST_SLEEP);
        let asks_again = left > FINAL_SLEEP;
        self.sleep(if asks_again {
            (left / 2).min(LONGEST_SLEEP)
        } else {
            left
        })
        .await
    }

    pub(super) async fn sleep(&self, time: Duration) -> Result<(), Error> {
        let core = &self.mutex.lock.client;
        let until = core.now().saturating_add(time);
        let (sleep, closed) = (pin!(core.sleep_until(Some(until))), pin!(core.closed()));
        match select(sleep, closed).await {
            Either::Left(_) => Ok(()),
            Either::Right(_) => Err(Error::Closed),
        }
    }
}
