//! The client: makes handles, inspects keys, releases keys by force, and shuts down.

use std::time::Duration;

use crate::backend::LockBackend;
use crate::bounds::SHUTDOWN_TIMEOUT;
use crate::client::core::{ClientHandle, Core};
use crate::client::error::Error;
use crate::client::guard::multi::MultiGuard;
use crate::client::handle::inspection::Inspection;
use crate::client::handle::listing::Listing;
use crate::client::handle::lock::Lock;
use crate::client::handle::multi::MultiLock;
use crate::client::handle::mutex::Mutex;
use crate::client::handle::ping::Ping;
use crate::client::handle::rw_lock::RwLock;
use crate::client::handle::semaphore::Semaphore;
use crate::client::state::loss::{Hook, LossEvent};
use crate::client::state::settings::ClientSettings;
use crate::error::BackendError;
use crate::id::{FencingToken, Key, Label};
use crate::reply::ForceReply;
use crate::request::{ForceMode, ForceRelease, Kind, Limits};
use crate::runtime::Runtime;
use crate::sync::Arc;

/// A client of a lock service. It makes handles, renews the leases of your guards, and releases
/// dropped guards.
///
/// Make one client for each backend and share it. A clone is the same client. The client starts
/// its background tasks when the first lock is taken. They end when the client, its handles and
/// its guards are dropped.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockBackend, LockClient};
/// async fn example(backend: impl LockBackend) -> Result<(), Error> {
///     let locks = LockClient::new(backend);
///     let sent = send(&locks).await;
///     locks.shutdown().await?; // also after an error
///     sent
/// }
///
/// async fn send(locks: &LockClient) -> Result<(), Error> {
///     let guard = locks.mutex("invoice:42")?.lock().await?;
///     // … claim the resource with `guard.fencing_token()`, read, and write …
///     guard.release().await
/// }
/// ```
#[derive(Clone, Debug)]
pub struct LockClient {
    pub(crate) client: Arc<ClientHandle>,
}

impl LockClient {
    /// Makes a client with default settings. Does no I/O.
    ///
    /// `backend` may be an `Arc<dyn LockBackend>`.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{LockBackend, LockClient};
    /// # fn example(backend: impl LockBackend) {
    /// let locks = LockClient::new(backend);
    /// # }
    /// ```
    pub fn new(backend: impl LockBackend) -> Self {
        Self::builder(backend).make()
    }

    /// Returns a builder, to change settings before you make the client. Does no I/O.
    ///
    /// # Examples
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold_api::{Error, LockBackend, LockClient};
    /// # fn example(backend: impl LockBackend) -> Result<(), Error> {
    /// let locks = LockClient::builder(backend).lease(Duration::from_secs(10)).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(backend: impl LockBackend) -> LockClientBuilder {
        let runtime = backend.runtime();
        let label = Label::new(runtime.default_label()).unwrap_or_else(|_| Label::empty());
        let max_lease = backend.capabilities().max_lease;
        LockClientBuilder {
            backend: Arc::new(backend),
            settings: ClientSettings::new(label, max_lease),
        }
    }

    /// Returns the backend of this client.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let capabilities = locks.backend().capabilities();
    /// println!("queues waiters: {}", capabilities.queue);
    /// # Ok(())
    /// # }
    /// ```
    pub fn backend(&self) -> &dyn LockBackend {
        &*self.client.backend
    }

    /// Returns the source of time, randomness and tasks of this client: that of its backend. A task can
    /// keep it.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::LockClient;
    /// # use std::time::Duration;
    /// # async fn example(locks: LockClient) {
    /// // On the simulator, this sleeps in virtual time.
    /// locks.runtime().sleep(Duration::from_secs(1)).await;
    /// # }
    /// ```
    pub fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.client.runtime)
    }

    /// Makes a handle for the mutex under `key`, a name of 1 to 256 bytes. Does no I/O.
    ///
    /// # Errors
    /// - [`Error::InvalidInput`] if the key is empty or too long.
    /// - [`Error::Closed`] after a shutdown.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.mutex("invoice:42")?.lock().await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn mutex(&self, key: impl AsRef<str>) -> Result<Mutex, Error> {
        Lock::new(&self.client, key.as_ref(), Kind::Mutex, 1).map(Mutex::new)
    }

    /// Makes a handle for the reader/writer lock under `key`. Does no I/O.
    ///
    /// # Errors
    /// The same as [`mutex`](Self::mutex), and [`Error::Unsupported`] if the backend does not
    /// support reader/writer locks.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.rw_lock("catalog")?.read().await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn rw_lock(&self, key: impl AsRef<str>) -> Result<RwLock, Error> {
        Lock::new(&self.client, key.as_ref(), Kind::RwLock, 1).map(RwLock::new)
    }

    /// Makes a handle for the semaphore under `key`, with a capacity of 1 to 1,048,576 permits.
    /// Does no I/O.
    ///
    /// # Errors
    /// The same as [`mutex`](Self::mutex), and
    /// - [`Error::InvalidInput`] if the capacity is outside its limits;
    /// - [`Error::Unsupported`] if the backend does not support semaphores.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let permit = locks.semaphore("printers", 3)?.acquire().await?;
    /// permit.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn semaphore(&self, key: impl AsRef<str>, permits: u32) -> Result<Semaphore, Error> {
        Lock::new(&self.client, key.as_ref(), Kind::Semaphore, permits).map(Semaphore::new)
    }

    /// Makes a handle for several mutexes, which are locked together, all or nothing and without deadlocks. Does no I/O.
    ///
    /// # Errors
    /// - [`Error::InvalidInput`] if a key is empty, too long or named twice, or if there is no key or more than
    ///   [`MAX_KEYS_AT_ONCE`](crate::bounds::MAX_KEYS_AT_ONCE).
    /// - [`Error::Closed`] after a shutdown.
    ///
    /// # Examples
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let accounts = locks.mutexes(["account:7", "account:3"])?.lease(Duration::from_secs(10));
    /// let guard = accounts.lock().await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn mutexes<K: AsRef<str>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<MultiLock, Error> {
        MultiLock::new(&self.client, keys)
    }

    /// Locks several mutexes together, all or nothing. Waits without a time limit.
    ///
    /// This is short for [`mutexes`](Self::mutexes) and [`lock`](MultiLock::lock).
    ///
    /// # Errors
    /// The same as [`mutexes`](Self::mutexes) and [`MultiLock::lock`].
    ///
    /// # Cancel safety
    /// If you drop the future, the client leaves the queue and releases the keys locked so far, in
    /// the background.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.lock_all(["account:7", "account:3"]).await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lock_all<K: AsRef<str>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<MultiGuard, Error> {
        self.mutexes(keys)?.lock().await
    }

    /// Returns the state of a key: holders, waiters and the last fencing token. Changes nothing.
    ///
    /// # Errors
    /// - [`Error::InvalidInput`] if the key is empty or too long.
    /// - [`Error::Unsupported`] if the backend does not support inspection.
    /// - [`Error::Unavailable`] if no answer came within one call timeout.
    /// - [`Error::Rejected`], [`Error::ForeignValue`] or [`Error::Closed`].
    ///
    /// # Cancel safety
    /// You can drop the future at any time, because the call changes nothing.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let inspection = locks.inspect("invoice:42").await?;
    /// println!("{inspection}");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn inspect(&self, key: impl AsRef<str>) -> Result<Inspection, Error> {
        let key = Key::new(key)?;
        let answer = self.client.inspect(&key).await?;
        Ok(Inspection::new(key, answer.reply))
    }

    /// Asks the lock service for an answer: for health checks.
    ///
    /// It takes no lock, and one call timeout at most. On Redis Cluster and on a quorum, an answer says that some server
    /// answers, not that each key can be locked.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if no answer came within one call timeout.
    /// - [`Error::Rejected`] if the service refuses this client.
    /// - [`Error::Closed`].
    ///
    /// # Cancel safety
    /// You can drop the future at any time, because the call changes nothing.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// match locks.ping().await {
    ///     Ok(ping) => println!("ready: {ping}"),
    ///     Err(error) => println!("not ready: {error}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn ping(&self) -> Result<Ping, Error> {
        self.client.ensure_open()?;
        let answer = self
            .client
            .ping()
            .await
            .map_err(BackendError::about_no_key)?;
        Ok(Ping {
            round_trip: self.client.now().saturating_since(answer.sent),
            server: self.client.backend.clock_address(answer.stamp.clock),
            push: self.client.session().router.is_listening(),
        })
    }

    /// Lists the keys that begin with `prefix`, page by page. Does no I/O; [`Listing::next_page`] does.
    ///
    /// It is for people and their tools. Every key that has a holder or a waiter all the time is listed. A
    /// key that is free may be listed too, as long as the server remembers its last token. It is no snapshot:
    /// a key that comes or goes meanwhile may be missing, and a key may come twice.
    ///
    /// On Redis, this walks over all keys of the server, or of each primary of a cluster, whatever the prefix
    /// is. It needs the right `+scan`. On Postgres it reads the rows in the order of their keys.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the backend can't list keys, as a quorum.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let mut listing = locks.list("invoice:")?;
    /// while let Some(keys) = listing.next_page().await? {
    ///     println!("{keys:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn list(&self, prefix: impl Into<String>) -> Result<Listing, Error> {
        Error::require(self.client.capabilities.list, "list")?;
        Ok(Listing::new(&self.client, prefix.into()))
    }

    /// Releases a key by force, for the holders with these tokens.
    ///
    /// [`Inspection::held_tokens`] returns the tokens. A token names an epoch: one exclusive
    /// holder, or overlapping readers. Holders of a later epoch keep the key. A reader
    /// who joined the others after the inspection is released with them.
    ///
    /// - [`ForceMode::Revoke`] refuses further renewals, and the lease runs out. Two holders never
    ///   overlap.
    /// - [`ForceMode::Now`] removes the holders at once, even if they are still working.
    ///   **Mutual exclusion is not guaranteed**; only fencing tokens protect the resource.
    ///
    /// # Errors
    /// - [`Error::InvalidInput`] if the key is empty or too long.
    /// - [`Error::Unsupported`] if the backend does not support forced releases.
    /// - [`Error::Unavailable`] if the server could not be reached.
    /// - [`Error::OutcomeUnknown`] if no answer came within one call timeout. Inspect the key, then
    ///   try again.
    /// - [`Error::Rejected`], [`Error::ForeignValue`] or [`Error::Closed`].
    ///
    /// # Cancel safety
    /// If you drop the future, the release may or may not take effect.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, ForceMode, ForceReply, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let stuck = locks.inspect("invoice:42").await?.held_tokens();
    /// if let ForceReply::Forced { holders } =
    ///     locks.force_release("invoice:42", stuck, ForceMode::Revoke).await?
    /// {
    ///     println!("released {holders} holders by force");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn force_release(
        &self,
        key: impl AsRef<str>,
        tokens: Vec<FencingToken>,
        how: ForceMode,
    ) -> Result<ForceReply, Error> {
        let request = ForceRelease::new(Key::new(key)?, tokens).with_how(how);
        let core = &self.client;
        core.ensure_open()?;
        let call = core.backend.force_release(&request);
        let answer = core.exchange(core.settings.call_timeout, call).await;
        Ok(answer.map_err(|error| error.on(&request.key))?.reply)
    }

    /// Closes this client and its clones, and releases all their locks.
    ///
    /// Waiting calls fail with [`Error::Closed`]. Guards still in use are lost with
    /// [`Loss::ClientClosed`](crate::Loss::ClientClosed). The backend stays open.
    ///
    /// The call takes at most 5 s. You can call it again.
    ///
    /// # Errors
    /// [`Error::OutcomeUnknown`] if the server did not acknowledge all releases within 5 s. The
    /// remaining locks expire with their leases.
    ///
    /// # Cancel safety
    /// The first poll of the future closes the client. If you drop the future after that, the
    /// releases go on in the background.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.mutex("invoice:42")?.lock().await?;
    /// drop(guard); // released in the background
    /// locks.shutdown().await?; // waits for that release
    /// # Ok(())
    /// # }
    /// ```
    pub async fn shutdown(&self) -> Result<(), Error> {
        let core = &self.client;
        core.close();
        let drained = async {
            // Twice, because an attempt in flight may have become a hold in the meantime.
            for _ in 0..2 {
                core.release_all_holds();
                core.releases.drained().await;
            }
        };
        let drained = core.runtime.timeout(SHUTDOWN_TIMEOUT, drained).await;
        drained.ok_or_else(|| {
            let reason = "the server did not acknowledge all releases; \
                          the remaining locks expire with their leases";
            BackendError::outcome_unknown(reason).about_no_key()
        })
    }
}

/// Builds a [`LockClient`] with other settings than the defaults.
///
/// # Examples
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold_api::{Error, Label, LockBackend, LockClient};
/// # fn example(backend: impl LockBackend) -> Result<(), Error> {
/// let locks = LockClient::builder(backend)
///     .lease(Duration::from_secs(10))
///     .label(Label::new("billing-7")?)
///     .call_timeout(Duration::from_millis(500))
///     .on_loss(|event| eprintln!("lost {}: {}", event.key, event.reason))
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until you call `build`"]
pub struct LockClientBuilder {
    backend: Arc<dyn LockBackend>,
    settings: ClientSettings,
}

impl LockClientBuilder {
    /// Sets the lease: how long a hold lasts without renewal. 100 ms to 1 h, 30 s by default, or less if the
    /// backend [grants less](crate::Capabilities::max_lease).
    ///
    /// The lock of a crashed holder is free after one lease. A holder that had waited for the lock may keep it
    /// until 2 s after the grant, however short its lease. A handle can [override](crate::Mutex::lease) this
    /// setting.
    ///
    /// # Examples
    /// `builder.lease(Duration::from_secs(10))`
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.settings.options.lease = lease;
        self
    }

    /// Sets the label that other clients see for this client's holders and waiters. At most 32
    /// bytes, `host:pid` by default.
    ///
    /// The label is not secret: every client that can inspect a key can read it.
    ///
    /// # Examples
    /// `builder.label(Label::new("billing-7")?)`
    pub fn label(mut self, label: Label) -> Self {
        self.settings.label = label;
        self
    }

    /// Sets the timeout of one call to the backend. 10 ms to 5 s, 1 s by default.
    ///
    /// If the backend has a shorter timeout, that one applies.
    ///
    /// # Examples
    /// `builder.call_timeout(Duration::from_millis(500))`
    pub const fn call_timeout(mut self, limit: Duration) -> Self {
        self.settings.call_timeout = limit;
        self
    }

    /// Sets the limits on the nested holds, waiters and holders of a key. By default 32 holds of
    /// one owner, 10,000 waiters and 100,000 holders.
    ///
    /// The limits apply to the attempts of this client only. A handle can
    /// [override](crate::Mutex::limits) this setting.
    ///
    /// # Examples
    /// `builder.limits(Limits { waiters: 100, ..Limits::default() })`
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.settings.options.limits = limits;
        self
    }

    /// Sets a hook that the client calls once for each lost guard. A later hook replaces an
    /// earlier one.
    ///
    /// The client calls the hook whether or not you await [`lost`](crate::Guard::lost). It does
    /// not call the hook for a guard that was released or dropped before the client learned of the loss. While
    /// a [`MultiLock`] waits for more keys, each key that it has already locked counts
    /// as a guard.
    ///
    /// The hook runs on the renewal thread of the backend, soon after the loss. A slow hook delays
    /// all renewals, and a hook that blocks forever stops them. Only send, count or log in the
    /// hook, and do the rest elsewhere.
    ///
    /// # Panics
    /// The client catches a panic of the hook and reports it as a tracing event.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockBackend, LockClient, LossEvent};
    /// # fn example(backend: impl LockBackend) -> Result<(), Error> {
    /// let locks = LockClient::builder(backend)
    ///     .on_loss(|event: &LossEvent| {
    ///         eprintln!("lost {} after {:?}: {}", event.key, event.held, event.reason);
    ///     })
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_loss(mut self, hook: impl Fn(&LossEvent) + Send + Sync + 'static) -> Self {
        self.settings.on_loss = Some(Hook(Arc::new(hook)));
        self
    }

    /// Makes the client. Does no I/O.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if a setting is outside its limits.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockBackend, LockClient};
    /// # fn example(backend: impl LockBackend) -> Result<(), Error> {
    /// let locks = LockClient::builder(backend).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn build(self) -> Result<LockClient, Error> {
        self.settings.check(self.backend.capabilities())?;
        Ok(self.make())
    }

    fn make(self) -> LockClient {
        let runtime = self.backend.runtime();
        LockClient {
            client: Core::new_handle(self.backend, runtime, self.settings),
        }
    }
}
