//! The client: it makes handles, looks at keys, and is shut down.

use std::time::Duration;

use futures_util::future::{Either, select};

use crate::backend::LockBackend;
use crate::bounds::SHUTDOWN_TIMEOUT;
use crate::client::core::{ClientHandle, Core, not_executed};
use crate::client::error::Error;
use crate::client::guard::multi::ManyGuard;
use crate::client::handle::inspection::Inspection;
use crate::client::handle::lock::Lock;
use crate::client::handle::multi::Many;
use crate::client::handle::mutex::Mutex;
use crate::client::handle::rw_lock::RwLock;
use crate::client::handle::semaphore::Semaphore;
use crate::client::state::loss::{Hook, LossEvent};
use crate::client::state::settings::Settings;
use crate::id::{FencingToken, Key, Label};
use crate::reply::ForceReply;
use crate::request::{ForceHow, ForceRelease, Kind, Limits, Policy};
use crate::sync::Arc;

/// The client of a lock service: makes handles, renews what is held, ends what was dropped.
///
/// Make one for each backend and share it; a clone is the same client. It starts its tasks when
/// the first lock is taken, and they end when the client, its handles and its guards are gone.
///
/// ```no_run
/// # use leasehold_api::{Error, LockBackend, LockClient};
/// # async fn example(backend: impl LockBackend) -> Result<(), Error> {
/// let locks = LockClient::new(backend);
/// let guard = locks.mutex("invoice:42")?.lock().await?;
/// // … work, sending `guard.fencing_token()` with every write …
/// guard.release().await?;
/// locks.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LockClient {
    pub(crate) client: Arc<ClientHandle>,
}

impl LockClient {
    /// A client with default settings. Does no I/O.
    ///
    /// `backend` may be an `Arc<dyn LockBackend>`.
    pub fn new(backend: impl LockBackend) -> Self {
        Self::builder(backend).open()
    }

    /// A client with settings.
    pub fn builder(backend: impl LockBackend) -> LockClientBuilder {
        let runtime = backend.runtime();
        let label = Label::new(runtime.default_label()).unwrap_or_else(|_| Label::empty());
        LockClientBuilder {
            backend: Arc::new(backend),
            settings: Settings::new(label),
        }
    }

    /// The backend that it was made with.
    pub fn backend(&self) -> &dyn LockBackend {
        &*self.client.backend
    }

    /// A mutex under `key`.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] for a bad key, [`Error::Closed`] after a shutdown. No I/O.
    pub fn mutex(&self, key: impl AsRef<str>) -> Result<Mutex, Error> {
        self.lock(key.as_ref(), Kind::Mutex, 1, false)
            .map(Mutex::new)
    }

    /// A mutex that this handle, and clones of it, may take several times.
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex), and [`Error::Unsupported`] if the backend cannot.
    pub fn reentrant_mutex(&self, key: impl AsRef<str>) -> Result<Mutex, Error> {
        self.lock(key.as_ref(), Kind::Mutex, 1, true)
            .map(Mutex::new)
    }

    /// A reader/writer lock under `key`.
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex), and [`Error::Unsupported`] if the backend cannot.
    pub fn rw_lock(&self, key: impl AsRef<str>) -> Result<RwLock, Error> {
        self.lock(key.as_ref(), Kind::RwLock, 1, false)
            .map(RwLock::new)
    }

    /// A reader/writer lock that this handle, and clones of it, may take several times.
    ///
    /// # Errors
    /// As [`rw_lock`](Self::rw_lock).
    pub fn reentrant_rw_lock(&self, key: impl AsRef<str>) -> Result<RwLock, Error> {
        self.lock(key.as_ref(), Kind::RwLock, 1, true)
            .map(RwLock::new)
    }

    /// A semaphore of `permits` under `key`.
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex), [`Error::InvalidInput`] for 0 or too many permits, and
    /// [`Error::Unsupported`] if the backend cannot.
    pub fn semaphore(&self, key: impl AsRef<str>, permits: u32) -> Result<Semaphore, Error> {
        self.lock(key.as_ref(), Kind::Semaphore, permits, false)
            .map(Semaphore::new)
    }

    /// Several keys to be taken together, all or nothing, without danger of a deadlock: name them
    /// one by one on what this returns. Does no I/O.
    ///
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let all = locks.many().mutex("a")?.read("b")?.write("c")?.permits("d", 4, 1)?;
    /// let guard = all.lock().await?;
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn many(&self) -> Many {
        Many::new(&self.client)
    }

    /// Takes several mutexes together, all or nothing, waiting for as long as it takes: short for
    /// [`many`](Self::many), [`mutexes`](Many::mutexes) and [`lock`](Many::lock).
    ///
    /// # Errors
    /// As [`Many::mutex`] and [`Many::lock`].
    ///
    /// # Cancel safety
    /// As [`Many::lock`].
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.acquire_many(["account:7", "account:3"]).await?;
    /// guard.release().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn acquire_many<K: AsRef<str>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<ManyGuard, Error> {
        self.many().mutexes(keys)?.lock().await
    }

    fn lock(&self, key: &str, kind: Kind, permits: u32, reentrant: bool) -> Result<Lock, Error> {
        Lock::new(&self.client, key, kind, permits, reentrant)
    }

    /// Looks at a key, changing nothing.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] for a bad key; [`Error::Unsupported`] if the backend cannot;
    /// [`Error::Unavailable`] if no answer came within one call time-out.
    ///
    /// # Cancel safety
    /// It changes nothing, so it may be dropped at any time.
    pub async fn inspect(&self, key: impl AsRef<str>) -> Result<Inspection, Error> {
        let key = Key::new(key)?;
        let core = &self.client;
        core.ensure_open()?;
        let call = core.backend.inspect(&key);
        let answer = core.exchange(core.settings.call_timeout, call).await;
        let reply = answer.map_err(|error| not_executed(error).on(&key))?.reply;
        Ok(Inspection::new(key, reply))
    }

    /// Takes a key away from the holders with these tokens, as an
    /// [inspection](Inspection::held_tokens) showed them. Later holders are never touched.
    ///
    /// [`ForceHow::Revoke`] forbids further renewals and lets the lease run out, so two holders
    /// never overlap. [`ForceHow::Now`] ends them at once, whatever their holders are doing:
    /// **mutual exclusion is then not guaranteed**, only the fencing token protects.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect), and [`Error::OutcomeUnknown`]: look again, then try again.
    ///
    /// # Cancel safety
    /// Dropping the future leaves it done or not done.
    pub async fn force_release(
        &self,
        key: impl AsRef<str>,
        tokens: Vec<FencingToken>,
        how: ForceHow,
    ) -> Result<ForceReply, Error> {
        let request = ForceRelease::new(Key::new(key)?, tokens).with_how(how);
        let core = &self.client;
        core.ensure_open()?;
        let call = core.backend.force_release(&request);
        let answer = core.exchange(core.settings.call_timeout, call).await;
        Ok(answer.map_err(|error| error.on(&request.key))?.reply)
    }

    /// Ends everything of this client: waits fail with [`Error::Closed`], guards still in use
    /// are lost, and all holds are released. The backend stays open.
    ///
    /// Takes at most 5 s. Calling it again is fine.
    ///
    /// # Errors
    /// [`Error::OutcomeUnknown`] if the server did not acknowledge all releases in that time;
    /// leases end what is left.
    ///
    /// # Cancel safety
    /// The client is closed once the future was polled; the releases go on in the background.
    pub async fn shutdown(&self) -> Result<(), Error> {
        let core = &self.client;
        core.close();
        let drained = Box::pin(async {
            // Once more after the attempts under way are over: one may have become a hold.
            for _ in 0..2 {
                core.release_all_holds();
                core.releases.drained().await;
            }
        });
        match select(drained, core.runtime.sleep(SHUTDOWN_TIMEOUT)).await {
            Either::Left(_) => Ok(()),
            Either::Right(_) => {
                let reason = "not all releases were acknowledged; leases end what is left";
                Err(Error::OutcomeUnknown {
                    reason: reason.into(),
                    cause: None,
                })
            }
        }
    }
}

/// Settings of a [`LockClient`].
#[derive(Clone, Debug)]
#[must_use = "a builder makes no client until `build` is called"]
pub struct LockClientBuilder {
    backend: Arc<dyn LockBackend>,
    settings: Settings,
}

impl LockClientBuilder {
    /// How long a hold lasts without renewal, unless a handle says otherwise: 100 ms to 1 h,
    /// 30 s by default.
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// How long a place in a queue outlives its waiter's last sign of life, unless a handle says
    /// otherwise: 3 s to 60 s, 5 s by default.
    pub const fn waiter_lease(mut self, lease: Duration) -> Self {
        self.settings.waiter_lease = lease;
        self
    }

    /// Who gets a key that becomes free, unless a handle says otherwise; [`Policy::Fair`] by
    /// default. A preference among readers and writers applies to reader/writer locks only.
    pub const fn policy(mut self, policy: Policy) -> Self {
        self.settings.policy = policy;
        self
    }

    /// What others see of this client's holds and waits; `host:pid` by default. It is public.
    pub fn label(mut self, label: Label) -> Self {
        self.settings.label = label;
        self
    }

    /// Longest call to the backend: 10 ms to 5 s, 1 s by default. A backend has a time-out of
    /// its own as well; the shorter one counts.
    pub const fn call_timeout(mut self, limit: Duration) -> Self {
        self.settings.call_timeout = limit;
        self
    }

    /// Limits on the holds, waiters and holders of a key, unless a handle says otherwise.
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.settings.limits = limits;
        self
    }

    /// Called once for each guard of this client that is lost, whether anybody awaits its
    /// [`lost`](crate::Guard::lost) or not. Never called for a guard whose release or drop came
    /// first. A key that [`many`](LockClient::many) has taken while it waits for the others counts
    /// as a guard. A later hook replaces an earlier one.
    ///
    /// It is called soon after the loss, by the task that renews all guards, on the thread that
    /// the backend has for that: a hook that takes long delays renewals, and one that blocks for
    /// ever stops them. Let it send, count or log, and do the rest elsewhere.
    ///
    /// # Panics
    /// A panic of the hook is caught and told as an event; nothing else comes of it.
    pub fn on_loss(mut self, hook: impl Fn(&LossEvent) + Send + Sync + 'static) -> Self {
        self.settings.on_loss = Some(Hook::new(hook));
        self
    }

    /// The client. Does no I/O.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] for a setting outside its limits.
    pub fn build(self) -> Result<LockClient, Error> {
        self.settings.check()?;
        Ok(self.open())
    }

    fn open(self) -> LockClient {
        let runtime = self.backend.runtime();
        LockClient {
            client: Core::new_handle(self.backend, runtime, self.settings),
        }
    }
}
