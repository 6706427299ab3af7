//! Taking several keys at once, all or nothing.
//!
//! The keys are taken one by one, in the order of their names (by the bytes of their UTF-8),
//! whatever the order in which the caller named them. So whoever waits for a key holds only
//! lesser ones, no circle of waiters can close, and two clients that name the same keys in
//! opposite order never block each other for ever. A key that is lost while a later one is waited
//! for spoils what was taken so far: all of it is given back and taken anew.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};

use crate::bounds::MAX_KEYS_AT_ONCE;
use crate::client::acquire::request::{Ask, WaitLimit};
use crate::client::acquire::wait::acquire;
use crate::client::core::ClientHandle;
use crate::client::error::{Error, Outcome, TimedOut};
use crate::client::guard::multi::ManyGuard;
use crate::client::handle::lock::Lock;
use crate::client::hold::{Hold, first_lost};
use crate::client::state::settings::{Options, option_setters};
use crate::error::InvalidInput;
use crate::id::Key;
use crate::mutants::mutant;
use crate::reply::Contention;
use crate::request::{Kind, Mode};
use crate::runtime::Moment;
use crate::sync::Arc;

/// Pause before everything is taken anew, at most: a key that is always lost at once must not
/// keep the service busy.
const PAUSE: Duration = Duration::from_millis(20);

/// Several keys that are to be taken together, all or nothing: see
/// [`LockClient::many`](crate::LockClient::many).
///
/// - **Order.** The keys are taken one by one in the order of their names, by the bytes of their
///   UTF-8, whatever the order in which they are named here. So two clients that want the same
///   keys never block each other for ever. That holds among those who take all their keys this
///   way; who takes a second lock on top of a guard must mind the order himself.
/// - **All or nothing.** If the call fails, runs out of time or is dropped, what was taken so far
///   is released in the background. If a key that was taken is lost while a later one is waited
///   for, all are given back and taken anew, within the same deadline.
/// - **Who waits, holds.** While a call waits for a key it holds those before it. Keep such sets
///   small, and the keys that are fought over late in the order.
/// - **Leases.** All options apply to each of the keys. A [`fixed_lease`](Self::fixed_lease) and
///   a [`max_hold`](Self::max_hold) count from when that key was taken, so they must be longer
///   than the wait for the rest.
/// - **No reentrancy.** Each call is an owner of its own, also on keys that the program holds
///   already: it then waits for itself.
///
/// ```no_run
/// # use leasehold_api::{Error, LockClient};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let transfer = locks.many().mutex("account:7")?.mutex("account:3")?.read("tariff")?;
/// let guard = transfer.lock().await?;
/// println!("write account 7 with {:?}", guard.fencing_token("account:7"));
/// guard.release().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Many {
    client: Arc<ClientHandle>,
    /// In the order of their keys.
    wants: Vec<Want>,
    options: Options,
}

#[derive(Clone, Debug)]
struct Want {
    lock: Lock,
    mode: Mode,
}

/// What an attempt to take several keys came to.
#[derive(Debug)]
#[must_use = "an outcome may carry a guard, which releases its locks when it is dropped"]
pub enum ManyOutcome {
    /// All are held.
    Acquired(ManyGuard),
    /// Somebody else has one of them, and the call was not to wait: only
    /// [`Many::try_lock`] answers this.
    Contention {
        /// The first of the keys, in their order, that is held.
        key: Key,
        /// Who has it, and when that may change.
        held: Contention,
    },
    /// The time to wait was over: only [`Many::lock_within`] answers this.
    TimedOut {
        /// The key that was waited for.
        key: Key,
        /// How long the whole call took, and how many were ahead at that key.
        timed_out: TimedOut,
    },
}

impl ManyOutcome {
    /// The guard, if all are held.
    pub fn acquired(self) -> Option<ManyGuard> {
        match self {
            Self::Acquired(guard) => Some(guard),
            Self::Contention { .. } | Self::TimedOut { .. } => None,
        }
    }

    /// Whether all are held.
    pub const fn is_acquired(&self) -> bool {
        matches!(self, Self::Acquired(_))
    }
}

impl Many {
    pub(crate) fn new(client: &Arc<ClientHandle>) -> Self {
        Self {
            client: Arc::clone(client),
            wants: Vec::new(),
            options: Options::from_settings(&client.settings),
        }
    }

    /// And a mutex.
    ///
    /// # Errors
    /// As [`LockClient::mutex`](crate::LockClient::mutex), and [`Error::InvalidInput`] for a key
    /// that is named twice, or one more than
    /// [`MAX_KEYS_AT_ONCE`](crate::bounds::MAX_KEYS_AT_ONCE). No I/O.
    pub fn mutex(self, key: impl AsRef<str>) -> Result<Self, Error> {
        self.and(key.as_ref(), Kind::Mutex, 1, Mode::Exclusive)
    }

    /// And these mutexes.
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex).
    pub fn mutexes<K: AsRef<str>>(self, keys: impl IntoIterator<Item = K>) -> Result<Self, Error> {
        keys.into_iter().try_fold(self, Self::mutex)
    }

    /// And a reader/writer lock, for reading.
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex), and [`Error::Unsupported`] if the backend cannot.
    pub fn read(self, key: impl AsRef<str>) -> Result<Self, Error> {
        self.and(key.as_ref(), Kind::RwLock, 1, Mode::Shared)
    }

    /// And a reader/writer lock, for writing.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(self, key: impl AsRef<str>) -> Result<Self, Error> {
        self.and(key.as_ref(), Kind::RwLock, 1, Mode::Exclusive)
    }

    /// And `permits` of a semaphore that has `capacity` of them.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`Error::InvalidInput`] for 0 permits or more than there are.
    pub fn permits(self, key: impl AsRef<str>, capacity: u32, permits: u32) -> Result<Self, Error> {
        let mode = Mode::Permits(permits);
        self.and(key.as_ref(), Kind::Semaphore, capacity, mode)
    }

    fn and(mut self, key: &str, kind: Kind, capacity: u32, mode: Mode) -> Result<Self, Error> {
        let lock = Lock::new(&self.client, key, kind, capacity, false)?;
        lock.ask(mode, &lock.options)?;
        let waiter = self
            .wants
            .binary_search_by(|want| want.lock.key.cmp(&lock.key));
        match waiter {
            Ok(index) if mutant!(RepeatedKey) => self.wants.insert(index, Want { lock, mode }),
            Ok(_) => return Err(InvalidInput::RepeatedKey { key: lock.key }.into()),
            Err(_) if mutant!(KeysAsNamed) => self.wants.push(Want { lock, mode }),
            Err(index) => self.wants.insert(index, Want { lock, mode }),
        }
        if self.wants.len() > MAX_KEYS_AT_ONCE {
            let asked = self.wants.len();
            return Err(InvalidInput::KeyCount { asked }.into());
        }
        Ok(self)
    }

    /// The keys, in the order in which they are taken.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &Key> {
        self.wants.iter().map(|want| &want.lock.key)
    }

    option_setters!(options);

    /// Takes all keys, waiting for as long as it takes.
    ///
    /// Rides out outages of the lock service. To bound the wait use
    /// [`lock_within`](Self::lock_within).
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock), and [`Error::InvalidInput`] if no key was named.
    /// What is about one key names it: [`Error::key`].
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue and releases what was taken so far,
    /// in the background.
    pub async fn lock(&self) -> Result<ManyGuard, Error> {
        match self.acquire(WaitLimit::Forever).await? {
            ManyOutcome::Acquired(guard) => Ok(guard),
            // Without a deadline neither can be; saying so is better than a panic.
            ManyOutcome::Contention { .. } | ManyOutcome::TimedOut { .. } => {
                Err(unavailable("the wait ended without the locks"))
            }
        }
    }

    /// Takes all keys if all are free, and says which is not and who holds it.
    ///
    /// It never waits for anybody who holds a key; each key takes at most one call time-out. The
    /// keys before the one that is held were held for a moment, and others that tried them in
    /// that moment were told so.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), and [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the
    /// service gave no answer.
    ///
    /// # Cancel safety
    /// Dropping the future releases what was taken so far, in the background.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient, ManyOutcome};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// match locks.many().mutexes(["a", "b"])?.try_lock().await? {
    ///     ManyOutcome::Acquired(guard) => println!("ours: {guard:?}"),
    ///     ManyOutcome::Contention { key, held } => println!("{key} is held by {:?}", held.holder),
    ///     ManyOutcome::TimedOut { .. } => unreachable!("try_lock does not wait"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_lock(&self) -> Result<ManyOutcome, Error> {
        self.acquire(WaitLimit::Try).await
    }

    /// Takes all keys, waiting for at most `time` in all. With a `time` of zero it tries each
    /// once, for at most one call time-out.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), and [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the
    /// time was over during an outage, or before the first answer.
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    pub async fn lock_within(&self, time: Duration) -> Result<ManyOutcome, Error> {
        self.acquire(WaitLimit::Within(time)).await
    }

    /// Takes all keys, runs `body`, and releases them. If one is lost meanwhile the body is
    /// dropped at the await point where it stands.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), and [`Error::Lost`], which names the key,
    /// if one was lost before the body ended.
    ///
    /// # Cancel safety
    /// As safe as `body` is; the keys are released in the background.
    pub async fn with<T>(&self, body: impl AsyncFnOnce(&ManyGuard) -> T) -> Result<T, Error> {
        self.lock().await?.run(body).await
    }

    /// Bad input is found here, before any I/O.
    async fn acquire(&self, limit: WaitLimit) -> Result<ManyOutcome, Error> {
        if self.wants.is_empty() {
            return Err(InvalidInput::KeyCount { asked: 0 }.into());
        }
        let asks = self.wants.iter();
        let asks: Result<Vec<_>, _> = asks
            .map(|want| want.lock.ask(want.mode, &self.options))
            .collect();
        Gathering::new(&self.client, asks?, limit).run().await
    }
}

/// One call: it takes the keys in turn, over and over until it holds all at once.
struct Gathering<'a> {
    client: &'a Arc<ClientHandle>,
    asks: Vec<Ask<'a>>,
    limit: WaitLimit,
    began: Moment,
    /// After this nothing is taken anew.
    deadline: Option<Moment>,
}

/// How a round ended.
enum Round {
    Done(ManyOutcome),
    /// This key was lost while another was waited for.
    Lost(Key),
}

impl<'a> Gathering<'a> {
    fn new(client: &'a Arc<ClientHandle>, asks: Vec<Ask<'a>>, limit: WaitLimit) -> Self {
        let began = client.now();
        let deadline = limit.deadline(began, client.settings.call_timeout);
        Self {
            client,
            asks,
            limit,
            began,
            deadline,
        }
    }

    fn left(&self) -> Duration {
        let now = self.client.now();
        self.deadline
            .map_or(Duration::MAX, |deadline| deadline.saturating_since(now))
    }

    fn timed_out(&self, key: &Key, ahead: Option<u32>) -> ManyOutcome {
        let waited = self.client.now().saturating_since(self.began);
        ManyOutcome::TimedOut {
            key: key.clone(),
            timed_out: TimedOut { waited, ahead },
        }
    }

    async fn run(&self) -> Result<ManyOutcome, Error> {
        loop {
            let key = match self.round().await? {
                Round::Done(outcome) => return Ok(outcome),
                Round::Lost(key) => key,
            };
            let pause = self.client.jittered(PAUSE);
            if pause >= self.left() {
                if matches!(self.limit, WaitLimit::Try) {
                    let reason = format!("key {key:?} was lost before the others were taken");
                    return Err(unavailable(reason));
                }
                return Ok(self.timed_out(&key, None));
            }
            self.client.runtime.sleep(pause).await;
        }
    }

    /// Takes the keys in their order. Whatever way it ends, what it has not handed out is ended
    /// in the background.
    async fn round(&self) -> Result<Round, Error> {
        let mut holds: Vec<Hold> = Vec::with_capacity(self.asks.len());
        for ask in &self.asks {
            let Some(limit) = self.patience_now() else {
                return Ok(Round::Done(self.timed_out(ask.key, None)));
            };
            let watched: &[Hold] = if mutant!(LossWhileGathering) {
                &[]
            } else {
                &holds
            };
            let lost = pin!(first_lost(watched));
            let outcome = match select(pin!(acquire(*ask, limit)), lost).await {
                Either::Left((outcome, _)) => outcome?,
                Either::Right(((key, _), _)) => return Ok(Round::Lost(key)),
            };
            match outcome {
                Outcome::Acquired(hold) => holds.push(hold),
                Outcome::Held(held) => {
                    let key = ask.key.clone();
                    return Ok(Round::Done(ManyOutcome::Contention { key, held }));
                }
                Outcome::TimedOut(TimedOut { ahead, .. }) => {
                    return Ok(Round::Done(self.timed_out(ask.key, ahead)));
                }
            }
        }
        // Timers may be late: a deadline that has passed may not have been told yet.
        let mut lost = holds.iter().filter(|hold| hold.check().is_err());
        if let Some(lost) = lost.next().filter(|_| !mutant!(LossWhileGathering)) {
            return Ok(Round::Lost(lost.holder.key.clone()));
        }
        Ok(Round::Done(ManyOutcome::Acquired(ManyGuard::new(holds))))
    }

    /// What is left of the caller's patience, for the next key.
    fn patience_now(&self) -> Option<WaitLimit> {
        match self.limit {
            WaitLimit::Within(time) if !time.is_zero() => {
                let left = self.left();
                (!left.is_zero()).then_some(WaitLimit::Within(left))
            }
            same => Some(same),
        }
    }
}

fn unavailable(reason: impl Into<String>) -> Error {
    Error::Unavailable {
        reason: reason.into(),
        cause: None,
    }
}
