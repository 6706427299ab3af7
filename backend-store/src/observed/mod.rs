//! Time without a clock: a lease ends when a client has seen the row for that long.

mod check;
mod key_times;
mod row;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::iter;
use leasehold_api::machine::State;
use leasehold_api::{
    BackendError, Key, List, Listed, Notification, Notifications, Runtime, ServerTime, SessionId,
    Stamp,
};

use crate::lock;
use crate::messages;
use crate::store::{Read, Row, Store, Tag, Version, Write, Written, page_of};
use crate::tag_store::{Object, Pushed, Put, TagStore};
use crate::times::{own_stamp, unknown_stamp};
use check::check_objects;
use key_times::KeyTimes;
use row::{Header, Promise};

/// The name of the floor, and what the names of all rows begin with.
const FLOOR: &str = "floor";
const ROWS: &str = "key/";
/// How many rows a client looks at each time that it removes some: their programs may have ended. Each look costs a read.
const LOOKS: usize = 16;
/// How much the time of a row goes on with each write that finds nobody there.
const IDLE_STEP: Duration = Duration::from_millis(100);

/// A [`Store`] on a store without a clock.
///
/// # The time of a row
/// Each row has its own time, which only goes on while somebody looks. The row keeps
///
/// - its *promise*: the version of the last write that promised somebody that a hold lasts: a grant, a renewal, an offer;
/// - its *time*: that of the step that wrote it.
///
/// A client's time of the row is the time in the row, plus how long this client has seen it, by its own clock. If the row
/// changes and the promise doesn't, the greater of both counts: failed tries and polls bring their observation along, and
/// take none away. If the promise changes, only the new row counts. So a holder's lease ends at the earliest one lease
/// after its last renewal was written, on every clock whose rate is right (A3). No clocks are compared, unless you ask for it below.
///
/// Written times never fall: a client's time is never before the one in the row that it replaces.
///
/// If nobody holds the lock or waits for it, the time goes on by 0.1 s with each write. Otherwise the watermarks of processes
/// that end at once would stay forever: at most 200 of them do, and at most 1,000 while somebody holds the lock.
///
/// # What follows
/// - A reply that promises anything is a write, even if the state doesn't change. The promise counts from its sending.
/// - A poll is written only when its waiter has less than two thirds of its lease left.
/// - A message is only a wake-up: how long its grant lasts isn't known without a renewal.
/// - A lease ends one lease after the first survivor has seen the row. If nobody looks, it doesn't end.
/// - Holders whose ends are observed together would keep each other alive, so there are only mutexes.
/// - There is no time of day, so no jobs that run once.
///
/// # Processes that end before a lease does
/// A command that runs each minute for a moment sees no lease end. If you know how far the clocks of all machines are apart,
/// [declare it](Self::max_clock_skew): then the time of a row also goes on by the time of day since its promise, less that
/// difference.
///
/// # Tokens
/// A new row begins at a time above the *floor* of the namespace, an object of its own. Before a row is removed, the floor is
/// raised to its token. The write that creates a row compares the floor, for it may be late: a server that was stopped still
/// executes it, after others have used the lock and removed its row. So tokens never fall.
pub struct Observed<T> {
    store: T,
    runtime: Arc<dyn Runtime>,
    times: Arc<KeyTimes>,
    /// The floor that was read last.
    floor: Arc<Mutex<Floor>>,
    /// The name of the row that it has looked at last.
    looked: Mutex<String>,
    max_clock_skew: Option<Duration>,
}

/// What tokens are above, and the tag of its object if it was ever raised.
#[derive(Clone, Debug, Default)]
struct Floor {
    token: u64,
    tag: Option<Tag>,
}

impl<T: TagStore> fmt::Debug for Observed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observed").field(&self.store).finish()
    }
}

impl<T: TagStore> Observed<T> {
    /// Creates a store that observes another one, and compares no clocks.
    ///
    /// # Examples
    /// See [`max_clock_skew`](Self::max_clock_skew).
    pub fn new(store: T) -> Self {
        Self {
            runtime: store.runtime(),
            store,
            times: Arc::default(),
            floor: Arc::default(),
            looked: Mutex::default(),
            max_clock_skew: None,
        }
    }

    /// Declares that the time of day of each machine that uses these locks is never further from the true time than half of this:
    /// then no two are further apart, whenever they are read. Each program declares it for its own clock. There is no default:
    /// without it, no clocks are compared. A runtime without a [time of day](Runtime::time_of_day) declares nothing.
    ///
    /// The lock of a dead holder is then free a lease and twice this time after its last renewal, also if nobody has looked
    /// meanwhile. Each waiter that dies just before it is granted the lock may cost twice this time again. The program of the holder
    /// must have declared it too.
    ///
    /// **If one clock is further off, two processes may hold a lock at once.** A clock that was set by hand, that isn't set yet after
    /// a start, or that stood still with its virtual machine, counts, and so does a step of all clocks. Choose some minutes, and alert
    /// on a clock that is off by a quarter of that.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold_store::{Observed, StoreBackend, TagStore};
    ///
    /// fn backend<T: TagStore>(store: T) -> StoreBackend<Observed<T>> {
    ///     StoreBackend::new(Observed::new(store).max_clock_skew(Duration::from_secs(300)))
    /// }
    /// ```
    #[must_use]
    pub fn max_clock_skew(mut self, skew: impl Into<Option<Duration>>) -> Self {
        self.max_clock_skew = skew.into();
        self
    }

    /// The same over a second connection. Both are one observer.
    pub(crate) fn over(&self, store: T) -> Self {
        Self {
            times: Arc::clone(&self.times),
            floor: Arc::clone(&self.floor),
            ..Self::new(store).max_clock_skew(self.max_clock_skew)
        }
    }

    /// The store without a clock.
    pub const fn inner(&self) -> &T {
        &self.store
    }

    /// Notes a row that was received, and returns its time.
    fn saw(&self, key: &Key, row: &Header) -> ServerTime {
        // In this order: the time in between must not count.
        let earliest = self.max_clock_skew.and_then(|skew| {
            let time_of_day = self.runtime.time_of_day()?;
            Some(row.promise.time_at(time_of_day.saturating_sub(skew / 2)))
        });
        let at = earliest.map_or(row.at, |earliest| row.at.max(earliest));
        self.times.saw(key, row, at, self.runtime.now())
    }

    /// The promise of a write.
    fn promise_of(&self, write: &Write<'_>) -> Promise {
        // Each program answers for its own clock, so the skew of another one does no harm.
        let latest = self.max_clock_skew.and_then(|skew| {
            let time_of_day = self.runtime.time_of_day()?;
            Some(time_of_day.saturating_add(skew / 2))
        });
        Promise::new(write.version.get(), write.stamp.at, latest)
    }

    async fn read_floor(&self) -> Result<Floor, BackendError> {
        let floor = match self.store.read(FLOOR).await? {
            Some(Object { bytes, tag }) => Floor {
                token: row::decode_floor(&bytes)?,
                tag: Some(tag),
            },
            None => Floor::default(),
        };
        lock(&self.floor).clone_from(&floor);
        Ok(floor)
    }

    /// Raises the floor to at least `to`.
    async fn raise_floor(&self, to: u64) -> Result<(), BackendError> {
        loop {
            let Floor { token, tag } = self.read_floor().await?;
            if token >= to {
                return Ok(());
            }
            let bytes = row::encode_floor(to);
            let put = Put::new(FLOOR, tag.as_ref(), &bytes);
            if self.store.write(put).await?.is_some() {
                return Ok(());
            }
        }
    }

    /// Looks at the next rows, so that their time goes on.
    async fn look(&self) -> Result<(), BackendError> {
        let after = lock(&self.looked).clone();
        let names = self.store.names(ROWS, &after, LOOKS).await?;
        for name in &names {
            let key = name.strip_prefix(ROWS).map(Key::new);
            let row = self.store.read(name).await?.map(|row| row.bytes);
            if let (Some(Ok(key)), Some(row)) = (key, row)
                && let Ok((header, _)) = Header::decode(&row)
            {
                self.saw(&key, &header);
            }
            lock(&self.looked).clone_from(name);
        }
        if names.len() < LOOKS {
            lock(&self.looked).clear();
        }
        Ok(())
    }

    /// Removes the row of a key if its time is over, and raises the floor first.
    async fn remove(&self, key: &Key) -> Result<(), BackendError> {
        let name = name_of(key);
        let Some(Object { bytes, tag }) = self.store.read(&name).await? else {
            self.times.forget(key);
            return Ok(());
        };
        let (header, state) = Header::decode(&bytes)?;
        let now = self.saw(key, &header);
        if now < header.keep_until {
            return Ok(());
        }
        let token = State::from_bytes(state)?.to_parts().token;
        self.raise_floor(token.max(header.at.as_micros())).await?;
        self.store.remove(&name, &tag).await?;
        self.times.forget(key);
        Ok(())
    }
}

fn name_of(key: &Key) -> String {
    format!("{ROWS}{key}")
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<T: TagStore> Store for Observed<T> {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime)
    }

    fn has_clock(&self) -> bool {
        false
    }

    fn last_change(&self, key: &Key) -> Option<Duration> {
        self.times.last_change(key, self.runtime.now())
    }

    async fn time(&self) -> Result<Stamp, BackendError> {
        self.read_floor().await?;
        Ok(own_stamp(self.runtime.now()))
    }

    fn time_of_day(&self, at: ServerTime) -> ServerTime {
        at
    }

    /// Clients compare the times of their own clocks only.
    fn clock_error(&self) -> Duration {
        Duration::ZERO
    }

    fn reads_may_be_old(&self) -> bool {
        false
    }

    async fn read(&self, key: &Key) -> Result<Read, BackendError> {
        let Some(Object { bytes, tag }) = self.store.read(&name_of(key)).await? else {
            let floor = self.read_floor().await?;
            self.times.forget(key);
            let begins = ServerTime::from_micros(floor.token + 1);
            return Ok(Read::new(unknown_stamp(begins), None));
        };
        let (header, state) = Header::decode(&bytes)?;
        let at = self.saw(key, &header);
        let at = match State::from_bytes(state)?.is_idle(at) {
            true => at.saturating_add(IDLE_STEP),
            false => at,
        };
        let row = Row::new(Version::new(header.version), state.to_vec());
        let row = row.with_tag(row::with_promise(header.promise, &tag));
        Ok(Read::new(unknown_stamp(at), Some(row)))
    }

    async fn write(&self, write: Write<'_>) -> Result<Written, BackendError> {
        let found = write.tag.map(row::split_promise);
        let promise = match &found {
            Some((promise, _)) if !write.promises => *promise,
            _ => self.promise_of(&write),
        };
        let header = Header {
            version: write.version.get(),
            promise,
            at: write.stamp.at,
            keep_until: write.keep_until,
        };
        let floor = lock(&self.floor).clone();
        // Another call may have read it since.
        if found.is_none() && header.at.as_micros() <= floor.token {
            return Ok(Written::NotApplied);
        }
        let text = |message| messages::encode([message], write.stamp.at);
        let texts = write.messages.iter().map(|it| (it.to, text(it)));
        let texts: Vec<_> = match self.store.can_listen() {
            true => texts.collect(),
            false => Vec::new(),
        };
        let (name, bytes) = (name_of(write.key), header.encode(write.bytes));
        let mut put = Put::new(&name, found.as_ref().map(|(_, tag)| tag), &bytes);
        put.texts = &texts;
        if found.is_none() && self.store.can_remove() {
            put.unchanged = Some((FLOOR, floor.tag.as_ref()));
        }
        let Some(tag) = self.store.write(put).await? else {
            return Ok(Written::NotApplied);
        };
        self.saw(write.key, &header);
        Ok(Written::applied().with_tag(row::with_promise(promise, &tag)))
    }

    async fn write_or_read(
        &self,
        write: Write<'_>,
    ) -> Result<(Written, Option<Read>), BackendError> {
        Ok((self.write(write).await?, None))
    }

    fn can_listen(&self) -> bool {
        self.store.can_listen()
    }

    fn first_waiters_poll(&self) -> Duration {
        self.store.first_waiters_poll()
    }

    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        let stream = self.store.listen(session).await?;
        let clock = unknown_stamp(ServerTime::default()).clock;
        let notifications = stream.flat_map(move |pushed| {
            let missed = |listening| vec![Notification::Missed { listening }];
            iter(match pushed {
                Pushed::Text(text) => {
                    messages::decode(&text, clock).unwrap_or_else(|| missed(true))
                }
                Pushed::Missed { listening } => missed(listening),
            })
        });
        Ok(Box::pin(notifications))
    }

    fn can_tell_reach(&self) -> bool {
        false
    }

    async fn reach(
        &self,
        _: &[SessionId],
    ) -> Result<Vec<leasehold_api::machine::Reach>, BackendError> {
        Err(BackendError::unsupported("reach"))
    }

    fn compares_reach(&self) -> bool {
        false
    }

    fn can_list(&self) -> bool {
        true
    }

    async fn list(&self, request: &List) -> Result<Listed, BackendError> {
        let after = request.cursor.as_ref().map_or("", |cursor| cursor.as_str());
        let [beginning, after] = [&*request.prefix, after].map(|name| format!("{ROWS}{name}"));
        let limit = usize::try_from(request.limit).unwrap_or(usize::MAX);
        let names = self.store.names(&beginning, &after, limit).await?;
        let keys = names.iter().filter_map(|name| name.strip_prefix(ROWS));
        let keys: Vec<_> = keys.map(String::from).collect();
        Ok(page_of(&keys, &request.prefix, request.limit))
    }

    async fn remove_expired(&self) -> Result<(), BackendError> {
        if !self.store.can_remove() {
            return Ok(());
        }
        let mut result = Ok(());
        for key in self.times.over(self.runtime.now()) {
            match self.remove(&key).await {
                // It must not keep the others.
                Err(error @ BackendError::ForeignValue { .. }) => result = Err(error),
                removed => removed?,
            }
        }
        self.look().await?;
        result
    }

    async fn check(&self, key: &Key) -> Result<(), BackendError> {
        check_objects(&self.store, &name_of(key)).await
    }

    async fn close(&self) -> Result<(), BackendError> {
        self.store.close().await
    }
}
