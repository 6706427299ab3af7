//! A connection that opens on demand and is replaced when it breaks.
//!
//! - Connecting is single-flight, and all connections to the server share a pace. Each new connection reads
//!   the server's `run_id`, so every reply is stamped with the right clock. Connecting continues if the caller
//!   that started it gives up. Otherwise the renewals of a short lease might all give up before a connection
//!   to a distant server is open.
//! - A connection that is known to have ended is replaced before the next call. Nothing is sent
//!   over it.
//! - A dead network looks like silence. If nothing arrives for a quarter of the call timeout while
//!   a call waits, a second connection is opened next to the silent one. If the second one works
//!   and the first is still silent, the second replaces it. The calls that wait on the first then
//!   fail at once with an unknown outcome. Calls that were dropped by their callers count as
//!   waiting.
//! - If a server says that it has become a replica, the next call opens a new connection, because
//!   the server's name or the sentinels may lead to the new primary now. Until they do, a new
//!   connection is opened at most once in each [`PAUSE`].
//! - With Sentinel, a new connection leads to the primary of that moment. If that is another server
//!   than before, all other connections of the backend follow.
//! - A user's connection can't be replaced. After an error, or silence for the whole call timeout,
//!   the `run_id` is read again, because the library may have connected to another server.
//! - A server may have no `run_id`. Then its clock is watched, as with a user's connection.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use leasehold_api::{BackendError, ClockId, Moment, Rounded, Runtime, ServerTime, Stamp};
use tokio::sync::watch;

use super::clock::ClockWatch;
use super::connector::{self, Connection};
use super::failure::{Failure, FailureKind};
use super::server::{ServerInfo, UNKNOWN};
use super::shared::{Connected, Shared, no_connection, not_run};
use super::slots::SlotRange;
use super::{cause, lock};
use crate::script::{Call, ErrorClass, reply};

/// How long the silent connection may still answer after the second one works. A server that was
/// only busy answers on both at about the same time.
const GRACE: Duration = Duration::from_millis(20);

/// The shortest time between two connections to a server that has become a replica.
const PAUSE: Duration = Duration::from_millis(250);

/// A call without an answer that can be used.
pub(crate) enum CallError {
    /// There was no connection. Nothing was sent.
    NotSent(BackendError),
    /// The call was sent.
    Failed(Failure),
}

impl CallError {
    pub(crate) fn in_call(self, prefix: &str) -> BackendError {
        match self {
            Self::NotSent(error) => error,
            Self::Failed(failure) => failure.in_call(prefix),
        }
    }
}

/// The answer of a script, and the id of the clock that the script read.
pub(crate) struct ScriptReply {
    pub(crate) body: Bytes,
    pub(crate) clock: ClockId,
}

pub(crate) struct ManagedConnection {
    shared: Arc<Shared>,
    closed: AtomicBool,
    current: Mutex<Option<Arc<Live>>>,
    /// Locked while connecting.
    gate: tokio::sync::Mutex<()>,
}

struct Live {
    connection: Arc<dyn Connection>,
    /// What the server has told at the start.
    info: ServerInfo,
    opened: Moment,
    /// The number of moves to another server before it was opened.
    moves: u64,
    answers: AtomicU64,
    /// When the first call after the last answer was sent.
    silent_since: Mutex<Option<Moment>>,
    doubted: AtomicBool,
    /// Set when the connection is replaced. Its calls then fail.
    given_up: watch::Sender<bool>,
}

/// A connection for one command, and the time limit of the command.
struct Turn {
    live: Arc<Live>,
    sent: Moment,
    left: Duration,
}

impl ManagedConnection {
    pub(crate) fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            shared,
            closed: AtomicBool::new(false),
            current: Mutex::default(),
            gate: tokio::sync::Mutex::default(),
        })
    }

    pub(crate) async fn script(self: &Arc<Self>, call: &Call) -> Result<ScriptReply, BackendError> {
        let answer = self.attempt(call, false).await;
        answer.map_err(|error| error.in_call(self.shared.prefix()))
    }

    /// Runs a script. With `asking`, the server is a node that imports the slot of the key.
    pub(crate) async fn attempt(
        self: &Arc<Self>,
        call: &Call,
        asking: bool,
    ) -> Result<ScriptReply, CallError> {
        let turn = self.turn().await.map_err(CallError::NotSent)?;
        let clock = self.certain_clock(&turn.live).unwrap_or(UNKNOWN);
        // The others answer without a time: what looks like one may be the name of a key.
        let serves_keys = call.elements() > 0;
        let call = call.to_server(clock);
        let answer = pin!(connector::script(&*turn.live.connection, &call, asking));
        let answer = self.wait_for_answer(&turn, answer).await;
        let body = answer.map_err(CallError::Failed)?;
        let at = serves_keys.then(|| reply::time(&body)).flatten();
        let clock = self.clock_of(&turn, at);
        Ok(ScriptReply { body, clock })
    }

    /// The id of the server's clock. `None` without a connection.
    pub(crate) fn clock(&self) -> Option<ClockId> {
        let live = lock(&self.current).clone()?;
        let watched = || lock(&self.shared.clock).as_ref().map(ClockWatch::current);
        live.info.clock.or_else(watched)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) async fn time(self: &Arc<Self>) -> Result<Stamp, BackendError> {
        let turn = self.turn().await?;
        let answer = pin!(turn.live.connection.time());
        let answer = self.wait_for_answer(&turn, answer).await;
        let at = answer.map_err(|failure| failure.at_connect(self.shared.prefix()))?;
        let clock = self.clock_of(&turn, Some(at));
        Ok(Stamp { clock, at })
    }

    /// Reads the slots of a cluster from this node, over a connection that is open. Also returns
    /// whether the node has shard channels.
    pub(crate) async fn slots(self: &Arc<Self>) -> Result<(bool, Vec<SlotRange>), BackendError> {
        let turn = self.turn().await?;
        let slots = pin!(turn.live.connection.slots());
        let answer = self.wait_for_answer(&turn, slots).await;
        let ranges = answer.map_err(|failure| failure.at_connect(self.shared.prefix()))?;
        Ok((turn.live.info.has_shard_channels, ranges))
    }

    pub(crate) async fn warm_up(self: &Arc<Self>) -> Result<(), BackendError> {
        self.live().await.map(drop)
    }

    /// Drops the connection. The next call opens another one.
    pub(crate) fn disconnect(&self) {
        lock(&self.current).take();
    }

    /// Closes the connection. Later calls fail.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        lock(&self.current).take();
    }

    /// Finds the connection for one command. Connecting counts as part of the call.
    async fn turn(self: &Arc<Self>) -> Result<Turn, BackendError> {
        let limit = self.shared.options.call_timeout;
        let began = self.shared.now();
        if let Some(live) = self.current()? {
            return Ok(self.begin(live, began, limit));
        }
        let opened = self.shared.timeout(limit, pin!(self.live())).await;
        let live = opened.unwrap_or_else(|| Err(no_connection(limit)))?;
        let left = self.shared.left_of_call(began);
        if left.is_zero() {
            // Nothing was sent yet, and no time is left for an answer.
            return Err(no_connection(limit));
        }
        Ok(self.begin(live, self.shared.now(), left))
    }

    /// Notes that a command is sent. The caller may drop the call before it notices the silence.
    fn begin(self: &Arc<Self>, live: Arc<Live>, sent: Moment, left: Duration) -> Turn {
        self.suspect(&live);
        lock(&live.silent_since).get_or_insert(sent);
        Turn { live, sent, left }
    }

    /// Waits for an answer until the time limit, or until the connection is replaced.
    async fn wait_for_answer<T>(
        self: &Arc<Self>,
        turn: &Turn,
        mut answer: Pin<&mut impl Future<Output = Result<T, Failure>>>,
    ) -> Result<T, Failure> {
        let Turn { live, left, .. } = turn;
        let unsuspected = self.shared.silence().min(*left);
        let early = self.shared.timeout(unsuspected, answer.as_mut()).await;
        if let Some(result) = early {
            return self.note_answer(live, result);
        }
        if self.shared.connector.is_own() {
            // If an earlier call was answered after this one was sent, this call's silence counts
            // from its own start. (A user's handle may be several connections.)
            lock(&live.silent_since).get_or_insert(turn.sent);
        }
        self.suspect(live);
        let given_up = pin!(live.until_given_up());
        let rest = select(answer, given_up);
        match self.shared.timeout(*left - unsuspected, rest).await {
            Some(Either::Left((result, _))) => self.note_answer(live, result),
            Some(Either::Right(_)) => Err(Failure::lost("the connection was replaced")),
            None => {
                self.suspect(live);
                Err(Failure::lost(format!(
                    "no answer within {}",
                    Rounded(*left)
                )))
            }
        }
    }

    fn note_answer<T>(&self, live: &Arc<Live>, result: Result<T, Failure>) -> Result<T, Failure> {
        let kind = result.as_ref().err().map(Failure::kind);
        if let Err(failure) = &result
            && matches!(failure.kind(), FailureKind::Lost | FailureKind::Refused)
        {
            let error = BackendError::unavailable(cause::name(&failure.to_string()));
            let (shared, error) = (&self.shared, self.shared.with_address(error));
            shared.pace.ended(&shared.runtime, live.opened, &error);
            self.retire(live);
        } else {
            live.answers.fetch_add(1, Ordering::Relaxed);
            *lock(&live.silent_since) = None;
        }
        if let Some(FailureKind::Answered(ErrorClass::Demoted)) = kind {
            self.leave(live);
        }
        result
    }

    fn suspect(self: &Arc<Self>, live: &Arc<Live>) {
        let Some(since) = *lock(&live.silent_since) else {
            return;
        };
        let silence = self.shared.now().saturating_since(since);
        let call = self.shared.options.call_timeout;
        if self.shared.connector.is_own() {
            if silence >= self.shared.silence() {
                self.doubt(live);
            }
        } else if silence >= call {
            *lock(&live.silent_since) = None;
            self.retire(live);
        }
    }

    fn doubt(self: &Arc<Self>, live: &Arc<Live>) {
        if live.doubted.swap(true, Ordering::Relaxed) {
            return;
        }
        let answers = live.answers.load(Ordering::Relaxed);
        let (this, live) = (Arc::clone(self), Arc::clone(live));
        self.shared.handle.spawn(async move {
            if let Ok(connected) = this.shared.connect(false).await {
                this.shared.runtime.sleep(GRACE).await;
                if live.answers.load(Ordering::Relaxed) == answers {
                    let new = this.use_connection(connected);
                    this.replace(&live, Some(new));
                }
            }
            live.doubted.store(false, Ordering::Relaxed);
        });
    }

    /// Abandons a connection. The next call opens another one, or reads the `run_id` again if the
    /// connection is the user's.
    fn retire(&self, live: &Arc<Live>) {
        self.replace(live, None);
    }

    /// Leaves a server that may no longer be the primary. The next call opens a new connection, and
    /// so do the other connections: at once, or with Sentinel when the new one reaches another
    /// server. Other calls on the old connection may still be answered.
    fn leave(&self, live: &Arc<Live>) {
        let age = self.shared.now().saturating_since(live.opened);
        if self.shared.connector.is_own() && age >= PAUSE {
            let mut current = lock(&self.current);
            if current.as_ref().is_some_and(|it| Arc::ptr_eq(it, live)) {
                *current = None;
                self.shared.leave_replica();
            }
        }
    }

    fn replace(&self, old: &Arc<Live>, new: Option<Arc<Live>>) {
        let mut current = lock(&self.current);
        if current.as_ref().is_some_and(|live| Arc::ptr_eq(live, old)) {
            *current = new;
            // Other calls on a user's connection may still be answered.
            if self.shared.connector.is_own() {
                old.given_up.send_replace(true);
            }
        }
    }

    async fn live(self: &Arc<Self>) -> Result<Arc<Live>, BackendError> {
        if let Some(live) = self.current()? {
            return Ok(live);
        }
        if let Some(error) = self.shared.pace.pausing(self.shared.now()) {
            return Err(error);
        }
        let this = Arc::clone(self);
        // In a task: the attempt must survive a caller that gives up, and a caller on a blocked
        // runtime must not keep the gate locked.
        let opening = async move { this.open().await };
        let opened = self.shared.handle.spawn(opening).await;
        opened.unwrap_or_else(|ended| Err(not_run(&ended)))
    }

    /// Opens the connection. If that fails, all callers that wait hear it: the pause has just begun.
    async fn open(&self) -> Result<Arc<Live>, BackendError> {
        let _gate = self.gate.lock().await;
        if let Some(live) = self.current()? {
            return Ok(live);
        }
        let connected = self.shared.connect(false).await?;
        let live = self.use_connection(connected);
        *lock(&self.current) = Some(Arc::clone(&live));
        // The connection may have ended already. Then the caller's command fails.
        self.current()?;
        Ok(live)
    }

    /// Returns the connection, unless it is known to have ended or to lead to a former primary.
    fn current(&self) -> Result<Option<Arc<Live>>, BackendError> {
        let mut current = lock(&self.current);
        if self.closed.load(Ordering::Acquire) {
            *current = None;
            return Err(BackendError::Closed);
        }
        if current
            .as_ref()
            .is_some_and(|live| live.connection.is_closed() || self.is_left_behind(live))
        {
            *current = None;
        }
        Ok(current.clone())
    }

    /// Whether another connection has moved to another server since this one was opened. A new
    /// connection is kept for a while, in case the sentinels disagree.
    fn is_left_behind(&self, live: &Live) -> bool {
        live.moves != self.shared.moves()
            && self.shared.now().saturating_since(live.opened) >= PAUSE
    }

    fn use_connection(&self, connected: Connected) -> Arc<Live> {
        let info = &connected.info;
        if !self.shared.connector.is_own() || info.clock.is_none() {
            let server = info.clock.unwrap_or(self.shared.unnamed_clock);
            lock(&self.shared.clock)
                .get_or_insert_with(|| ClockWatch::new(server))
                .connected(server);
        }
        Live::new(connected, self.shared.now())
    }

    /// The clock id that was derived from the server's `run_id`. `None` if it has none, or if the library may
    /// have connected to another server meanwhile.
    fn certain_clock(&self, live: &Live) -> Option<ClockId> {
        live.info.clock.filter(|_| self.shared.connector.is_own())
    }

    fn clock_of(&self, turn: &Turn, at: Option<ServerTime>) -> ClockId {
        if let Some(clock) = self.certain_clock(&turn.live) {
            return clock;
        }
        match (&mut *lock(&self.shared.clock), at) {
            (Some(watch), Some(at)) => watch.observe(turn.sent, self.shared.now(), at),
            _ => turn.live.info.clock.unwrap_or(self.shared.unnamed_clock),
        }
    }
}

impl Live {
    fn new(connected: Connected, opened: Moment) -> Arc<Self> {
        Arc::new(Self {
            info: connected.info,
            connection: connected.connection,
            opened,
            moves: connected.moves,
            answers: AtomicU64::new(0),
            silent_since: Mutex::default(),
            doubted: AtomicBool::new(false),
            given_up: watch::Sender::new(false),
        })
    }

    async fn until_given_up(&self) {
        let mut given_up = self.given_up.subscribe();
        // The result is never an error: `self` owns the sender.
        let _ = given_up.wait_for(|it| *it).await;
    }
}

#[cfg(test)]
mod tests;
