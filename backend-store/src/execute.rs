//! Executes calls on the row of a key: read, step, compare-and-set, and again after a conflict. A row that
//! this client remembers needs no read. Nor does a row that came with the refusal of a write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select;
use leasehold_api::bounds::{DELETED_AFTER, DELIVERY_WINDOW};
use leasehold_api::machine::{self, Command, Env, Message, Reach, Reply, Settings, State};
use leasehold_api::{
    AcquireReply, BackendError, Key, Moment, ReleaseReply, Runtime, ServerTime, SessionId, Stamp,
    Stamped,
};

use crate::call::Call;
use crate::local::{self, Local};
use crate::lock;
use crate::memory::{Memory, Remembered};
use crate::promises::{extends, leave_unwritten, only_polls, promises, without_many_watermarks};
use crate::store::{Applied, Read, Row, Store, Version, Write, Written};
use crate::times::Times;
use crate::turns::Task;

/// The pause after a conflict is random. Its limit is the time that the attempt took; after further
/// conflicts it is 4, 16 and at last this many times as long. So the pauses grow with a store's load, and
/// its clients make room for each other. Some writes are sent again at once first, and their pauses don't grow:
/// all the others wait for a write that releases a holder or gives the lock to a waiter, and an acquire that is to queue
/// gets no place while it pauses.
const LONGEST_PAUSE: u32 = 64;
/// How often a write that gives the lock to a waiter is sent again at once. It has met the acquire of the holder before
/// it, and perhaps another one. The others are sent again once.
const GRANTS_AT_ONCE: u8 = 2;
/// An attempt counts as this long if it took less.
const SHORTEST_ATTEMPT: Duration = Duration::from_micros(500);

/// Executes calls on a store.
#[derive(Debug)]
pub(crate) struct Executor<S> {
    pub(crate) store: S,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) local: Arc<Local>,
    pub(crate) memory: Arc<Memory>,
}

/// The result of some calls on one version of the row.
struct Stepped {
    times: Times,
    /// The replies to each call.
    replies: Vec<Vec<Reply>>,
    /// The new state, unless nothing changes.
    state: Option<State>,
    messages: Vec<Message>,
    /// The sessions that count as listening, and of which the store compares that in the write.
    listening: Vec<SessionId>,
    /// Whether the write [promises](Write::promises) that a hold lasts.
    promises: bool,
    /// Grants that only the waiters of this client hear of.
    local: Vec<Message>,
}

/// How an attempt has ended.
enum Attempted {
    /// The calls are answered, but for those that must be executed again without others that were given up.
    Finished,
    /// The write was refused. All calls must be executed again.
    Conflict {
        /// How often the write is sent again at once.
        at_once: u8,
        /// The row, read after the refusal.
        found: Option<Read>,
    },
}

impl<S: Store> Executor<S> {
    pub(crate) fn new(store: S, local: Arc<Local>, memory: Arc<Memory>) -> Self {
        Self {
            runtime: store.runtime(),
            store,
            local,
            memory,
        }
    }

    /// Executes the calls on one key until none is left.
    pub(crate) async fn run(self: Arc<Self>, mut task: Task) {
        let mut calls = Vec::new();
        let mut pauses = Pauses::default();
        while task.next_turn(&mut calls) {
            let pause = self.attempt(task.key(), &mut calls, &mut pauses, true);
            if let Some(pause) = pause.await {
                // Everybody waits for a release. It doesn't wait for the pause of other calls.
                let release = task
                    .release()
                    .then(|()| self.runtime.sleep(SHORTEST_ATTEMPT));
                select(self.runtime.sleep(pause), release).await;
            }
        }
    }

    /// Executes one call, without a turn. It always reads: the client's other commands may be changing the row.
    pub(crate) async fn run_alone(&self, key: &Key, call: Call) {
        let (mut calls, mut pauses) = (vec![call], Pauses::default());
        while !calls.is_empty() {
            let pause = self.attempt(key, &mut calls, &mut pauses, false);
            if let Some(pause) = pause.await {
                self.runtime.sleep(pause).await;
            }
            calls.retain(Call::is_awaited);
        }
    }

    /// Executes these calls once. Keeps those that must be executed again. After a conflict, returns the pause
    /// before that.
    async fn attempt(
        &self,
        key: &Key,
        calls: &mut Vec<Call>,
        pauses: &mut Pauses,
        in_turn: bool,
    ) -> Option<Duration> {
        let sent = self.runtime.now();
        let ends = calls.iter().map(|call| call.ends).max().unwrap_or(sent);
        let limit = ends.saturating_since(sent);
        let once = self.try_once(key, calls, ends, in_turn, pauses);
        match self.runtime.timeout(limit, once).await {
            Some(Ok(Attempted::Finished)) => {}
            Some(Ok(Attempted::Conflict { at_once, .. })) => {
                let now = self.runtime.now();
                let longest = pauses.next(now.saturating_since(sent), at_once)?;
                // The calls that come meanwhile don't wait longer than these.
                return Some(self.up_to(longest).min(ends.saturating_since(now)));
            }
            Some(Err(error)) => {
                for call in calls.drain(..) {
                    call.answer(Err(error.clone()));
                }
            }
            // By now, none of the callers waits any longer.
            None => calls.clear(),
        }
        *pauses = Pauses::default();
        None
    }

    async fn try_once(
        &self,
        key: &Key,
        calls: &mut Vec<Call>,
        ends: Moment,
        in_turn: bool,
        pauses: &mut Pauses,
    ) -> Result<Attempted, BackendError> {
        // A call whose write was refused needs a read: perhaps it was applied.
        let is_fresh = in_turn && calls.iter().all(|call| call.refused.is_none());
        if is_fresh && self.try_remembered(key, calls, ends).await? {
            return Ok(Attempted::Finished);
        }
        let mut sent = self.runtime.now();
        let mut read = self.store.read(key).await.map_err(nothing_written)?;
        loop {
            let limit = ends.saturating_since(sent);
            sent = self.runtime.now();
            match self.execute(key, calls, read, limit, pauses).await? {
                // No call has joined since this read was sent, so it is as good as one of theirs.
                Attempted::Conflict {
                    at_once,
                    found: Some(found),
                } if pauses.retries(at_once) => read = found,
                attempted => return Ok(attempted),
            }
        }
    }

    /// Executes the calls on the row that was read, replaces it within a time, and answers them.
    async fn execute(
        &self,
        key: &Key,
        calls: &mut Vec<Call>,
        read: Read,
        limit: Duration,
        pauses: &mut Pauses,
    ) -> Result<Attempted, BackendError> {
        self.memory.saw_read(key, &read, self.runtime.now());
        let row = read.row.as_ref();
        let times = match self.store.has_clock() {
            true => Times::of_clock(read.stamp),
            false => Times::of_row(read.stamp, self.runtime.now()),
        };
        answer_written(calls, row.map(|row| row.version), times);
        if calls.is_empty() {
            return Ok(Attempted::Finished);
        }
        let before = match row {
            Some(row) => State::from_bytes(&row.bytes)?,
            None => State::default(),
        };
        let stepped = self.step(&before, times, calls, pauses.asks).await;
        // The same state confirms a read that may be old.
        let confirms = stepped.state.is_none();
        if confirms && !self.store.reads_may_be_old() {
            stepped.answer(calls);
            return Ok(Attempted::Finished);
        }
        let state = stepped.state.as_ref().unwrap_or(&before);
        if !confirms && !begin_write(calls) {
            // Without those that were given up meanwhile, the result is another one.
            return Ok(Attempted::Finished);
        }
        // The end of the calls on the store's clock: the stamp is not older than the sending of the read.
        let deadline = times.step.at.saturating_add(limit);
        let bytes = state.to_bytes();
        let mut write = self.new_write(key, row, &stepped, state, &bytes, deadline);
        if confirms {
            // A row that is created must stay for a while, also if there is nothing in it.
            let stays = times.step.at.saturating_add(2 * DELIVERY_WINDOW);
            write.keep_until = write.keep_until.max(stays);
        }
        let at_once = stepped.at_once();
        // If it is sent again at once when it is refused, the store may send the row along.
        let sent = match pauses.retried < at_once {
            true => self.store.write_or_read(write).await,
            false => self.store.write(write).await.map(|written| (written, None)),
        };
        let (written, found) = match confirms {
            true => sent.map_err(nothing_written)?,
            false => sent?,
        };
        if let Written::Applied(applied) = &written {
            self.remember(&write, applied);
        }
        if written.is_applied() {
            self.local.deliver(&stepped.messages, times.message);
            self.local.deliver(&stepped.local, times.message);
            stepped.answer(calls);
            return Ok(Attempted::Finished);
        }
        self.memory.forget(key);
        let version = write.version;
        stepped.keep_replies(calls, version);
        pauses.asks |= written == Written::NotListening;
        Ok(Attempted::Conflict { at_once, found })
    }

    /// Executes the calls on the row that this client remembers, if it does and their results can be trusted:
    /// an acquire or a release that succeeds, and concerns nobody else. The write compares the version, and
    /// that the time of the step is not after the store's clock. So it is a step that was late: no other
    /// command was executed in between.
    ///
    /// Returns `true` if the attempt has [finished](Attempted::Finished), and `false` if the calls need a read.
    async fn try_remembered(
        &self,
        key: &Key,
        calls: &mut Vec<Call>,
        ends: Moment,
    ) -> Result<bool, BackendError> {
        let now = self.runtime.now();
        let Some(Remembered { row, now: stamp }) = self.memory.recall(key, now) else {
            return Ok(false);
        };
        let before = State::from_bytes(&row.bytes)?;
        // A grant to a waiter is a step after a read, also if the waiter doesn't listen and gets no message.
        if !before.to_parts().waiters.is_empty() {
            return Ok(false);
        }
        let times = Times::of_clock(stamp);
        let (stepped, unknown) = step_all(&before, times, calls, &BTreeMap::new());
        let Some(state) = &stepped.state else {
            return Ok(false);
        };
        if !unknown.is_empty() || !stepped.succeeds_alone() {
            return Ok(false);
        }
        if !begin_write(calls) {
            // Without those that were given up meanwhile, the result is another one.
            return Ok(true);
        }
        // The store's clock may be ahead. At its time, too, the result must be the same, and a new hold live.
        let deadline = stamp.at.saturating_add(ends.saturating_since(now));
        let ends = [&before, state].map(|state| state.next_expiry(stamp.at));
        let limits = deliver_before(calls).chain(ends.into_iter().flatten());
        let deadline = limits.fold(deadline, ServerTime::min);
        let bytes = state.to_bytes();
        let write = self.new_write(key, Some(&row), &stepped, state, &bytes, deadline);
        match self.store.write(write).await? {
            Written::Applied(applied) => {
                let Some(at) = applied.at else {
                    // Without the store's clock, the time that is left isn't known.
                    self.memory.forget(key);
                    return Err(BackendError::outcome_unknown("a write without a time"));
                };
                self.remember(&write, &applied);
                // The store may have read its clock after it compared the deadline. The result is that of the comparison.
                let at = Stamp {
                    at: at.at.min(just_before(deadline)),
                    ..at
                };
                let answers = stepped.answers().map(|answer| counted_from(answer, at));
                for (call, answer) in calls.drain(..).zip(answers) {
                    call.answer(Ok(answer));
                }
                Ok(true)
            }
            Written::NotApplied | Written::NotListening => {
                // The write may have been refused because the estimate of the clock is wrong.
                self.memory.forget_clock();
                let version = write.version;
                stepped.keep_replies(calls, version);
                Ok(false)
            }
        }
    }

    fn new_write<'a>(
        &self,
        key: &'a Key,
        found: Option<&'a Row>,
        stepped: &'a Stepped,
        state: &State,
        bytes: &'a [u8],
        deadline: ServerTime,
    ) -> Write<'a> {
        Write {
            key,
            expected: found.map(|row| row.version),
            tag: found.and_then(|row| row.tag.as_ref()),
            version: Version::new(self.runtime.random_u64()),
            bytes,
            keep_until: state.stored_end().saturating_add(DELETED_AFTER),
            deadline,
            messages: &stepped.messages,
            listening: &stepped.listening,
            stamp: stepped.times.step,
            promises: stepped.promises,
        }
    }

    /// Remembers a row that was written, if the store has told its clock at that time.
    fn remember(&self, write: &Write<'_>, applied: &Applied) {
        let Some(at) = applied.at else { return };
        self.memory.saw_clock(at, self.runtime.now());
        let at = at.at.max(write.stamp.at);
        let mut row = write.row();
        row.tag.clone_from(&applied.tag);
        self.memory.remember(write.key, write.expected, row, at);
    }

    /// Whether this client's streams count as listening. If the store can tell who listens and this client can't, other
    /// clients find nobody there, and would pass over its waiters.
    pub(crate) fn counts_as_listening(&self) -> bool {
        self.store.can_listen() || !self.store.can_tell_reach()
    }

    fn up_to(&self, limit: Duration) -> Duration {
        let micros = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX).max(1);
        Duration::from_micros(self.runtime.random_u64() % micros)
    }

    /// Executes the commands on a state in memory. If that depends on who listens, the store compares it in the
    /// write, or it is asked, and they are executed again.
    async fn step(&self, before: &State, times: Times, calls: &[Call], asks: bool) -> Stepped {
        let mut stepped = self.step_with_reach(before, times, calls, asks).await;
        if !self.counts_as_listening()
            && let Some(after) = &stepped.state
        {
            stepped.local = local::grants(before, after, times.step.at);
        }
        stepped
    }

    async fn step_with_reach(
        &self,
        before: &State,
        times: Times,
        calls: &[Call],
        asks: bool,
    ) -> Stepped {
        let mut known = BTreeMap::new();
        loop {
            let (mut stepped, unknown) = step_all(before, times, calls, &known);
            if unknown.is_empty() || !self.store.can_tell_reach() {
                return stepped;
            }
            if !asks && self.store.compares_reach() && stepped.state.is_some() {
                stepped.listening = unknown;
                return stepped;
            }
            let reach = self.store.reach(&unknown).await;
            // Without an answer, everybody counts as listening.
            let reach = reach.unwrap_or_else(|_| vec![Reach::Unknown; unknown.len()]);
            known.extend(unknown.into_iter().zip(reach));
        }
    }
}

/// Executes the commands on a state. Also returns the sessions whose reach matters and is not known. At first
/// they count as listening, so usually one session is asked about. If it doesn't listen, they count as gone:
/// a step passes over those, and so finds all that may get the lock instead.
fn step_all(
    before: &State,
    times: Times,
    calls: &[Call],
    known: &BTreeMap<SessionId, Reach>,
) -> (Stepped, Vec<SessionId>) {
    let unknown = Mutex::new(BTreeSet::new());
    let unless_known = match known.is_empty() {
        true => Reach::Unknown,
        false => Reach::Nobody,
    };
    let reachable = |session| match known.get(&session) {
        Some(reach) => *reach,
        None => {
            lock(&unknown).insert(session);
            unless_known
        }
    };
    let env = Env {
        now: times.step.at,
        settings: Settings::default(),
        reachable: &reachable,
    };
    let (mut state, mut messages) = (before.clone(), Vec::new());
    let mut step = |command: &Command| {
        let (reply, more) = machine::step(&mut state, env, &times.convert(command));
        messages.extend(more);
        reply
    };
    let replies = calls
        .iter()
        .map(|call| call.commands.iter().map(&mut step).collect());
    let mut replies: Vec<Vec<Reply>> = replies.collect();
    if times.is_of_row() {
        state = without_many_watermarks(before, state);
    }
    // Without a clock, a promise must be written: others have seen the row for a while.
    let must_write = times.is_of_row() && replies.iter().flatten().any(promises);
    let promises = must_write || (times.is_of_row() && extends(before, &state));
    // A state that has ended becomes empty. Its row is removed later.
    let keeps = state == State::default() || (state == *before && messages.is_empty());
    let mut keeps = keeps && !must_write;
    if times.is_of_row()
        && !promises
        && let Some(left) = only_polls(before, &state, times.step.at)
    {
        keeps = true;
        let replies = replies.iter_mut().flatten();
        replies.for_each(|reply| leave_unwritten(reply, left));
    }
    let stepped = Stepped {
        times,
        replies,
        state: (!keeps).then_some(state),
        messages,
        listening: Vec::new(),
        promises,
        local: Vec::new(),
    };
    let unknown = lock(&unknown).iter().copied().collect();
    (stepped, unknown)
}

impl Stepped {
    /// How often its write is sent again at once after a conflict.
    fn at_once(&self) -> u8 {
        let replies = || self.replies.iter().flatten();
        let released =
            |reply: &Reply| matches!(reply, Reply::Release(ReleaseReply::Released { .. }));
        let queues = |reply: &Reply| matches!(reply, Reply::Acquire(AcquireReply::Queued(_)));
        match self.messages.is_empty() {
            false => GRANTS_AT_ONCE,
            true => u8::from(replies().any(released) || replies().all(queues)),
        }
    }

    fn answers(self) -> impl Iterator<Item = Stamped<Vec<Reply>>> {
        let stamp = self.times.reply;
        self.replies
            .into_iter()
            .map(move |reply| Stamped { stamp, reply })
    }

    /// Whether each command succeeds, and nobody gets a message.
    fn succeeds_alone(&self) -> bool {
        self.messages.is_empty() && self.replies.iter().flatten().all(succeeds)
    }

    fn answer(self, calls: &mut Vec<Call>) {
        for (call, answer) in calls.drain(..).zip(self.answers()) {
            call.answer(Ok(answer));
        }
    }

    /// Keeps the replies, in case the store got the write twice and reported the second one.
    fn keep_replies(self, calls: &mut [Call], version: Version) {
        for (call, answer) in calls.iter_mut().zip(self.answers()) {
            call.refused = Some((version, answer));
            call.end_write();
        }
    }
}

/// Answers the calls whose last write the store has applied, although it said otherwise: it got the write
/// twice, and reported the second one.
fn answer_written(calls: &mut Vec<Call>, found: Option<Version>, times: Times) {
    for mut call in std::mem::take(calls) {
        match call.refused.take() {
            Some((version, answer)) if found == Some(version) => {
                // Without a clock, what was written counts from its sending.
                let answer = match times.is_of_row() {
                    true => answer,
                    false => counted_from(answer, times.step),
                };
                // If the hold has ended since, the row tells what became of it.
                match answer.reply.iter().any(is_over) {
                    true => calls.push(call),
                    false => call.answer(Ok(answer)),
                }
            }
            _ => calls.push(call),
        }
    }
}

/// Whether the reply is that of an acquire that succeeds, or of the release of a last hold. A release that
/// leaves holds may start a new epoch: a downgraded holder gets another token.
fn succeeds(reply: &Reply) -> bool {
    matches!(
        reply,
        Reply::Acquire(AcquireReply::Acquired(_))
            | Reply::Release(ReleaseReply::Released { holds_left: 0, .. })
    )
}

/// Whether the reply tells of a hold that has ended.
fn is_over(reply: &Reply) -> bool {
    matches!(reply, Reply::Acquire(AcquireReply::Acquired(acquired)) if acquired.remaining.is_zero())
}

/// The replies at a later time, at which the row is still the one that was written. If all of them
/// [succeed](succeeds), the time that is left counts from then: the step may have been at an estimate of the
/// clock, before the call was sent.
fn counted_from(mut answer: Stamped<Vec<Reply>>, now: Stamp) -> Stamped<Vec<Reply>> {
    if !answer.reply.iter().all(succeeds) {
        return answer;
    }
    let later = now.at.saturating_since(answer.stamp.at);
    for reply in &mut answer.reply {
        if let Reply::Acquire(AcquireReply::Acquired(acquired)) = reply {
            acquired.remaining = acquired.remaining.saturating_sub(later);
        }
    }
    answer.stamp = now;
    answer
}

/// The last time of a clock before another one.
const fn just_before(end: ServerTime) -> ServerTime {
    ServerTime::from_micros(end.as_micros().saturating_sub(1))
}

/// When the acquires among the commands are too late.
fn deliver_before(calls: &[Call]) -> impl Iterator<Item = ServerTime> {
    let commands = calls.iter().flat_map(|call| &call.commands);
    commands.filter_map(|command| match command {
        Command::Acquire(acquire) => Some(acquire.deliver_before),
        _ => None,
    })
}

/// Begins the write of these calls, unless one of them was abandoned. That one is taken out.
fn begin_write(calls: &mut Vec<Call>) -> bool {
    let size = calls.len();
    calls.retain(Call::begin_write);
    let all = calls.len() == size;
    if !all {
        calls.iter().for_each(Call::end_write);
    }
    all
}

/// A failed read has no effect, whatever the store says. Nor has a write that only confirms one.
fn nothing_written(error: BackendError) -> BackendError {
    match error {
        BackendError::OutcomeUnknown { .. } => {
            BackendError::unavailable("a read failed").with_source(error)
        }
        other => other,
    }
}

/// The pauses after conflicts, and what else changes for the next attempt.
#[derive(Debug, Default)]
struct Pauses {
    /// How often there was a pause.
    paused: u32,
    /// How often the write was sent again without a pause.
    retried: u8,
    /// Whether the store is asked who listens before the next write: a waiter that was to get the lock doesn't.
    asks: bool,
}

impl Pauses {
    /// Whether a write that may be sent again at once this often is.
    const fn retries(&mut self, at_once: u8) -> bool {
        let retries = self.retried < at_once;
        self.retried += retries as u8;
        retries
    }

    /// The longest pause after an attempt that took this long. `None` if there is no pause.
    fn next(&mut self, took: Duration, at_once: u8) -> Option<Duration> {
        if self.retries(at_once) {
            return None;
        }
        let factor = match at_once {
            0 => 4_u32.saturating_pow(self.paused).min(LONGEST_PAUSE),
            _ => 1,
        };
        self.paused += 1;
        Some(took.max(SHORTEST_ATTEMPT) * factor)
    }
}
