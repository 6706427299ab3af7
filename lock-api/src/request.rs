//! The requests to a backend: one struct for each command of the state machine.

use std::time::Duration;

use crate::bounds;
use crate::error::InvalidInput;
use crate::id::{FencingToken, Key, Label, Operation};
use crate::time::ServerTime;

/// The kind of lock that a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// One holder.
    Mutex,
    /// Many readers or one writer.
    RwLock,
    /// Any number of holders; their permits add up to at most the capacity.
    Semaphore,
}

/// How much of a key's capacity a hold takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// All of it: a mutex, or a writer of a reader/writer lock.
    Exclusive,
    /// A reader of a reader/writer lock.
    Shared,
    /// This number of permits of a semaphore.
    Permits(u32),
}

/// Kind, capacity and waiter lease of a key.
///
/// The spec belongs to the key while the key has a holder or a waiter. An acquire with another spec
/// is then refused with [`Refused::Mismatch`](crate::Refused::Mismatch). An idle key takes the spec
/// of the next acquire.
///
/// ```
/// use std::time::Duration;
///
/// use leasehold_api::LockSpec;
///
/// let mutex = LockSpec::mutex();
/// let catalog = LockSpec::rw_lock();
/// let downloads = LockSpec::semaphore(3)?.with_waiter_lease(Duration::from_secs(10))?;
/// # Ok::<(), leasehold_api::InvalidInput>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockSpec {
    kind: Kind,
    capacity: u32,
    waiter_lease: Duration,
}

impl LockSpec {
    /// A mutex with the [default waiter lease](bounds::DEFAULT_WAITER_LEASE).
    pub const fn mutex() -> Self {
        Self::plain(Kind::Mutex, 1)
    }

    /// A reader/writer lock with the [default waiter lease](bounds::DEFAULT_WAITER_LEASE).
    pub const fn rw_lock() -> Self {
        Self::plain(Kind::RwLock, bounds::RW_CAPACITY)
    }

    /// A semaphore with the [default waiter lease](bounds::DEFAULT_WAITER_LEASE).
    ///
    /// # Errors
    /// [`InvalidInput`] if `permits` is 0 or above [`bounds::MAX_PERMITS`].
    pub fn semaphore(permits: u32) -> Result<Self, InvalidInput> {
        const MOST: u32 = bounds::MAX_PERMITS;
        if !(1..=MOST).contains(&permits) {
            let text = format!("a semaphore has 1 to {MOST} permits in total, not {permits}");
            return Err(InvalidInput::new(text));
        }
        Ok(Self::plain(Kind::Semaphore, permits))
    }

    const fn plain(kind: Kind, capacity: u32) -> Self {
        Self {
            kind,
            capacity,
            waiter_lease: bounds::DEFAULT_WAITER_LEASE,
        }
    }

    /// Sets the waiter lease, rounded down to whole microseconds. It is for tests and tools: all
    /// clients use the default.
    ///
    /// # Errors
    /// [`InvalidInput`] below [`bounds::MACHINE_MIN_LEASE`] or above
    /// [`bounds::MAX_WAITER_LEASE`].
    pub fn with_waiter_lease(mut self, lease: Duration) -> Result<Self, InvalidInput> {
        let limits = bounds::MACHINE_MIN_LEASE..=bounds::MAX_WAITER_LEASE;
        bounds::check_lease("waiter lease", lease, limits)?;
        self.waiter_lease = Duration::from_micros(crate::time::micros(lease));
        Ok(self)
    }

    /// The kind of lock.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// The greatest sum of weights that holders may have together.
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// How long a waiter lasts without a poll.
    pub const fn waiter_lease(&self) -> Duration {
        self.waiter_lease
    }

    /// The longest time between two polls: a third of the waiter lease, rounded down to whole
    /// microseconds, and at most [`bounds::MAX_POLL_INTERVAL`].
    pub fn poll_interval(&self) -> Duration {
        let lease = crate::time::micros(self.waiter_lease);
        let interval = lease / u64::from(bounds::POLLS_PER_WAITER_LEASE);
        Duration::from_micros(interval).min(bounds::MAX_POLL_INTERVAL)
    }

    /// The share of the capacity that a hold in `mode` takes.
    pub const fn weight(&self, mode: Mode) -> u32 {
        match mode {
            Mode::Exclusive => self.capacity,
            Mode::Shared => 1,
            Mode::Permits(n) => n,
        }
    }

    /// Checks that `mode` fits the kind and the capacity.
    ///
    /// # Errors
    /// [`InvalidInput`] if the kind has no such mode, for 0 permits, or for more than the capacity.
    pub fn check_mode(&self, mode: Mode) -> Result<(), InvalidInput> {
        let capacity = self.capacity;
        match (self.kind, mode) {
            (Kind::Mutex | Kind::RwLock, Mode::Exclusive) | (Kind::RwLock, Mode::Shared) => Ok(()),
            (Kind::Semaphore, Mode::Permits(n)) if n >= 1 && n <= capacity => Ok(()),
            (Kind::Semaphore, Mode::Permits(asked)) => Err(InvalidInput::new(format!(
                "1 to {capacity} permits can be acquired at once, not {asked}"
            ))),
            (kind, mode) => Err(InvalidInput::new(format!("{kind:?} has no mode {mode:?}"))),
        }
    }
}

/// The limits of one acquire. They bind that acquire only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// How many holds its owner may have on the key.
    pub holds: u32,
    /// How many waiters the key may have.
    pub waiters: u32,
    /// How many holders the key may have.
    pub holders: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            holds: bounds::DEFAULT_HOLD_LIMIT,
            waiters: bounds::DEFAULT_WAITER_LIMIT,
            holders: bounds::DEFAULT_HOLDER_LIMIT,
        }
    }
}

/// How an acquire queues if it cannot be granted at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Wait {
    /// Whether the session listens, that is, its subscription is confirmed. Only a waiter that
    /// listens can be marked unreachable (rule 9).
    pub listening: bool,
    /// The waiter's deadline, if it has one. The waiter never outlasts it.
    pub wait_until: Option<ServerTime>,
}

impl Wait {
    /// A waiter without a deadline.
    pub const fn new(listening: bool) -> Self {
        Self {
            listening,
            wait_until: None,
        }
    }

    /// Sets the waiter's deadline.
    #[must_use]
    pub const fn with_wait_until(mut self, until: ServerTime) -> Self {
        self.wait_until = Some(until);
        self
    }
}

/// One attempt to acquire a key.
///
/// ```
/// use std::time::Duration;
///
/// use leasehold_api::{Acquire, Key, Label, LockSpec, Mode, Wait};
/// # use leasehold_api::{Operation, OwnerId, ServerTime, SessionId};
///
/// # let session = SessionId::from_bytes([1; 16]);
/// # let operation = Operation { session, sequence: 1, owner: OwnerId::from_u64(1) };
/// # let server_now = ServerTime::from_micros(1);
/// let lease = Duration::from_secs(30);
/// let deliver_before = server_now.saturating_add(Duration::from_secs(1));
/// let key = Key::new("invoice:42")?;
/// let request =
///     Acquire::new(key, LockSpec::mutex(), Mode::Exclusive, operation, lease, deliver_before)?
///         .with_label(Label::new("billing:17")?)
///         .with_wait(Wait::new(true));
/// # Ok::<(), leasehold_api::InvalidInput>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Acquire {
    /// The key to acquire.
    pub key: Key,
    /// The spec that the caller expects of the key.
    pub spec: LockSpec,
    /// How much of the capacity to take. It fits `spec`.
    pub mode: Mode,
    /// The identity of the attempt. It stays the same when the attempt is sent again.
    pub operation: Operation,
    /// The name that others see.
    pub label: Label,
    /// How long the holder lasts without a renewal, in whole microseconds.
    pub lease: Duration,
    /// Whether and how to queue. With `None`, the attempt doesn't queue.
    pub wait: Option<Wait>,
    /// The attempt is [`TooLate`](crate::AcquireReply::TooLate) after this time, and more than the
    /// [delivery window](bounds::DELIVERY_WINDOW) before it.
    pub deliver_before: ServerTime,
    /// The highest token that the client has seen for the key.
    pub floor: Option<FencingToken>,
    /// The limits of this attempt.
    pub limits: Limits,
}

impl Acquire {
    /// An attempt that does not wait, with an empty label, no floor and the default limits. The
    /// lease is rounded down to whole microseconds.
    ///
    /// # Errors
    /// - The errors of [`LockSpec::check_mode`] if `mode` does not fit `spec`.
    /// - [`InvalidInput`] if `lease` is below [`bounds::MACHINE_MIN_LEASE`] or above
    ///   [`bounds::MAX_LEASE`].
    pub fn new(
        key: Key,
        spec: LockSpec,
        mode: Mode,
        operation: Operation,
        lease: Duration,
        deliver_before: ServerTime,
    ) -> Result<Self, InvalidInput> {
        spec.check_mode(mode)?;
        let lease = check_lease(lease)?;
        Ok(Self {
            key,
            spec,
            mode,
            operation,
            label: Label::empty(),
            lease,
            wait: None,
            deliver_before,
            floor: None,
            limits: Limits::default(),
        })
    }

    /// Sets the label that others see.
    #[must_use]
    pub fn with_label(mut self, label: Label) -> Self {
        self.label = label;
        self
    }

    /// Queues if the key is not free.
    #[must_use]
    pub fn with_wait(mut self, wait: Wait) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Sets the floor: the highest token that the client has seen for the key (rule 15).
    ///
    /// # Errors
    /// [`InvalidInput`] for a token above [`bounds::MAX_FLOOR`].
    pub fn with_floor(mut self, floor: FencingToken) -> Result<Self, InvalidInput> {
        let (asked, most) = (floor.get(), bounds::MAX_FLOOR);
        if asked > most {
            let text = format!("a token floor of {asked} is above the limit ({most})");
            return Err(InvalidInput::new(text));
        }
        self.floor = Some(floor);
        Ok(self)
    }

    /// Sets the limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }
}

fn check_lease(lease: Duration) -> Result<Duration, InvalidInput> {
    bounds::check_lease(
        "lease",
        lease,
        bounds::MACHINE_MIN_LEASE..=bounds::MAX_LEASE,
    )?;
    Ok(Duration::from_micros(crate::time::micros(lease)))
}

/// Refreshes a waiter and asks for its state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Poll {
    /// The key of the queue.
    pub key: Key,
    /// The queued attempt.
    pub operation: Operation,
    /// Whether the session listens, that is, its subscription is confirmed.
    pub listening: bool,
}

impl Poll {
    /// A poll of a queued attempt.
    pub const fn new(key: Key, operation: Operation, listening: bool) -> Self {
        Self {
            key,
            operation,
            listening,
        }
    }
}

/// Extends a holder, or confirms an offer: a grant to a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renew {
    /// The key that is held.
    pub key: Key,
    /// The attempt that made the hold.
    pub operation: Operation,
    /// How long the holder lasts at least, from the execution on, in whole microseconds.
    pub lease: Duration,
}

impl Renew {
    /// A renewal. The lease is rounded down to whole microseconds.
    ///
    /// # Errors
    /// [`InvalidInput`] if `lease` is below [`bounds::MACHINE_MIN_LEASE`] or above
    /// [`bounds::MAX_LEASE`].
    pub fn new(key: Key, operation: Operation, lease: Duration) -> Result<Self, InvalidInput> {
        Ok(Self {
            key,
            operation,
            lease: check_lease(lease)?,
        })
    }

    /// A renewal with a lease that was checked before.
    pub(crate) fn checked(key: &Key, operation: Operation, lease: Duration) -> Self {
        Self {
            key: key.clone(),
            operation,
            lease,
        }
    }
}

/// Releases a hold, leaves the queue, or cancels an attempt of unknown outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Release {
    /// The key that the attempt names.
    pub key: Key,
    /// The attempt to release, whatever its outcome was.
    pub operation: Operation,
}

impl Release {
    /// A release of an attempt.
    pub const fn new(key: Key, operation: Operation) -> Self {
        Self { key, operation }
    }
}

/// Downgrades or upgrades one hold of a reader/writer lock (rule 6).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Convert {
    /// The key that is held.
    pub key: Key,
    /// The attempt whose hold is converted.
    pub operation: Operation,
    /// The token that the caller knows. If the holder has another one, its epoch is another, and the conversion
    /// changes nothing.
    pub expected: FencingToken,
    /// [`Mode::Shared`] to downgrade, [`Mode::Exclusive`] to upgrade.
    pub to: Mode,
}

impl Convert {
    /// A downgrade to a read hold.
    pub const fn to_shared(key: Key, operation: Operation, expected: FencingToken) -> Self {
        Self {
            key,
            operation,
            expected,
            to: Mode::Shared,
        }
    }

    /// An upgrade to a write hold. Only the sole holder can upgrade.
    pub const fn to_exclusive(key: Key, operation: Operation, expected: FencingToken) -> Self {
        Self {
            key,
            operation,
            expected,
            to: Mode::Exclusive,
        }
    }
}

/// How a forced release takes the key from the holders that it names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ForceMode {
    /// Refuses further renewals. The holders expire with their lease, so mutual exclusion holds.
    #[default]
    Revoke,
    /// Removes the holders at once, whatever their owners are doing. The next holder may overlap
    /// with them: mutual exclusion (S1) does not hold.
    Now,
}

/// Takes a key away from the holders that have the given tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForceRelease {
    /// The key to take away.
    pub key: Key,
    /// The tokens of the holders, from an inspection. Holders of later epochs are not touched. A
    /// reader who joined a named epoch later is.
    pub tokens: Vec<FencingToken>,
    /// How to take it.
    pub how: ForceMode,
}

impl ForceRelease {
    /// Revokes the holders with these tokens ([`ForceMode::Revoke`]).
    pub const fn new(key: Key, tokens: Vec<FencingToken>) -> Self {
        Self {
            key,
            tokens,
            how: ForceMode::Revoke,
        }
    }

    /// Sets how the key is taken.
    #[must_use]
    pub const fn with_how(mut self, how: ForceMode) -> Self {
        self.how = how;
        self
    }
}

/// Where a listing goes on. It means something only to the backend that made it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cursor(String);

impl Cursor {
    /// Creates a cursor from the text of a backend.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text of the backend.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A request for a page of the keys that begin with a text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct List {
    /// What the keys begin with. Every key begins with the empty text.
    pub prefix: String,
    /// Where to go on; `None` at the beginning.
    pub cursor: Option<Cursor>,
    /// How many keys to look at, about: a page may have fewer or more keys, or none.
    pub limit: u32,
}

impl List {
    /// Requests the first page, of about 500 keys.
    pub fn new(prefix: impl Into<String>) -> Self {
        Self {
            prefix: prefix.into(),
            cursor: None,
            limit: 500,
        }
    }

    /// Sets where to go on.
    #[must_use]
    pub fn with_cursor(mut self, cursor: Option<Cursor>) -> Self {
        self.cursor = cursor;
        self
    }

    /// Sets how many keys to look at, about. At least 1.
    #[must_use]
    pub const fn with_limit(mut self, limit: u32) -> Self {
        self.limit = if limit == 0 { 1 } else { limit };
        self
    }
}

/// Leaves a note on a key. Whoever inspects the key reads it.
///
/// A late or second copy reverts nothing: see [`write_note`](crate::LockBackend::write_note).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Note {
    /// The key that is held.
    pub key: Key,
    /// The attempt that made the hold.
    pub operation: Operation,
    /// Orders the notes of one epoch.
    pub version: u32,
    /// The content, at most [`bounds::MAX_NOTE_BYTES`] bytes.
    pub bytes: Vec<u8>,
    /// How long the note stands at least, from the execution on, in whole microseconds.
    pub keep: Duration,
}

impl Note {
    /// A note. The time to keep it is rounded down to whole microseconds.
    ///
    /// # Errors
    /// [`InvalidInput`] if `bytes` has more than [`bounds::MAX_NOTE_BYTES`] bytes, or if `keep` is above
    /// [`bounds::MAX_NOTE_KEEP`].
    pub fn new(
        key: Key,
        operation: Operation,
        version: u32,
        bytes: impl Into<Vec<u8>>,
        keep: Duration,
    ) -> Result<Self, InvalidInput> {
        let bytes = bytes.into();
        let (length, most) = (bytes.len(), bounds::MAX_NOTE_BYTES);
        if length > most {
            let text = format!("a note has at most {most} bytes, this one has {length}");
            return Err(InvalidInput::new(text));
        }
        let longest = bounds::MAX_NOTE_KEEP;
        if keep > longest {
            let text = format!("a note is kept for at most {longest:?}, not {keep:?}");
            return Err(InvalidInput::new(text));
        }
        Ok(Self {
            key,
            operation,
            version,
            bytes,
            keep: Duration::from_micros(crate::time::micros(keep)),
        })
    }
}
