//! What a store does.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::machine::{Message, Reach};
use leasehold_api::{
    BackendError, Cursor, Key, List, Listed, Notifications, Runtime, ServerTime, SessionId, Stamp,
    bounds,
};

/// The version of a row: 64 random bits, which [`StoreBackend`](crate::StoreBackend) draws for each write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version(u64);

impl Version {
    /// Creates a version from its number, as read from the store.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number, to be stored. It uses all 64 bits.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// A store's own version of a row, which each write changes: an ETag, a sequence, a revision. The backend gives it back
/// with the next write, as it is.
///
/// Where equal contents have equal tags, as some ETags do, the contents must have the [`Version`] in them: it is another one
/// in each write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tag(Arc<[u8]>);

impl Tag {
    /// Creates a tag from the bytes of the store.
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes, as the store has told them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A stored row.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row {
    /// The version of the write that stored it.
    pub version: Version,
    /// The state of the key. It contains secrets.
    pub bytes: Vec<u8>,
    /// The store's own version of the row, if it compares that one.
    pub tag: Option<Tag>,
}

impl Row {
    /// Creates a row without a tag.
    pub const fn new(version: Version, bytes: Vec<u8>) -> Self {
        Self {
            version,
            bytes,
            tag: None,
        }
    }

    /// Sets the tag.
    #[must_use]
    pub fn with_tag(mut self, tag: Tag) -> Self {
        self.tag = Some(tag);
        self
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row")
            .field("version", &self.version)
            .field("bytes", &self.bytes.len())
            .field("tag", &self.tag)
            .finish()
    }
}

/// The reply to a read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Read {
    /// The store's clock, read at the time of the row or later. It must not be read before: the row may
    /// then be the result of a later step.
    pub stamp: Stamp,
    /// The row, if the key has one.
    pub row: Option<Row>,
}

impl Read {
    /// Creates a reply to a read.
    pub const fn new(stamp: Stamp, row: Option<Row>) -> Self {
        Self { stamp, row }
    }
}

/// A conditional write of one row.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Write<'a> {
    /// The key of the row.
    pub key: &'a Key,
    /// The version that the row must have. `None` if there must be no row.
    pub expected: Option<Version>,
    /// The [tag](Row::tag) of the row with the expected version. A store with tags may compare it instead of the version.
    pub tag: Option<&'a Tag>,
    /// The new version.
    pub version: Version,
    /// The new state. It contains secrets.
    pub bytes: &'a [u8],
    /// The row may be removed from this time of the store's clock on, but not before.
    pub keep_until: ServerTime,
    /// The write must not be applied at or after this time, by the store's clock.
    pub deadline: ServerTime,
    /// The messages to deliver if the write is applied, in order.
    pub messages: &'a [Message],
    /// The sessions that must listen. If one of them doesn't, the answer is [`Written::NotListening`]. Empty unless
    /// the store [compares it](Store::compares_reach).
    pub listening: &'a [SessionId],
    /// The time of the step, which the messages carry. After [`Written::applied_at`], it may be an estimate of the
    /// store's clock for the next writes.
    pub stamp: Stamp,
    /// Whether a reply to this write, or a grant in it, promises that a hold lasts. Only
    /// [`Observed`](crate::Observed) asks: it is `false` if the store [has a clock](Store::has_clock).
    pub promises: bool,
}

impl Write<'_> {
    /// The row to store, without a tag.
    pub fn row(&self) -> Row {
        Row::new(self.version, self.bytes.to_vec())
    }
}

impl fmt::Debug for Write<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Write")
            .field("key", self.key)
            .field("expected", &self.expected)
            .field("tag", &self.tag)
            .field("version", &self.version)
            .field("bytes", &self.bytes.len())
            .field("keep_until", &self.keep_until)
            .field("deadline", &self.deadline)
            .field("messages", &self.messages)
            .field("listening", &self.listening.len())
            .field("stamp", &self.stamp)
            .field("promises", &self.promises)
            .finish()
    }
}

/// The reply to a write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Written {
    /// The row was replaced.
    Applied(Applied),
    /// Nothing was written, and nothing will be: the row had another version, the deadline had passed, or the
    /// time of [`Write::stamp`] was after the store's clock.
    NotApplied,
    /// Nothing was written, and nothing will be: a session in [`Write::listening`] doesn't listen.
    NotListening,
}

/// What a store says of a write that it has applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Applied {
    /// The store's clock, if it [compares the time](Written::applied_at).
    pub at: Option<Stamp>,
    /// The tag of the new row, if the store has tags.
    pub tag: Option<Tag>,
}

impl Written {
    /// The row was replaced.
    pub fn applied() -> Self {
        Self::Applied(Applied::default())
    }

    /// The row was replaced, and the time of [`Write::stamp`] was not after the store's clock. `clock` is the clock, read
    /// while the store executed the write. That may be after it has compared the deadline.
    ///
    /// With a store that compares the [stamp](Write::stamp) with its clock, a client needs no read for a row that it has
    /// written itself. A store whose [clock errs](Store::clock_error) should answer [`applied`](Self::applied): it would
    /// refuse a step at a reading that is ahead.
    pub fn applied_at(clock: Stamp) -> Self {
        let (at, tag) = (Some(clock), None);
        Self::Applied(Applied { at, tag })
    }

    /// Adds the tag of the new row to the reply. One to a write that was not applied stays as it is.
    #[must_use]
    pub fn with_tag(mut self, tag: Tag) -> Self {
        if let Self::Applied(applied) = &mut self {
            applied.tag = Some(tag);
        }
        self
    }

    /// Whether the row was replaced.
    pub const fn is_applied(&self) -> bool {
        matches!(self, Self::Applied(_))
    }
}

/// A store that keeps one row for each key, and has a clock.
///
/// # Contract
/// - **One clock.** All stamps, and the clock that deadlines are compared with, are the same clock.
///   [`ClockId`](leasehold_api::ClockId) changes when it may be another one.
/// - **A read is current.** It sees every write that was applied before the read was sent. A replica that
///   lags is not a store. The exception is a store that says that [reads may be old](Self::reads_may_be_old).
/// - **A write lasts.** It is answered as applied only when no crash and no failover of the store can lose it.
/// - **Tags are those of the rows.** If a row has a [tag](Row::tag), all do, and each [`Applied`] has the new one. A tag never
///   comes back for other contents.
/// - **A write is one step.** It compares the version (or the tag) and the deadline, and replaces the row, atomically.
///   The deadline may be compared before the row is replaced, also by the client, if the write is
///   applied less than 10 s later or never.
/// - **A time is in the past.** A store that answers [`applied_at`](Written::applied_at) does so for every write. It
///   has refused the write if its [stamp](Write::stamp) is of another clock than the store's, or a time after it, and
///   has compared the deadline in the step.
/// - **Rows stay.** A row is removed only when the store's clock has reached its
///   [`keep_until`](Write::keep_until).
/// - **Errors are typed.** [`write`](Self::write) returns [`BackendError::Unavailable`] or
///   [`BackendError::Rejected`] only if the write was not applied and never will be. If in doubt, it
///   returns [`BackendError::OutcomeUnknown`].
/// - **Cancel safety.** A future may be dropped at any time. A write may then be applied or not.
///
/// [`StoreBackend`](crate::StoreBackend) limits the time of each call, so a store needs no timeouts, but
/// it must reconnect.
///
/// # Keys
/// A key is any text of 1 to 256 bytes. Store it as data, never as a part of a pattern or a statement.
///
/// # Examples
/// See the [crate's documentation](crate#example).
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Returns the source of time, randomness and tasks for the client.
    ///
    /// A backend asks for it when it is made, and keeps it. It is the same for the store's life.
    fn runtime(&self) -> Arc<dyn Runtime>;

    /// Whether the stamps are those of a clock. It is `false` only for [`Observed`](crate::Observed), which tells the time
    /// of each row: a store without a clock is a [`TagStore`](crate::TagStore).
    fn has_clock(&self) -> bool {
        true
    }

    /// How long ago this client has seen the last change of a row, if the store has no clock. Only
    /// [`Observed`](crate::Observed) knows.
    fn last_change(&self, key: &Key) -> Option<Duration> {
        let _ = key;
        None
    }

    /// Reads the store's clock, or fails if the store cannot be reached.
    async fn time(&self) -> Result<Stamp, BackendError>;

    /// Returns the time of day at a time of the store's clock, without I/O. Jobs are due by it. The default is the same
    /// time, for a clock that shows the time of day.
    fn time_of_day(&self, at: ServerTime) -> ServerTime {
        at
    }

    /// The largest difference between two readings of the clock at the same moment: see
    /// [`Capabilities::clock_error`](leasehold_api::Capabilities::clock_error). It concerns all stamps, and the clock that
    /// deadlines are compared with. The default is zero.
    fn clock_error(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether a [read](Self::read) may be old, because a server that is no longer in charge may answer it. The default is
    /// `false`.
    ///
    /// If it is `true`, [`StoreBackend`](crate::StoreBackend) writes the row again before it answers commands that change
    /// nothing. So the write tells whether the read was current.
    fn reads_may_be_old(&self) -> bool {
        false
    }

    /// Reads the row of a key and the store's clock.
    async fn read(&self, key: &Key) -> Result<Read, BackendError>;

    /// Replaces the row of a key if it has the expected version and the deadline has not passed, and
    /// delivers the messages.
    ///
    /// - Messages go to the streams that [`listen`](Self::listen) returned for their sessions. If nobody
    ///   listens, they are lost. A store without [`can_listen`](Self::can_listen) ignores them.
    /// - If the write is not applied, no message is delivered.
    /// - Sends the write once. If a driver sends it again by itself and reports the second result, the
    ///   command may be executed again: a release then answers `NotHeld` instead of `Released`.
    async fn write(&self, write: Write<'_>) -> Result<Written, BackendError>;

    /// Like [`write`](Self::write). If the write is refused, the answer may also contain a [read](Self::read) of the row
    /// after that, which saves the client a round trip. The default contains none.
    ///
    /// - Called for writes that are often refused, and then sent again at once: those of a release, of a grant to a waiter,
    ///   and of an acquire that is to queue.
    /// - The read is ignored if the write was applied.
    /// - Errors are those of [`write`](Self::write). If only the read fails, the answer contains none.
    async fn write_or_read(
        &self,
        write: Write<'_>,
    ) -> Result<(Written, Option<Read>), BackendError> {
        Ok((self.write(write).await?, None))
    }

    /// Whether [`listen`](Self::listen) works. The default is `false`: waiters of the same
    /// [`StoreBackend`](crate::StoreBackend) are still woken, and others only [poll](Self::first_waiters_poll).
    fn can_listen(&self) -> bool {
        false
    }

    /// How often the first waiters of a key poll at least, if nothing tells them that it is their turn. The
    /// default, and the longest, is the usual [poll interval](leasehold_api::bounds::MAX_POLL_INTERVAL) of 1 s.
    ///
    /// A store without [`can_listen`](Self::can_listen) passes a lock to another process after half of this
    /// time, on average. In return, each process that waits reads and writes the row so often.
    fn first_waiters_poll(&self) -> Duration {
        bounds::MAX_POLL_INTERVAL
    }

    /// Subscribes to the messages of a session.
    ///
    /// - Returns once the server has confirmed the subscription.
    /// - If the subscription is lost, the stream yields
    ///   [`Missed`](leasehold_api::Notification::Missed) twice: when the loss is noticed, and when the
    ///   subscription works again. The stream never ends by itself.
    /// - A session may have several streams at a time. Each gets every message, and goes on when another
    ///   one is dropped.
    /// - A session is secret. Name its channel after a hash of it.
    /// - [`messages`](crate::messages) converts messages to text and back.
    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        let _ = session;
        Err(BackendError::unsupported("listen"))
    }

    /// Whether [`reach`](Self::reach) can tell who listens. The default is `false`: every session counts as
    /// listening, and a waiter that is gone may be granted the key, which then stays taken until the offer
    /// ends: the time that a waiter has to confirm its grant.
    ///
    /// If it is `true` and this client [can't listen](Self::can_listen), others can: then its own waiters don't count as
    /// listening, and only poll. Others would pass over them.
    fn can_tell_reach(&self) -> bool {
        false
    }

    /// Tells which of the sessions listen, in the same order.
    ///
    /// - Called only with [`can_tell_reach`](Self::can_tell_reach).
    /// - [`Reach::Unknown`] counts as listening. An error has the same meaning.
    async fn reach(&self, sessions: &[SessionId]) -> Result<Vec<Reach>, BackendError> {
        Ok(vec![Reach::Unknown; sessions.len()])
    }

    /// Whether [`write`](Self::write) compares who listens. The default is `false`. If it is `true`, a release that
    /// gives the lock to a waiter needs no call of [`reach`](Self::reach), unless the waiter doesn't listen.
    ///
    /// - Used only with [`can_tell_reach`](Self::can_tell_reach).
    /// - The store applies no write if a session in [`Write::listening`] doesn't listen, and answers
    ///   [`Written::NotListening`]. It compares it in every write, with messages or without, in the step that writes
    ///   or just before it.
    fn compares_reach(&self) -> bool {
        false
    }

    /// Whether [`list`](Self::list) works. The default is `false`.
    fn can_list(&self) -> bool {
        false
    }

    /// Lists keys that have a row and begin with a text, a page at a time.
    ///
    /// - Called only with [`can_list`](Self::can_list). The requirements are those of
    ///   [`LockBackend::list`](leasehold_api::LockBackend::list). The rows in the order of their keys, from
    ///   the last key of the page before, meet them.
    async fn list(&self, request: &List) -> Result<Listed, BackendError> {
        let _ = request;
        Err(BackendError::unsupported("list"))
    }

    /// Removes rows that need not be kept any longer.
    ///
    /// - Called about once a minute by each client that writes, in the background. It is given up after
    ///   10 s. If it removes only some of the rows, a busy client may write them faster.
    /// - The default does nothing, for a store in which rows expire by themselves.
    async fn remove_expired(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Checks a store that [has no clock](Self::has_clock), for
    /// [`LockBackend::self_check`](leasehold_api::LockBackend::self_check). All others get writes of every kind.
    async fn check(&self, key: &Key) -> Result<(), BackendError> {
        let _ = key;
        Ok(())
    }

    /// Closes the store's connections. The streams of [`listen`](Self::listen) have ended by then.
    async fn close(&self) -> Result<(), BackendError> {
        Ok(())
    }
}

/// Makes a page of [`Store::list`] from the names that a store has read.
///
/// `names` are those from `beginning` on and after the cursor, at most `limit`, in their order. A name that doesn't begin with
/// this text ends the listing. A page that is full has its last name as the cursor. A name that is no valid key is left out.
///
/// # Examples
/// ```
/// let names = ["job:1", "job:2", "person"].map(String::from);
/// let page = leasehold_store::page_of(&names, "job:", 3);
/// assert_eq!(page.keys.len(), 2);
/// assert_eq!(page.next, None);
/// ```
pub fn page_of(names: &[String], beginning: &str, limit: u32) -> Listed {
    let is_full = names.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
    let begins = |name: &&String| name.starts_with(beginning);
    let count = names.iter().take_while(begins).count();
    let last = names.last().filter(|_| is_full && count == names.len());
    Listed {
        next: last.map(|last| Cursor::new(last.as_str())),
        keys: names[..count]
            .iter()
            .filter_map(|name| Key::new(name.as_str()).ok())
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(names: &[&str], limit: u32) -> (Vec<String>, Option<String>) {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let page = page_of(&names, "job:", limit);
        let keys = page.keys.iter().map(ToString::to_string).collect();
        (keys, page.next.map(|next| next.as_str().to_owned()))
    }

    #[test]
    fn full_page_goes_on_unless_other_names_have_begun() {
        let keys = |keys: &[&str]| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
        let two = keys(&["job:1", "job:2"]);
        assert_eq!(
            page(&["job:1", "job:2"], 2),
            (two.clone(), Some("job:2".into()))
        );
        assert_eq!(page(&["job:1", "job:2"], 3), (two.clone(), None));
        assert_eq!(page(&["job:1", "job:2", "person"], 3), (two, None));
        assert_eq!(page(&["person"], 1), (keys(&[]), None));
        assert_eq!(page(&[], 2), (keys(&[]), None));
    }
}
