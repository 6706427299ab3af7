//! What a backend is asked: one struct for each command of the state machine.

use std::time::Duration;

use crate::bounds;
use crate::error::InvalidInput;
use crate::id::{FencingToken, Key, Label, Operation};
use crate::time::ServerTime;

/// What sort of lock a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// One holder.
    Mutex,
    /// Many readers or one writer.
    RwLock,
    /// Holders whose permits add up to at most the capacity.
    Semaphore,
}

/// Who gets a key that becomes free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// First come, first served; neighbouring readers together. A waiter is overtaken by nobody
    /// but reentrant holds and upgrades.
    Fair,
    /// Whoever asks first; the head of the queue is told that it may try. No bound on waiting.
    Barging,
    /// Readers before writers (reader/writer locks only). Writers may starve.
    ReaderPreference,
    /// Writers before readers (reader/writer locks only). Readers may starve.
    WriterPreference,
}

/// What a hold takes of a key's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// All of it: a mutex's hold, a writer.
    Exclusive,
    /// One reader's share of a reader/writer lock.
    Shared,
    /// So many permits of a semaphore.
    Permits(u32),
}

/// Kind, capacity, policy and waiter lease of a key.
///
/// They belong to the key while it has a holder or a waiter; an idle key takes the newcomer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockSpec {
    kind: Kind,
    capacity: u32,
    policy: Policy,
    waiter_lease: Duration,
}

impl LockSpec {
    /// A fair mutex with the default waiter lease.
    pub const fn mutex() -> Self {
        Self::plain(Kind::Mutex, 1)
    }

    /// A fair reader/writer lock with the default waiter lease.
    pub const fn rw_lock() -> Self {
        Self::plain(Kind::RwLock, bounds::RW_CAPACITY)
    }

    /// A fair semaphore with the default waiter lease.
    ///
    /// # Errors
    /// [`InvalidInput::Permits`] if `permits` is 0 or above [`bounds::MAX_PERMITS`].
    pub const fn semaphore(permits: u32) -> Result<Self, InvalidInput> {
        if permits == 0 || permits > bounds::MAX_PERMITS {
            return Err(InvalidInput::Permits {
                asked: permits,
                capacity: bounds::MAX_PERMITS,
            });
        }
        Ok(Self::plain(Kind::Semaphore, permits))
    }

    const fn plain(kind: Kind, capacity: u32) -> Self {
        Self {
            kind,
            capacity,
            policy: Policy::Fair,
            waiter_lease: bounds::DEFAULT_WAITER_LEASE,
        }
    }

    /// The same with another policy.
    ///
    /// # Errors
    /// [`InvalidInput::PolicyForKind`] for reader or writer preference on anything but a
    /// reader/writer lock.
    pub const fn with_policy(mut self, policy: Policy) -> Result<Self, InvalidInput> {
        let prefers = matches!(policy, Policy::ReaderPreference | Policy::WriterPreference);
        if prefers && !matches!(self.kind, Kind::RwLock) {
            return Err(InvalidInput::PolicyForKind {
                policy,
                kind: self.kind,
            });
        }
        self.policy = policy;
        Ok(self)
    }

    /// The same with another waiter lease, cut to whole microseconds.
    ///
    /// # Errors
    /// [`InvalidInput::WaiterLease`] below [`bounds::MACHINE_MIN_LEASE`] or above
    /// [`bounds::MAX_WAITER_LEASE`]. The client's own, narrower limit is checked by the client.
    pub const fn with_waiter_lease(mut self, lease: Duration) -> Result<Self, InvalidInput> {
        let asked = lease.as_nanos();
        if asked < bounds::MACHINE_MIN_LEASE.as_nanos()
            || asked > bounds::MAX_WAITER_LEASE.as_nanos()
        {
            return Err(InvalidInput::WaiterLease { asked: lease });
        }
        // Fits: at most MAX_WAITER_LEASE.
        self.waiter_lease = Duration::from_micros(lease.as_micros() as u64);
        Ok(self)
    }

    /// What sort of lock.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Sum of the weights that may be held together.
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Who gets it when it becomes free.
    pub const fn policy(&self) -> Policy {
        self.policy
    }

    /// How long a place in the queue lasts without a poll.
    pub const fn waiter_lease(&self) -> Duration {
        self.waiter_lease
    }

    /// The poll interval: a third of the waiter lease in whole microseconds, at most
    /// [`bounds::MAX_POLL_INTERVAL`].
    pub fn poll_interval(&self) -> Duration {
        let third = crate::time::micros(self.waiter_lease) / 3;
        Duration::from_micros(third).min(bounds::MAX_POLL_INTERVAL)
    }

    /// What a hold in `mode` takes of the capacity.
    pub const fn weight(&self, mode: Mode) -> u32 {
        match mode {
            Mode::Exclusive => self.capacity,
            Mode::Shared => 1,
            Mode::Permits(n) => n,
        }
    }

    /// Checks that `mode` makes sense for this kind and capacity.
    ///
    /// # Errors
    /// [`InvalidInput::ModeForKind`], or [`InvalidInput::Permits`] for 0 or more permits than
    /// there are.
    pub const fn check_mode(&self, mode: Mode) -> Result<(), InvalidInput> {
        match (self.kind, mode) {
            (Kind::Mutex | Kind::RwLock, Mode::Exclusive) | (Kind::RwLock, Mode::Shared) => Ok(()),
            (Kind::Semaphore, Mode::Permits(n)) if n >= 1 && n <= self.capacity => Ok(()),
            (Kind::Semaphore, Mode::Permits(n)) => Err(InvalidInput::Permits {
                asked: n,
                capacity: self.capacity,
            }),
            (kind, mode) => Err(InvalidInput::ModeForKind { mode, kind }),
        }
    }
}

/// How far one acquire may go; binds that acquire only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Holds that its owner may have nested on the key.
    pub holds: u32,
    /// Waiters that the key may have.
    pub waiters: u32,
    /// Holders that the key may have.
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

/// How an acquire that cannot be granted at once takes a place in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Wait {
    /// Whether the session's subscription is confirmed: only then can the place be marked unreachable.
    pub listening: bool,
    /// When the waiter itself gives up, if ever; ends the place no later than this.
    pub wait_until: Option<ServerTime>,
}

impl Wait {
    /// A place that a session takes which does, or does not, listen.
    pub const fn new(listening: bool) -> Self {
        Self {
            listening,
            wait_until: None,
        }
    }

    /// The same with the waiter's own deadline.
    #[must_use]
    pub const fn with_wait_until(mut self, until: ServerTime) -> Self {
        self.wait_until = Some(until);
        self
    }
}

/// One attempt to hold a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Acquire {
    /// The lock.
    pub key: Key,
    /// What the caller takes the key for.
    pub spec: LockSpec,
    /// What it wants of it; checked against `spec`.
    pub mode: Mode,
    /// The attempt's identity, the same in each re-sending.
    pub operation: Operation,
    /// What others see.
    pub label: Label,
    /// How long the holder lasts without renewal; whole microseconds.
    pub lease: Duration,
    /// Whether to queue, and how.
    pub wait: Option<Wait>,
    /// Not to be executed after this, nor more than the delivery window before it.
    pub deliver_before: ServerTime,
    /// Highest token the client has seen for the key.
    pub floor: Option<FencingToken>,
    /// How far this attempt may go.
    pub limits: Limits,
}

impl Acquire {
    /// An attempt that does not wait, with an empty label and the default limits.
    ///
    /// # Errors
    /// [`InvalidInput`] if `mode` does not fit `spec`, or `lease` is below
    /// [`bounds::MACHINE_MIN_LEASE`] or above [`bounds::MAX_LEASE`].
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
            label: Label::new("").expect("empty is short enough"),
            lease,
            wait: None,
            deliver_before,
            floor: None,
            limits: Limits::default(),
        })
    }

    /// The same with a public label.
    #[must_use]
    pub fn with_label(mut self, label: Label) -> Self {
        self.label = label;
        self
    }

    /// The same, queueing if it cannot be granted at once.
    #[must_use]
    pub fn with_wait(mut self, wait: Wait) -> Self {
        self.wait = Some(wait);
        self
    }

    /// The same with the highest token that the client has seen for the key.
    ///
    /// # Errors
    /// [`InvalidInput::Floor`] above [`bounds::MAX_FLOOR`].
    pub fn with_floor(mut self, floor: FencingToken) -> Result<Self, InvalidInput> {
        if floor.get() > bounds::MAX_FLOOR {
            return Err(InvalidInput::Floor { asked: floor.get() });
        }
        self.floor = Some(floor);
        Ok(self)
    }

    /// The same with other limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }
}

fn check_lease(lease: Duration) -> Result<Duration, InvalidInput> {
    if lease < bounds::MACHINE_MIN_LEASE || lease > bounds::MAX_LEASE {
        return Err(InvalidInput::Lease { asked: lease });
    }
    Ok(Duration::from_micros(crate::time::micros(lease)))
}

/// Refreshes a place in the queue and asks how it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Poll {
    /// The lock.
    pub key: Key,
    /// The queued attempt.
    pub operation: Operation,
    /// Whether the session's subscription is confirmed.
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

/// Extends a holder, or confirms an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renew {
    /// The lock.
    pub key: Key,
    /// The attempt that holds it.
    pub operation: Operation,
    /// How long the holder lasts from the execution on, at least; whole microseconds.
    pub lease: Duration,
}

impl Renew {
    /// A renewal.
    ///
    /// # Errors
    /// [`InvalidInput::Lease`] below [`bounds::MACHINE_MIN_LEASE`] or above
    /// [`bounds::MAX_LEASE`].
    pub fn new(key: Key, operation: Operation, lease: Duration) -> Result<Self, InvalidInput> {
        Ok(Self {
            key,
            operation,
            lease: check_lease(lease)?,
        })
    }
}

/// Releases a hold, leaves the queue, or cancels an attempt of unknown outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Release {
    /// The lock.
    pub key: Key,
    /// The attempt to end, whatever became of it.
    pub operation: Operation,
}

impl Release {
    /// The end of an attempt.
    pub const fn new(key: Key, operation: Operation) -> Self {
        Self { key, operation }
    }
}

/// Turns a read hold into a write hold or back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Convert {
    /// The lock.
    pub key: Key,
    /// The attempt whose hold is converted.
    pub operation: Operation,
    /// The token under which the caller asks; a conversion of another epoch changes nothing.
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

    /// An upgrade to a write hold, for the sole holder.
    pub const fn to_exclusive(key: Key, operation: Operation, expected: FencingToken) -> Self {
        Self {
            key,
            operation,
            expected,
            to: Mode::Exclusive,
        }
    }
}

/// What a forced release does to the holders that it names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ForceHow {
    /// They can no longer be renewed and end with their lease; mutual exclusion holds.
    #[default]
    Revoke,
    /// They end at once, whatever their holders are doing: outside the exclusion guarantee.
    Now,
}

/// Takes a lock away from those who were seen to hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForceRelease {
    /// The lock.
    pub key: Key,
    /// Tokens of the holders, as an inspection showed them; later ones are not touched.
    pub tokens: Vec<FencingToken>,
    /// How.
    pub how: ForceHow,
}

impl ForceRelease {
    /// A revocation of the holders with these tokens.
    pub const fn new(key: Key, tokens: Vec<FencingToken>) -> Self {
        Self {
            key,
            tokens,
            how: ForceHow::Revoke,
        }
    }

    /// The same, in another way.
    #[must_use]
    pub const fn with_how(mut self, how: ForceHow) -> Self {
        self.how = how;
        self
    }
}
