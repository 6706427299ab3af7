//! Rules for backends that open connections: how often they try, and how they choose among several addresses.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::backoff::Backoff;
use crate::error::BackendError;
use crate::runtime::{Moment, Runtime};
use crate::sync::{Mutex, MutexGuard};

/// The pauses start again with the shortest one if a connection has lasted this long.
const SETTLED: Duration = Duration::from_millis(750);
/// How long an address may take before the next one is tried too (RFC 8305).
const HEAD_START: Duration = Duration::from_millis(250);

/// When a client may try to connect to one server. Of many calls that wait, each would otherwise try.
///
/// Every attempt to connect to the server goes through [`connect`](Self::connect), whatever the connection is
/// for. So the number of attempts doesn't depend on the number of waiting calls:
///
/// - After a failure, there is one attempt at a time. Before the next one is a pause of 20 ms. It doubles with
///   each failure up to 750 ms, less a random part of up to a half.
/// - Everybody else hears the last error at once, and can try again later.
/// - Once an attempt has succeeded, everybody may connect at once.
/// - A connection that [ended](Self::ended) soon after it was made counts as a failed attempt.
///
/// # Examples
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold_api::{BackendError, ConnectPace, Runtime};
/// # struct Connection;
/// # async fn open() -> Result<Connection, BackendError> { Ok(Connection) }
/// const LIMIT: Duration = Duration::from_secs(1);
///
/// async fn connect(pace: &ConnectPace, runtime: &dyn Runtime) -> Result<Connection, BackendError> {
///     let opening = async {
///         let late = || Err(BackendError::unavailable("no answer in time"));
///         runtime.timeout(LIMIT, open()).await.unwrap_or_else(late)
///     };
///     pace.connect(runtime, LIMIT, opening).await
/// }
/// ```
#[derive(Debug, Default)]
pub struct ConnectPace(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Why the last attempt has failed. `None` if it has succeeded, or there was none.
    failure: Option<BackendError>,
    backoff: Backoff,
    /// After a failure, when the next attempt may begin.
    next: Moment,
    /// The number of the only attempt after a failure, and when it no longer holds up others.
    running: Option<(u64, Moment)>,
    begun: u64,
    /// When an attempt last succeeded.
    connected: Moment,
}

impl Default for State {
    fn default() -> Self {
        Self {
            failure: None,
            backoff: Backoff::connecting(),
            next: Moment::default(),
            running: None,
            begun: 0,
            connected: Moment::default(),
        }
    }
}

impl ConnectPace {
    /// Runs an attempt to connect, unless it isn't time for one.
    ///
    /// `attempt` must end within `limit`. One that doesn't, because its thread is blocked, no longer holds up
    /// others.
    ///
    /// # Errors
    /// The error of the attempt. If another attempt is running, or the pause isn't over, the error of the last attempt,
    /// at once.
    ///
    /// # Cancel safety
    /// An attempt that you drop has failed.
    pub async fn connect<T>(
        &self,
        runtime: &dyn Runtime,
        limit: Duration,
        attempt: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let turn = self.begin(runtime, limit)?;
        let result = attempt.await;
        turn.end(result.as_ref().err().cloned());
        result
    }

    /// The last error, if no attempt is running and the pause after the last one is not over.
    pub fn pausing(&self, now: Moment) -> Option<BackendError> {
        let state = self.state();
        let is_pause = state.running.is_none() && now < state.next;
        state.failure.clone().filter(|_| is_pause)
    }

    /// How long it takes until an attempt may begin, unless another one is running then.
    pub fn pause_left(&self, now: Moment) -> Duration {
        let state = self.state();
        match state.failure {
            Some(_) => state.next.saturating_since(now),
            None => Duration::ZERO,
        }
    }

    /// Tells that a connection that was `made` at this moment has ended, or can't be used. If it was made a short time
    /// ago, that counts as a failed attempt: the server may accept connections only to end them.
    pub fn ended(&self, runtime: &dyn Runtime, made: Moment, error: &BackendError) {
        let now = runtime.now();
        let mut state = self.state();
        if state.failure.is_none() && now.saturating_since(made) < SETTLED {
            state.fail(runtime, now, error.clone().not_executed());
        }
    }

    fn begin<'a>(
        &'a self,
        runtime: &'a dyn Runtime,
        limit: Duration,
    ) -> Result<Turn<'a>, BackendError> {
        let now = runtime.now();
        let mut state = self.state();
        let is_busy = state.running.is_some_and(|(_, until)| now < until);
        if let Some(failure) = &state.failure
            && (is_busy || now < state.next)
        {
            return Err(failure.clone());
        }
        state.begun += 1;
        let number = state.begun;
        if state.failure.is_some() {
            state.running = Some((number, now.saturating_add(limit)));
        }
        Ok(Turn {
            pace: self,
            runtime,
            number,
            began: now,
            ended: false,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl State {
    /// Notes the failure of an attempt that began then.
    fn fail(&mut self, runtime: &dyn Runtime, began: Moment, error: BackendError) {
        let now = runtime.now();
        if self.failure.is_none() && now.saturating_since(self.connected) >= SETTLED {
            self.backoff.reset();
        }
        // Counted from the beginning: an attempt without an answer was a pause already. Those who have waited for
        // it must hear the error and not begin another one.
        let shortest = Backoff::connecting().next();
        let pause = runtime.jittered(self.backoff.next());
        self.next = (began.saturating_add(pause)).max(now.saturating_add(shortest));
        self.failure = Some(error);
    }
}

/// An attempt in progress. Dropping it fails it.
struct Turn<'a> {
    pace: &'a ConnectPace,
    runtime: &'a dyn Runtime,
    number: u64,
    began: Moment,
    ended: bool,
}

impl Turn<'_> {
    fn end(mut self, error: Option<BackendError>) {
        self.ended = true;
        self.note(error);
    }

    fn note(&self, error: Option<BackendError>) {
        let mut state = self.pace.state();
        let was_alone = state
            .running
            .is_some_and(|(number, _)| number == self.number);
        if was_alone {
            state.running = None;
        }
        match error {
            None => {
                state.failure = None;
                state.connected = self.runtime.now();
            }
            // Several may run if none has failed before. Together they are one failure.
            Some(error) if state.failure.is_none() || was_alone => {
                state.fail(self.runtime, self.began, error);
            }
            Some(_) => {}
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let reason = "the attempt to connect was given up";
            self.note(Some(BackendError::unavailable(reason)));
        }
    }
}

/// Runs attempts to connect, such as one for each address of a name, until one succeeds. Drops the others.
///
/// Each begins 250 ms after the one before, or as soon as one has failed. So a silent address costs that much
/// (RFC 8305). If there are many, they begin sooner, and all of them within the `limit`.
///
/// # Errors
/// One for all. It is permanent if all are.
///
/// # Cancel safety
/// Dropping the future drops all attempts.
///
/// # Examples
/// ```no_run
/// # use std::net::SocketAddr;
/// # use std::time::Duration;
/// # use leasehold_api::{BackendError, Runtime, first_of};
/// # struct Connection;
/// # async fn open(address: SocketAddr) -> Result<Connection, BackendError> { Ok(Connection) }
/// # async fn example(runtime: &dyn Runtime, addresses: [SocketAddr; 2]) -> Result<(), BackendError> {
/// let limit = Duration::from_secs(1);
/// let connection = first_of(runtime, limit, addresses.map(open)).await?;
/// # Ok(())
/// # }
/// ```
pub async fn first_of<T, F>(
    runtime: &dyn Runtime,
    limit: Duration,
    attempts: impl IntoIterator<Item = F>,
) -> Result<T, BackendError>
where
    F: Future<Output = Result<T, BackendError>>,
{
    let mut waiting: Vec<F> = attempts.into_iter().collect();
    let parts = u32::try_from(waiting.len() + 1).unwrap_or(u32::MAX);
    let head_start = HEAD_START.min(limit / parts);
    waiting.reverse();
    let (mut running, mut errors) = (FuturesUnordered::new(), Vec::new());
    loop {
        running.extend(waiting.pop());
        let all_run = waiting.is_empty();
        let timer = pin!(async {
            match all_run {
                true => std::future::pending().await,
                false => runtime.sleep(head_start).await,
            }
        });
        match select(running.next(), timer).await {
            Either::Left((Some(Ok(done)), _)) => return Ok(done),
            Either::Left((Some(Err(error)), _)) => errors.push(error),
            Either::Left((None, _)) => return Err(BackendError::of_all(errors)),
            Either::Right(_) => {}
        }
    }
}
