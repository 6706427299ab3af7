//! Locks several mutexes at once, all or nothing.
//!
//! A call locks its keys one by one, in the order of the UTF-8 bytes of their names, in whatever
//! order the caller named them. While it waits for a key, it holds only keys that come before it.
//! So no circle of waiters can close, and two clients that name the same keys in opposite order
//! never block each other forever.
//!
//! If a key is lost while the call waits for a later one, the round is void. The call releases all
//! keys and locks them again. The news of a loss may be late: a grant and a forced release that
//! came before it may be pushed over different connections. So once it has all keys, the call renews
//! those that it had before it waited.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};

use crate::bounds::MAX_KEYS_AT_ONCE;
use crate::client::acquire::request::{Ask, Owner, WaitLimit};
use crate::client::acquire::wait::acquire;
use crate::client::core::ClientHandle;
use crate::client::error::Error;
use crate::client::guard::multi::MultiGuard;
use crate::client::hold::{Hold, check_all, first_lost};
use crate::client::outcome::{Contention, Outcome};
use crate::client::state::settings::{LockOptions, option_setters};
use crate::error::InvalidInput;
use crate::id::Key;
use crate::request::{LockSpec, Mode};
use crate::runtime::Moment;
use crate::sync::Arc;

/// Longest pause between two rounds. It bounds the load on the service if a key is lost in every
/// round.
const PAUSE: Duration = Duration::from_millis(20);

/// Several mutexes to lock together, all or nothing. Made by
/// [`LockClient::mutexes`](crate::LockClient::mutexes).
///
/// - **Order.** A call locks the keys one by one, in the order of the UTF-8 bytes of their names.
///   The order in which you name them does not matter. So two calls that want the same keys never
///   block each other forever. If you take another lock while holding a guard, ordering is up to
///   you again.
/// - **All or nothing.** If the call fails, times out or is dropped, the keys locked so far are
///   released in the background. If a key is lost while the call waits for a later one, all keys
///   are released and locked again, within the same deadline.
/// - **Waiting.** While it waits for a key, a call keeps the keys before it. Keep the sets small,
///   and choose names that put contended keys last.
/// - **Options.** Each option applies to each key. A [`fixed_lease`](Self::fixed_lease) or a
///   [`max_hold`](Self::max_hold) of a key counts from the moment when that key is locked. If the wait
///   for the other keys is longer, the call begins anew, and may never end: use
///   [`try_lock_for`](Self::try_lock_for) with less time.
/// - **No reentrancy.** Each call is a separate owner. If your program already holds one of the
///   keys, the call waits for that guard.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let transfer = locks.mutexes(["account:7", "account:3"])?;
/// let guard = transfer.lock().await?;
/// println!("write account 7 with token {}", guard.fencing_token("account:7")?);
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MultiLock {
    client: Arc<ClientHandle>,
    /// Sorted. Each is named once, and there is at least one.
    keys: Vec<Key>,
    options: LockOptions,
}

impl MultiLock {
    pub(crate) fn new<K: AsRef<str>>(
        client: &Arc<ClientHandle>,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Self, Error> {
        client.ensure_open()?;
        let keys = keys.into_iter().take(MAX_KEYS_AT_ONCE + 1).map(Key::new);
        let mut keys = keys.collect::<Result<Vec<Key>, InvalidInput>>()?;
        keys.sort_unstable();
        if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(InvalidInput::new("it is named twice").on(&pair[0]));
        }
        let asked = keys.len();
        if !(1..=MAX_KEYS_AT_ONCE).contains(&asked) {
            let text = format!("1 to {MAX_KEYS_AT_ONCE} keys can be locked at once, not {asked}");
            return Err(InvalidInput::new(text).into());
        }
        Ok(Self {
            client: Arc::clone(client),
            keys,
            options: client.settings.options.clone(),
        })
    }

    /// Returns the keys in the order in which a call locks them.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let many = locks.mutexes(["b", "a"])?;
    /// assert!(many.keys().map(|key| key.as_str()).eq(["a", "b"]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &Key> {
        self.keys.iter()
    }

    option_setters!(options);

    /// Locks all keys. Waits without a time limit, also through outages of the lock service.
    ///
    /// To limit the wait, use [`try_lock_for`](Self::try_lock_for).
    ///
    /// # Errors
    /// The same as [`Mutex::lock`](crate::Mutex::lock). [`Error::key`] returns the key that the error is about, if it is
    /// about one key.
    ///
    /// # Cancel safety
    /// If you drop the future, the client leaves the queue and releases the keys locked so far, in
    /// the background.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.mutexes(["account:3", "account:7"])?.lock().await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lock(&self) -> Result<MultiGuard, Error> {
        match self.acquire(WaitLimit::Forever).await? {
            Outcome::Acquired(guard) => Ok(guard),
            // It can't happen without a deadline. An error is better than a panic.
            Outcome::Contended(_) => Err(Error::unavailable("the wait ended without the locks")),
        }
    }

    /// Locks all keys if all are free. Otherwise returns the first key that isn't, and its holder.
    ///
    /// The call never waits for a holder. It takes at most one call timeout for each key.
    ///
    /// If a key is not free, the call has briefly locked the keys before it. An attempt of another
    /// client in that moment finds them held.
    ///
    /// # Errors
    /// The same as [`lock`](Self::lock), and [`Error::Unavailable`] or [`Error::OutcomeUnknown`]
    /// if the service gave no answer.
    ///
    /// # Cancel safety
    /// If you drop the future, the client releases the keys locked so far, in the background.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient, Outcome};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// match locks.mutexes(["a", "b"])?.try_lock().await? {
    ///     Outcome::Acquired(guard) => println!("acquired: {guard:?}"),
    ///     Outcome::Contended(contention) => println!("{} is not free", contention.key),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_lock(&self) -> Result<Outcome<MultiGuard>, Error> {
        self.try_lock_for(Duration::ZERO).await
    }

    /// Locks all keys. Waits for at most `time` in total.
    ///
    /// If `time` is zero, the call tries each key once and takes at most one call timeout for each.
    ///
    /// # Errors
    /// The same as [`lock`](Self::lock), and [`Error::Unavailable`] or [`Error::OutcomeUnknown`]
    /// if the time ran out during an outage: the last call to the service failed, or got no answer
    /// within the call timeout.
    ///
    /// A `time` that is too short for an answer is no error: the call has timed out.
    ///
    /// # Cancel safety
    /// If you drop the future, the client leaves the queue and releases the keys locked so far, in
    /// the background.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # use std::time::Duration;
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let accounts = locks.mutexes(["account:3", "account:7"])?;
    /// let outcome = accounts.try_lock_for(Duration::from_secs(5)).await?;
    /// if let Some(guard) = outcome.into_guard() {
    ///     guard.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_lock_for(&self, time: Duration) -> Result<Outcome<MultiGuard>, Error> {
        self.acquire(WaitLimit::Within(time)).await
    }

    /// Locks all keys, runs `body`, and releases the keys.
    ///
    /// If a key is lost before `body` completes, `body` is dropped at its current await point.
    ///
    /// # Errors
    /// The same as [`lock`](Self::lock), and [`Error::Lost`] with the key if one was lost before
    /// its release. `body` may have done a part of its work then, or all of it.
    ///
    /// # Cancel safety
    /// If you drop the future, `body` is dropped at its current await point, and the client
    /// releases the keys in the background. The call is cancel safe if `body` is.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let accounts = locks.mutexes(["account:3", "account:7"])?;
    /// let count = accounts.with(async |guard| guard.keys().len()).await?;
    /// assert_eq!(count, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with<T>(&self, body: impl AsyncFnOnce(&MultiGuard) -> T) -> Result<T, Error> {
        self.lock().await?.with(body).await
    }

    /// Locks all keys. Checks the input before any I/O.
    async fn acquire(&self, limit: WaitLimit) -> Result<Outcome<MultiGuard>, Error> {
        self.options.check(self.client.capabilities)?;
        let owner = Owner::Fresh;
        let ask = |key| Ask {
            client: &self.client,
            key,
            spec: LockSpec::mutex(),
            mode: Mode::Exclusive,
            owner: &owner,
            options: &self.options,
        };
        let started_at = self.client.now();
        let call = MultiAcquire {
            client: &self.client,
            asks: self.keys.iter().map(ask).collect(),
            limit,
            started_at,
            deadline: limit.deadline(started_at, self.client.settings.call_timeout),
        };
        call.run().await
    }
}

/// One call. It locks the keys in rounds until one round ends with all of them.
struct MultiAcquire<'a> {
    client: &'a Arc<ClientHandle>,
    asks: Vec<Ask<'a>>,
    limit: WaitLimit,
    started_at: Moment,
    /// No round starts after this.
    deadline: Option<Moment>,
}

enum Round {
    Done(Outcome<MultiGuard>),
    /// This key was lost while the call waited for another.
    Lost(Key),
}

impl MultiAcquire<'_> {
    fn left(&self) -> Duration {
        let now = self.client.now();
        self.deadline
            .map_or(Duration::MAX, |deadline| deadline.saturating_since(now))
    }

    /// The outcome of a call that ends before it asked for `key`.
    fn timed_out(&self, key: &Key) -> Outcome<MultiGuard> {
        Outcome::Contended(Contention {
            key: key.clone(),
            timed_out: self.limit.waits(),
            holder: None,
            retry_after: Duration::ZERO,
            waited: self.waited(),
            ahead: None,
        })
    }

    fn waited(&self) -> Duration {
        self.client.now().saturating_since(self.started_at)
    }

    async fn run(&self) -> Result<Outcome<MultiGuard>, Error> {
        loop {
            let key = match self.round().await? {
                Round::Done(outcome) => return Ok(outcome),
                Round::Lost(key) => key,
            };
            let pause = self.client.jittered(PAUSE);
            if pause >= self.left() {
                if !self.limit.waits() {
                    let reason = format!("key {key:?} was lost before the others were locked");
                    return Err(Error::unavailable(reason));
                }
                return Ok(self.timed_out(&key));
            }
            self.client.runtime.sleep(pause).await;
        }
    }

    /// Locks the keys in order. Holds that it doesn't return are released in the background.
    async fn round(&self) -> Result<Round, Error> {
        let mut holds: Vec<Hold> = Vec::with_capacity(self.asks.len());
        for ask in &self.asks {
            let Some(limit) = self.limit_for_next_key() else {
                return Ok(Round::Done(self.timed_out(ask.key)));
            };
            let lost = pin!(first_lost(&holds));
            let outcome = match select(pin!(acquire(*ask, limit)), lost).await {
                Either::Left((outcome, _)) => outcome?,
                Either::Right(((key, _), _)) => return Ok(Round::Lost(key)),
            };
            match outcome {
                Outcome::Acquired(hold) => holds.push(hold),
                Outcome::Contended(contention) => {
                    let waited = self.waited();
                    return Ok(Round::Done(Outcome::Contended(Contention {
                        waited,
                        ..contention
                    })));
                }
            }
        }
        self.check_earlier(&holds).await?;
        // Timers may be late, so a passed deadline may not have been reported yet.
        let mut lost = holds.iter().filter(|hold| hold.check().is_err());
        if let Some(lost) = lost.next() {
            return Ok(Round::Lost(lost.holder.key.clone()));
        }
        Ok(Round::Done(Outcome::Acquired(MultiGuard::new(holds))))
    }

    /// Renews the keys that were locked before the call last waited: the message about a loss may be late (decision
    /// 0045).
    async fn check_earlier(&self, holds: &[Hold]) -> Result<(), Error> {
        let last_wait = holds.iter().rposition(|hold| hold.waited).unwrap_or(0);
        if last_wait == 0 {
            return Ok(());
        }
        match check_all(&holds[..last_wait], self.left()).await {
            // No answer is no loss. The leases last.
            Err(error) if error.is_transient() => Ok(()),
            answered => answered,
        }
    }

    /// Returns the wait limit for the next key, or `None` if the time ran out.
    fn limit_for_next_key(&self) -> Option<WaitLimit> {
        match self.limit {
            WaitLimit::Within(time) if !time.is_zero() => {
                let left = self.left();
                (!left.is_zero()).then_some(WaitLimit::Within(left))
            }
            limit => Some(limit),
        }
    }
}
