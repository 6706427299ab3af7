//! A store in memory and in virtual time, with faults.

mod faults;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_channel::mpsc::{UnboundedSender, unbounded};
use leasehold_api::bounds::MAX_POLL_INTERVAL;
use leasehold_api::machine::{Message, Reach};
use leasehold_api::{
    BackendError, BoxFuture, ClockId, Cursor, Key, List, Listed, Moment, Notification,
    Notifications, Runtime, ServerTime, SessionId, Stamp,
};
use leasehold_store::{Read, Row, Store, StoreBackend, Tag, Version, Write, Written};
use tokio::time::Instant;

pub(crate) use faults::{Fault, Faults, Flaw};

/// A write that was sent, as the store keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) key: Key,
    pub(crate) expected: Option<Version>,
    tag: Option<Tag>,
    pub(crate) row: Row,
    pub(crate) keep_until: ServerTime,
    pub(crate) deadline: ServerTime,
    messages: Vec<Message>,
    listening: Vec<SessionId>,
    pub(crate) stamp: Stamp,
}

impl Sent {
    fn new(write: &Write<'_>) -> Self {
        Self {
            key: write.key.clone(),
            expected: write.expected,
            tag: write.tag.cloned(),
            row: write.row(),
            keep_until: write.keep_until,
            deadline: write.deadline,
            messages: write.messages.to_vec(),
            listening: write.listening.to_vec(),
            stamp: write.stamp,
        }
    }
}

#[derive(Debug, Default)]
struct Inner {
    /// The rows, and until when they are kept.
    rows: BTreeMap<Key, (Row, ServerTime)>,
    listeners: BTreeMap<SessionId, Vec<UnboundedSender<Notification>>>,
    faults: Faults,
    /// Every write that reached the store, with its result.
    arrived: Vec<(Sent, Written)>,
    /// The times that reads were told.
    read_at: Vec<ServerTime>,
    asked: Vec<SessionId>,
    random: u64,
    compares_reach: bool,
    sends_rows: bool,
    /// The last tag, if writes compare tags, and no versions.
    tags: Option<u64>,
    /// How often first waiters poll, if the store can't notify anybody.
    polls: Option<Duration>,
    /// How far the clock is ahead of the time since the start.
    clock: Duration,
    /// How much later than the deadline was compared the clock is read that a write is answered with, at most.
    reads_late: Duration,
    /// How far two readings of one moment may differ.
    clock_error: Duration,
    /// Whether the clock moves in steps of its error. Otherwise each reading is off by its own time.
    is_coarse: bool,
    /// Whether writes compare no time of a step, and tell no clock.
    tells_no_time: bool,
    /// When the reads and writes that have arrived are done.
    idle_from: Option<Instant>,
    /// Writes don't arrive, unless a test lets them.
    stopped: bool,
    /// The last write that did not arrive.
    pending: Option<Sent>,
    /// Whether reads may be old.
    is_deposed: bool,
    /// What the next read answers if it is old.
    old: Option<Option<Row>>,
}

/// The data, and the sessions that listen.
#[derive(Debug)]
pub(crate) struct Server {
    inner: Mutex<Inner>,
    started: Instant,
    /// The longest time of one way of a message.
    latency: Duration,
    /// The time of one read or write, which follow each other.
    work: Duration,
}

impl Server {
    /// A server whose messages take up to `latency`. Call it inside a tokio runtime.
    pub(crate) fn new(seed: u64, latency: Duration) -> Arc<Self> {
        Self::with_work(seed, latency, Duration::ZERO)
    }

    /// A server that executes one read or write at a time, and takes `work` for each.
    pub(crate) fn with_work(seed: u64, latency: Duration, work: Duration) -> Arc<Self> {
        let inner = Inner {
            random: seed,
            clock: Duration::from_secs(1_700_000_000),
            ..Inner::default()
        };
        Arc::new(Self {
            inner: Mutex::new(inner),
            started: Instant::now(),
            latency,
            work,
        })
    }

    /// Waits until the reads and writes before it are done, and takes the time of one.
    async fn do_work(&self) {
        if self.work.is_zero() {
            return;
        }
        let begins = self.lock().idle_from.max(Some(Instant::now()));
        let done = begins.expect("now, or later") + self.work;
        self.lock().idle_from = Some(done);
        tokio::time::sleep_until(done).await;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects a client.
    pub(crate) fn client(self: &Arc<Self>) -> StoreBackend<MemoryStore> {
        StoreBackend::new(self.store())
    }

    /// Opens a connection.
    pub(crate) fn store(self: &Arc<Self>) -> MemoryStore {
        MemoryStore {
            server: Arc::clone(self),
            is_deaf: false,
        }
    }

    /// Connects a client that can't listen, although others can.
    pub(crate) fn deaf_client(self: &Arc<Self>) -> StoreBackend<MemoryStore> {
        StoreBackend::new(MemoryStore {
            is_deaf: true,
            ..self.store()
        })
    }

    pub(crate) fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    fn flaw(&self) -> Option<Flaw> {
        self.lock().faults.flaw
    }

    /// Compares who listens in each write.
    pub(crate) fn compare_reach(&self) {
        self.lock().compares_reach = true;
    }

    /// Sends the row along with the refusal of a write.
    pub(crate) fn send_rows(&self) {
        self.lock().sends_rows = true;
    }

    /// Compares the tags of rows, and not their versions.
    pub(crate) fn compare_tags(&self) {
        self.lock().tags = Some(0);
    }

    /// Reads the clock up to this long after a write was applied, to answer it.
    pub(crate) fn read_late(&self, by: Duration) {
        self.lock().reads_late = by;
    }

    /// Notifies nobody, and tells nobody who listens. First waiters poll this often.
    pub(crate) fn be_quiet(&self, polls: Duration) {
        self.lock().polls = Some(polls);
    }

    /// From now on reads may be old. The next one answers with this row.
    pub(crate) fn answer_old(&self, row: Option<Row>) {
        let mut inner = self.lock();
        (inner.is_deposed, inner.old) = (true, Some(row));
    }

    /// Executes a read.
    fn read(&self, key: &Key) -> Read {
        let old = self.lock().old.take();
        let (row, stamp) = (old.unwrap_or_else(|| self.row(key)), self.stamp());
        self.lock().read_at.push(stamp.at);
        Read::new(stamp, row)
    }

    pub(crate) fn set_stopped(&self, stopped: bool) {
        self.lock().stopped = stopped;
    }

    /// Takes the last write that did not arrive because the server was stopped.
    pub(crate) fn pending(&self) -> Option<Sent> {
        self.lock().pending.take()
    }

    /// Removes a row.
    pub(crate) fn forget(&self, key: &Key) {
        self.lock().rows.remove(key);
    }

    /// The writes that reached the store, with their results.
    pub(crate) fn arrived(&self) -> Vec<(Sent, Written)> {
        self.lock().arrived.clone()
    }

    /// How many reads were executed.
    pub(crate) fn reads(&self) -> usize {
        self.lock().read_at.len()
    }

    /// The times that reads were told.
    pub(crate) fn read_at(&self) -> Vec<ServerTime> {
        self.lock().read_at.clone()
    }

    /// The sessions that were asked about.
    pub(crate) fn asked(&self) -> Vec<SessionId> {
        self.lock().asked.clone()
    }

    pub(crate) fn put(&self, key: &Key, bytes: &[u8]) {
        let row = Row::new(Version::new(0), bytes.to_vec());
        let forever = ServerTime::from_micros(u64::MAX);
        self.lock().rows.insert(key.clone(), (row, forever));
    }

    pub(crate) fn row(&self, key: &Key) -> Option<Row> {
        self.lock().rows.get(key).map(|(row, _)| row.clone())
    }

    pub(crate) fn stamp(&self) -> Stamp {
        let at = self.error_of_reading() + self.lock().clock + self.started.elapsed();
        Stamp {
            clock: ClockId::new(1),
            at: ServerTime::default().saturating_add(at),
        }
    }

    fn stamp_of_answer(&self) -> Stamp {
        let (now, by) = (self.stamp(), self.lock().reads_late);
        let at = now.at.saturating_add(self.up_to(by));
        Stamp { at, ..now }
    }

    /// From now on two readings of the clock may differ by this much. `tells_time` says whether writes still compare the
    /// time of their step, and tell the clock.
    pub(crate) fn set_clock_error(&self, error: Duration, is_coarse: bool, tells_time: bool) {
        let mut inner = self.lock();
        (inner.clock_error, inner.is_coarse) = (error, is_coarse);
        inner.tells_no_time = !tells_time;
    }

    /// How far a reading is ahead of the least possible one. The greatest differences are frequent.
    fn error_of_reading(&self) -> Duration {
        let (error, is_coarse) = {
            let inner = self.lock();
            (inner.clock_error, inner.is_coarse)
        };
        if error.is_zero() {
            return error;
        }
        if is_coarse {
            let since = self.started.elapsed().as_micros() % error.as_micros();
            return error - Duration::from_micros(u64::try_from(since).expect("short"));
        }
        match self.random() % 4 {
            0 => Duration::ZERO,
            1 => error,
            _ => self.up_to(error),
        }
    }

    /// Steps the clock, which is this much ahead of the time since the start.
    pub(crate) fn step_clock(&self, step: impl FnOnce(Duration) -> Duration) {
        let mut inner = self.lock();
        inner.clock = step(inner.clock);
    }

    /// The rows whose time is over are removed.
    pub(crate) fn remove_expired(&self) {
        let now = self.stamp().at;
        let mut inner = self.lock();
        let forgets = inner.faults.flaw == Some(Flaw::Forgets);
        let is_kept = |keep_until| keep_until > now && !forgets;
        inner.rows.retain(|_, (_, until)| is_kept(*until));
    }

    /// Applies a write if it may be applied.
    pub(crate) fn arrive(&self, sent: &Sent) -> Written {
        let now = self.stamp().at;
        let mut inner = self.lock();
        let found = inner.rows.get(&sent.key).map(|(row, _)| row.version);
        let flaw = inner.faults.flaw;
        let late_is_fine = match flaw {
            Some(Flaw::LateIsFine) => true,
            Some(Flaw::LateReplacementIsFine) => found.is_some(),
            _ => false,
        };
        let in_time = now < sent.deadline || late_is_fine;
        let future_is_fine = inner.tells_no_time || flaw == Some(Flaw::FutureIsFine);
        let in_past = sent.stamp.at <= now || future_is_fine;
        let fine = flaw == Some(Flaw::MessagesAreFine) && !sent.messages.is_empty();
        let tag = inner
            .rows
            .get(&sent.key)
            .and_then(|(row, _)| row.tag.clone());
        let is_expected = match (inner.tags, flaw) {
            (None, _) => found == sent.expected,
            (Some(_), Some(Flaw::AnyTagIsFine)) => tag.is_some() == sent.tag.is_some(),
            (Some(_), _) => tag == sent.tag,
        };
        let applies = is_expected && ((in_time && in_past) || fine);
        let listen = sent.listening.iter().all(|it| inner.listens(it));
        let listen = listen || flaw == Some(Flaw::SilenceIsFine);
        let written = match (applies, listen) {
            (true, true) => Written::applied(),
            (true, false) => Written::NotListening,
            (false, _) => Written::NotApplied,
        };
        let (written, row) = inner.tagged(written, sent.row.clone());
        inner.arrived.push((sent.clone(), written.clone()));
        if written.is_applied() {
            let kept = (row, sent.keep_until);
            inner.rows.insert(sent.key.clone(), kept);
            inner.deliver(&sent.messages, sent.stamp);
        }
        written
    }

    fn is_stopped(&self, sent: &Sent) -> bool {
        let mut inner = self.lock();
        if inner.stopped {
            inner.pending = Some(sent.clone());
        }
        inner.stopped
    }

    pub(crate) fn random(&self) -> u64 {
        let mut inner = self.lock();
        inner.random = inner.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (inner.random ^ (inner.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn up_to(&self, limit: Duration) -> Duration {
        let micros = u64::try_from(limit.as_micros()).expect("short");
        Duration::from_micros(self.random() % (micros + 1))
    }
}

impl Inner {
    /// Gives the row of a write that is applied a new tag, and tells it, if writes compare tags.
    fn tagged(&mut self, written: Written, row: Row) -> (Written, Row) {
        let Some(last) = self.tags.as_mut().filter(|_| written.is_applied()) else {
            return (written, row);
        };
        *last += 1;
        let [tag, next] = [*last, *last + 1].map(|tag| Tag::new(tag.to_be_bytes()));
        let row = row.with_tag(tag.clone());
        match self.faults.flaw {
            Some(Flaw::TellsNoTag) => (written, row),
            Some(Flaw::TellsAnotherTag) => (written.with_tag(next), row),
            _ => (written.with_tag(tag), row),
        }
    }

    fn listens(&self, session: &SessionId) -> bool {
        let senders = self.listeners.get(session);
        senders.is_some_and(|all| all.iter().any(|sender| !sender.is_closed()))
    }

    fn deliver(&mut self, messages: &[Message], stamp: Stamp) {
        for message in messages {
            for sender in self.listeners.get(&message.to).into_iter().flatten() {
                // Fails if the subscriber is gone.
                let _ = sender.unbounded_send(message.payload.stamped(stamp));
            }
        }
    }
}

/// A client's connection to the server.
#[derive(Debug)]
pub(crate) struct MemoryStore {
    server: Arc<Server>,
    /// It can't listen, although others can.
    is_deaf: bool,
}

impl MemoryStore {
    fn fault(&self) -> Option<Fault> {
        let shares = self.server.lock().faults.shares;
        let mut draw = self.server.random() % 100;
        for (share, fault) in shares.into_iter().zip(Fault::ALL) {
            if draw < share {
                return Some(fault);
            }
            draw -= share;
        }
        None
    }

    async fn travel(&self) {
        let time = self.server.up_to(self.server.latency);
        if !time.is_zero() {
            tokio::time::sleep(time).await;
        }
    }

    /// Sends a write. If asked to, reads the row if the write is refused.
    async fn send(
        &self,
        write: Write<'_>,
        reads: bool,
    ) -> Result<(Written, Option<Read>), BackendError> {
        let sent = Sent::new(&write);
        self.travel().await;
        if self.server.is_stopped(&sent) {
            std::future::pending::<()>().await;
        }
        let found = || {
            reads.then(|| {
                let mut read = self.server.read(write.key);
                if self.server.flaw() == Some(Flaw::OldClock) {
                    read.stamp = write.stamp;
                }
                if self.server.flaw() == Some(Flaw::RefusesWithoutTag)
                    && let Some(row) = &mut read.row
                {
                    row.tag = None;
                }
                read
            })
        };
        match self.fault() {
            Some(Fault::Conflict) => return Ok((Written::NotApplied, found())),
            Some(Fault::Unavailable) => return Err(BackendError::unavailable("no connection")),
            Some(Fault::Late) => {
                self.arrive_later(sent);
                return Err(BackendError::outcome_unknown("no reply"));
            }
            Some(Fault::Doubled) => drop(self.server.arrive(&sent)),
            Some(Fault::Copied) => self.arrive_later(sent.clone()),
            Some(Fault::Hangs) => {
                self.server.arrive(&sent);
                tokio::time::sleep(HANG).await;
            }
            Some(Fault::LostReply) => {
                self.server.arrive(&sent);
                return Err(BackendError::outcome_unknown("no reply"));
            }
            None => {}
        }
        self.server.do_work().await;
        let mut written = self.server.arrive(&sent);
        if let Written::Applied(applied) = &mut written {
            applied.at = match self.server.flaw() {
                Some(Flaw::Echoes) => Some(write.stamp),
                Some(Flaw::CreatedWithoutTime) if write.expected.is_none() => None,
                _ => Some(self.server.stamp_of_answer()),
            };
            applied.at = applied.at.filter(|_| !self.server.lock().tells_no_time);
        }
        let found = if written.is_applied() { None } else { found() };
        self.travel().await;
        Ok((written, found))
    }

    fn arrive_later(&self, sent: Sent) {
        let delay = self.server.up_to(Duration::from_secs(20));
        let server = Arc::clone(&self.server);
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            server.arrive(&sent);
        });
    }
}

const HANG: Duration = Duration::from_secs(60);

#[async_trait]
impl Store for MemoryStore {
    fn runtime(&self) -> Arc<dyn Runtime> {
        self.server.clone()
    }

    async fn time(&self) -> Result<Stamp, BackendError> {
        self.travel().await;
        let stamp = self.server.stamp();
        self.travel().await;
        Ok(stamp)
    }

    fn clock_error(&self) -> Duration {
        self.server.lock().clock_error
    }

    fn reads_may_be_old(&self) -> bool {
        self.server.lock().is_deposed
    }

    async fn read(&self, key: &Key) -> Result<Read, BackendError> {
        self.travel().await;
        match self.fault() {
            Some(Fault::Unavailable) => {
                return Err(BackendError::outcome_unknown("a read was lost"));
            }
            Some(Fault::Hangs) => tokio::time::sleep(HANG).await,
            _ => {}
        }
        self.server.do_work().await;
        let read = self.server.read(key);
        self.travel().await;
        Ok(read)
    }

    async fn write(&self, write: Write<'_>) -> Result<Written, BackendError> {
        let (written, _) = self.send(write, false).await?;
        Ok(written)
    }

    async fn write_or_read(
        &self,
        write: Write<'_>,
    ) -> Result<(Written, Option<Read>), BackendError> {
        let reads = self.server.lock().sends_rows;
        self.send(write, reads).await
    }

    fn can_listen(&self) -> bool {
        !self.is_deaf && self.can_tell_reach()
    }

    fn first_waiters_poll(&self) -> Duration {
        self.server.lock().polls.unwrap_or(MAX_POLL_INTERVAL)
    }

    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        self.travel().await;
        let (sender, receiver) = unbounded();
        let mut inner = self.server.lock();
        inner.listeners.entry(session).or_default().push(sender);
        Ok(Box::pin(receiver))
    }

    fn can_list(&self) -> bool {
        true
    }

    async fn list(&self, request: &List) -> Result<Listed, BackendError> {
        self.travel().await;
        let after = request.cursor.as_ref().map_or("", Cursor::as_str);
        let mut keys: Vec<Key> = self.server.lock().rows.keys().cloned().collect();
        keys.retain(|key| key.as_str() > after && key.as_str().starts_with(&request.prefix));
        let limit = usize::try_from(request.limit).expect("64 bits");
        let is_last = keys.len() <= limit;
        keys.truncate(limit);
        let next = keys.last().filter(|_| !is_last);
        Ok(Listed {
            next: next.map(|last| Cursor::new(last.as_str())),
            keys,
        })
    }

    fn can_tell_reach(&self) -> bool {
        self.server.lock().polls.is_none()
    }

    async fn reach(&self, sessions: &[SessionId]) -> Result<Vec<Reach>, BackendError> {
        self.travel().await;
        let mut inner = self.server.lock();
        inner.asked.extend(sessions);
        let reach = |session| match inner.listens(session) {
            true => Reach::Listening,
            false => Reach::Nobody,
        };
        Ok(sessions.iter().map(reach).collect())
    }

    fn compares_reach(&self) -> bool {
        self.server.lock().compares_reach
    }

    async fn remove_expired(&self) -> Result<(), BackendError> {
        self.server.remove_expired();
        Ok(())
    }
}

/// The runtime of its clients has tokio's paused clock, and numbers from the seed.
impl Runtime for Server {
    fn now(&self) -> Moment {
        Moment::from_origin(self.started.elapsed())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }

    fn spawn(&self, future: BoxFuture<'static, ()>) {
        tokio::spawn(future);
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.random().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }
}

/// A runtime in virtual time.
pub(crate) fn paused() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a tokio runtime starts")
}

/// Runs a test in virtual time.
pub(crate) fn block_on<T>(test: impl Future<Output = T>) -> T {
    paused().block_on(test)
}
