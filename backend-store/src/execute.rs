//! Executes commands on the row of a key: read, step, compare-and-set, and again after a conflict.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use leasehold_api::machine::{self, Command, Env, Message, Reach, Reply, Settings, State};
use leasehold_api::{BackendError, Key, Moment, Runtime, ServerTime, SessionId, Stamp, Stamped};

use crate::store::{Read, Store, Version, Write, Written};

/// The pause after a conflict is random. Its limit is the time that the attempt took; after further
/// conflicts it is 4, 16 and at last this many times as long. So the pauses grow with a store's load, and
/// its clients make room for each other.
const LONGEST_PAUSE: u32 = 64;
/// An attempt counts as this long if it took less.
const SHORTEST_ATTEMPT: Duration = Duration::from_micros(500);
/// How long a row is kept past the end of its state (rule 14).
const KEEP_LONGER: Duration = Duration::from_secs(1);

/// The replies to some commands on one key, all executed at the same time.
pub(crate) type Answer = Result<Stamped<Vec<Reply>>, BackendError>;

/// Runs `future` for at most `limit`. Returns `None` if it takes longer.
pub(crate) async fn within<T>(
    runtime: &dyn Runtime,
    limit: Duration,
    future: impl Future<Output = T>,
) -> Option<T> {
    match select(pin!(future), runtime.sleep(limit)).await {
        Either::Left((result, _)) => Some(result),
        Either::Right(_) => None,
    }
}

/// One call: some commands on one key.
pub(crate) struct Call<'a, S> {
    pub(crate) store: &'a S,
    pub(crate) runtime: &'a dyn Runtime,
    pub(crate) key: &'a Key,
    pub(crate) commands: &'a [Command],
    /// When the caller stops waiting.
    pub(crate) ends: Moment,
    /// Whether a write may be on its way.
    pub(crate) writing: AtomicBool,
}

/// The result of the commands on one version of the row.
struct Stepped {
    answer: Stamped<Vec<Reply>>,
    /// The new state, unless nothing changes.
    state: Option<State>,
    messages: Vec<Message>,
}

impl<S: Store> Call<'_, S> {
    /// Executes the commands. Tries again after each conflict, until the caller stops it.
    pub(crate) async fn execute(&self) -> Answer {
        let mut factor = 1;
        let mut last: Option<(Version, Stamped<Vec<Reply>>)> = None;
        loop {
            let sent = self.runtime.now();
            let read = self.store.read(self.key).await.map_err(nothing_written)?;
            let found = read.row.as_ref().map(|row| row.version);
            if let Some((version, answer)) = last
                && found == Some(version)
            {
                // The store got the write twice, and reported the second one.
                return Ok(answer);
            }
            let stamp = read.stamp;
            let stepped = self.step(read).await?;
            let Some(state) = stepped.state else {
                return Ok(stepped.answer);
            };
            let version = Version::new(self.runtime.random_u64());
            let write = Write {
                key: self.key,
                expected: found,
                version,
                bytes: &state.to_bytes(),
                keep_until: state.stored_end().saturating_add(KEEP_LONGER),
                deadline: self.deadline(stamp, sent),
                messages: &stepped.messages,
                stamp,
            };
            if self.write(write).await? == Written::Applied {
                return Ok(stepped.answer);
            }
            last = Some((version, stepped.answer));
            let took = self
                .runtime
                .now()
                .saturating_since(sent)
                .max(SHORTEST_ATTEMPT);
            self.runtime.sleep(self.jitter(took * factor)).await;
            factor = (factor * 4).min(LONGEST_PAUSE);
        }
    }

    async fn write(&self, write: Write<'_>) -> Result<Written, BackendError> {
        self.writing.store(true, Ordering::Relaxed);
        let written = self.store.write(write).await;
        self.writing.store(false, Ordering::Relaxed);
        written
    }

    /// The end of the call on the store's clock. The stamp is not older than the sending of the read.
    fn deadline(&self, stamp: Stamp, sent: Moment) -> ServerTime {
        let left = self.ends.saturating_since(sent);
        stamp.at.saturating_add(left)
    }

    fn jitter(&self, limit: Duration) -> Duration {
        let micros = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX).max(1);
        Duration::from_micros(self.runtime.random_u64() % micros)
    }

    /// Executes the commands on a state in memory.
    async fn step(&self, read: Read) -> Result<Stepped, BackendError> {
        let before = match &read.row {
            Some(row) => State::from_bytes(&row.bytes)?,
            None => State::default(),
        };
        let (now, settings) = (read.stamp.at, Settings::default());
        let mut state = before.clone();
        let mut known = BTreeMap::new();
        let (mut replies, mut messages) = (Vec::new(), Vec::new());
        for command in self.commands {
            self.ask(state.listeners_of(now, settings, command), &mut known)
                .await;
            let reachable = |session| known.get(&session).copied().unwrap_or(Reach::Unknown);
            let env = Env {
                now,
                settings,
                reachable: &reachable,
            };
            let (reply, more) = machine::step(&mut state, env, command);
            replies.push(reply);
            messages.extend(more);
        }
        // A state that has ended becomes empty. Its row is removed later.
        let keeps = state == State::default() || (state == before && messages.is_empty());
        Ok(Stepped {
            answer: Stamped {
                stamp: read.stamp,
                reply: replies,
            },
            state: (!keeps).then_some(state),
            messages,
        })
    }

    /// Asks who listens, unless that is known.
    async fn ask(&self, mut sessions: Vec<SessionId>, known: &mut BTreeMap<SessionId, Reach>) {
        sessions.retain(|session| !known.contains_key(session));
        if sessions.is_empty() || !self.store.can_tell_reach() {
            return;
        }
        // Without an answer, everybody counts as listening.
        if let Ok(reach) = self.store.reach(&sessions).await {
            known.extend(sessions.into_iter().zip(reach));
        }
    }
}

/// A failed read has no effect, whatever the store says.
fn nothing_written(error: BackendError) -> BackendError {
    match error {
        BackendError::OutcomeUnknown { .. } => {
            BackendError::unavailable("a read failed").with_source(error)
        }
        other => other,
    }
}
