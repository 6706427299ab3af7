//! Elects a leader: the holder of a mutex, whose note tells the others how to reach it.

mod observe;

use std::future::Future;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::client::error::{Error, Loss};
use crate::client::guard::MutexGuard;
use crate::client::handle::client::LockClient;
use crate::client::handle::mutex::Mutex as MutexHandle;
use crate::client::hold::{OnRefusal, ReleaseOnDrop, Tag};
use crate::error::InvalidInput;
use crate::id::{FencingToken, Key};
use crate::reply::NoteReply;
use crate::runtime::Moment;
use crate::sync::{Arc, Mutex};

pub use observe::{Leader, Observation};

/// The version of the note with which a term begins. [`Term::set_info`] counts on from it.
const FIRST: u32 = 1;

/// An election: at most one of many processes leads at a time.
///
/// [`LockClient::election`] makes a handle. It does no I/O.
///
/// A process stands with [`campaign`](Self::campaign) or [`run`](Self::run). The candidates wait in a queue,
/// and the next one leads as soon as the leader resigns, or within a lease after it dies. Each term has a
/// number, its fencing token, which grows from term to term. Followers find the leader with
/// [`leader`](Self::leader) and [`observe`](Self::observe).
///
/// # The promise
/// At most one process is in a [`Term`] that [is valid](Term::is_leader) at a time, under the assumptions of
/// every lock. A leader that is paused may still act late: announce the [number](Term::number) of the term to each
/// receiver before you read what you decide by, send it with each order, and let the receivers refuse a lower one
/// than they have seen.
///
/// # Examples
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold_api::{Error, LockClient};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// async fn schedule() { /* … */ }
///
/// let election = locks
///     .election("scheduler")?
///     .lease(Duration::from_secs(10))
///     .info(b"10.0.0.7:80")?;
/// election.run(async |term| {
///     println!("leader of term {}", term.number());
///     schedule().await; // stops at its current await point if the term is lost
/// }).await
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "an election does nothing until you stand or look"]
pub struct Election {
    mutex: MutexHandle,
    info: Vec<u8>,
}

impl LockClient {
    /// Returns a handle of an election. Does no I/O.
    ///
    /// The name is the key of its lock. Use it for nothing else.
    ///
    /// # Errors
    /// - [`Error::InvalidInput`] if the name is empty or longer than 256 bytes.
    /// - [`Error::Unsupported`] if the backend has no [`notes`](crate::Capabilities::notes), such as a quorum.
    /// - [`Error::Closed`] after a shutdown.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # fn example(locks: LockClient) -> Result<(), Error> {
    /// let election = locks.election("scheduler")?.info(b"10.0.0.7:80")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn election(&self, name: impl AsRef<str>) -> Result<Election, Error> {
        let mutex = self.mutex(name)?;
        mutex.lock.client.ensure_notes("elections")?;
        let info = Vec::new();
        Ok(Election { mutex, info })
    }
}

impl Election {
    /// Sets the lease: how long after the death of a leader the next one leads. The client renews it during
    /// the term.
    ///
    /// # Examples
    /// `election.lease(Duration::from_secs(10))`
    pub fn lease(mut self, lease: Duration) -> Self {
        self.mutex = self.mutex.lease(lease);
        self
    }

    /// Sets the value of the label `class` in the metrics of the election's lock. Empty by default.
    ///
    /// # Examples
    /// `election.class("scheduler")`
    pub fn class(mut self, class: &'static str) -> Self {
        self.mutex = self.mutex.class(class);
        self
    }

    /// Sets what the others learn about this process when it leads, such as its address. At most 127 bytes,
    /// none by default.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if it is longer.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # fn example(locks: LockClient) -> Result<(), Error> {
    /// let election = locks.election("scheduler")?.info("10.0.0.7:80")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn info(mut self, info: impl Into<Vec<u8>>) -> Result<Self, Error> {
        self.info = info.into();
        check_length(&self.info, &self.mutex.lock.key)?;
        Ok(self)
    }

    /// Stands for election, and waits without a time limit until this process leads.
    ///
    /// # Errors
    /// The permanent errors of [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// If you drop the future, the client leaves the queue in the background, or resigns if it was just
    /// elected.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let term = locks.election("scheduler")?.campaign().await?;
    /// println!("leader of term {}", term.number());
    /// term.resign().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn campaign(&self) -> Result<Term, Error> {
        let mut backoff = Backoff::background();
        loop {
            let guard = self.mutex.lock().await?;
            match note(&guard, FIRST, &self.info).await {
                Ok(()) => return Ok(Term::begin(guard)),
                Err(error) if error.is_transient() || matches!(error, Error::Lost { .. }) => {}
                Err(error) => return Err(error),
            }
            // The lock was lost before the term began, or nobody could learn of it.
            drop(guard.release().await);
            let core = &self.mutex.lock.client;
            core.runtime.sleep(core.jittered(backoff.next())).await;
        }
    }

    /// Stands for election, and runs `body` as the leader. Stands again if the term is lost. Resigns when
    /// `body` returns, and returns its output.
    ///
    /// If the term is lost, `body` is dropped at its current await point. The lock is released only after that,
    /// so the next leader doesn't begin before this one has stopped, unless its lease has ended, or somebody
    /// shuts the client down. Tasks that `body` has spawned go on: keep them in a `JoinSet` of it. To stop in an orderly way, await [`Term::expiring`] in the body. If the body
    /// panics, so does the call, and the client resigns.
    ///
    /// # Errors
    /// The same as [`campaign`](Self::campaign).
    ///
    /// # Cancel safety
    /// If you drop the future, `body` is dropped at its current await point, and the client resigns in the
    /// background.
    ///
    /// # Examples
    /// See [`Election`].
    pub async fn run<T, F: Future<Output = T>>(
        &self,
        mut body: impl FnMut(Arc<Term>) -> F,
    ) -> Result<T, Error> {
        let mut backoff = Backoff::background();
        loop {
            let term = Arc::new(self.campaign().await?);
            let _resigned = ReleaseOnDrop(&term.guard.hold);
            // `protect` drops the body before it returns.
            let ended = term.guard.protect(body(Arc::clone(&term))).await;
            drop(term.end().await);
            match ended {
                Ok(output) => return Ok(output),
                Err(Error::Closed) => return Err(Error::Closed),
                Err(_lost) => {
                    let core = &self.mutex.lock.client;
                    core.runtime.sleep(core.jittered(backoff.next())).await;
                }
            }
        }
    }
}

fn check_length(info: &[u8], key: &Key) -> Result<(), Error> {
    let (bytes, most) = (info.len(), crate::bounds::MAX_INFO_BYTES);
    if bytes <= most {
        return Ok(());
    }
    let text = format!("the info of a leader has at most {most} bytes, this one has {bytes}");
    Err(InvalidInput::new(text).on(key))
}

/// A term of office. This process leads until it resigns, drops the term, or loses it.
///
/// # Examples
/// See [`Election::campaign`].
#[derive(Debug)]
#[must_use = "a dropped term resigns; bind it to a name such as `_term`, not to `_`"]
pub struct Term {
    guard: MutexGuard,
    began: Moment,
    /// The version of its last note.
    version: Mutex<u32>,
}

impl Term {
    fn begin(guard: MutexGuard) -> Self {
        let hold = &guard.hold;
        let core = &hold.client;
        core.events.elected(guard.key(), hold.token(), hold.class);
        Self {
            began: core.now(),
            version: Mutex::new(FIRST),
            guard,
        }
    }

    /// Returns the number of the term. It grows from term to term. Send it with each order.
    ///
    /// # Examples
    /// `send(order, term.number())`
    pub fn number(&self) -> FencingToken {
        self.guard.fencing_token()
    }

    /// Whether this process certainly leads now.
    ///
    /// It is computed from the deadline of the lease at each call, so it needs no task to notice that the
    /// term is over.
    ///
    /// # Examples
    /// `if !term.is_leader() { return; }`
    pub fn is_leader(&self) -> bool {
        self.guard.is_valid()
    }

    /// Returns how long this process certainly leads from now on, without another renewal.
    ///
    /// # Examples
    /// `term.valid_for() > Duration::from_secs(5)`
    pub fn valid_for(&self) -> Duration {
        self.guard.valid_for()
    }

    /// Returns a future that completes with the reason when the term is lost. It doesn't borrow the term, and
    /// never completes if you resign first.
    ///
    /// # Cancel safety
    /// This method is cancel safe.
    ///
    /// # Examples
    /// `tokio::select! { loss = term.lost() => stop(loss), … }`
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + 'static + use<> {
        self.guard.lost()
    }

    /// Returns a future that completes when no more than `margin` of the term is left, unless a renewal comes
    /// first. See [`Guard::expiring`](crate::Guard::expiring).
    ///
    /// # Cancel safety
    /// This method is cancel safe.
    ///
    /// # Examples
    /// `let left = term.expiring(Duration::from_secs(3)).await;`
    pub fn expiring(
        &self,
        margin: Duration,
    ) -> impl Future<Output = Duration> + Send + 'static + use<> {
        self.guard.expiring(margin)
    }

    /// Returns a token that is cancelled when no more than `margin` of the term is left, and at the latest when the term
    /// is lost or ends. See [`Guard::cancellation_before`](crate::Guard::cancellation_before).
    ///
    /// # Examples
    /// `serve(term.cancellation_before(Duration::from_secs(3))).await`
    #[cfg(feature = "tokio-util")]
    pub fn cancellation_before(&self, margin: Duration) -> tokio_util::sync::CancellationToken {
        self.guard.cancellation_before(margin)
    }

    /// Returns the guard of the lock.
    ///
    /// # Examples
    /// `Fence::new().claim(&client, term.guard().key(), term.number()).await?`
    pub const fn guard(&self) -> &MutexGuard {
        &self.guard
    }

    /// Changes what the others learn about this leader. At most 127 bytes.
    ///
    /// # Errors
    /// - [`Error::InvalidInput`] if it is longer.
    /// - [`Error::Lost`] if the term is lost.
    /// - [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the service gave no answer until the end of the
    ///   lease.
    ///
    /// # Cancel safety
    /// If you drop the future, the info may or may not be changed.
    ///
    /// # Examples
    /// `term.set_info("10.0.0.7:81").await?`
    pub async fn set_info(&self, info: impl Into<Vec<u8>>) -> Result<(), Error> {
        let info = info.into();
        check_length(&info, self.guard.key())?;
        let version = {
            let mut version = self.version.lock();
            *version += 1;
            *version
        };
        note(&self.guard, version, &info).await
    }

    /// Resigns, and waits for the server to acknowledge it. The next candidate leads at once.
    ///
    /// # Errors
    /// The same as [`Guard::release`](crate::Guard::release).
    ///
    /// # Cancel safety
    /// If you drop the future, the client resigns in the background.
    ///
    /// # Examples
    /// See [`Election::campaign`].
    pub async fn resign(self) -> Result<(), Error> {
        self.end().await
    }

    async fn end(&self) -> Result<(), Error> {
        self.report_resigning();
        self.guard.release().await
    }

    /// Reports that the term ends, unless it was lost, or has ended before.
    fn report_resigning(&self) {
        if self.is_leader() {
            let core = &self.guard.hold.client;
            let led = core.now().saturating_since(self.began);
            core.events.resigned(self.guard.key(), self.number(), led);
        }
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        self.report_resigning();
    }
}

/// Leaves a note, which ends with the term.
async fn note(guard: &MutexGuard, version: u32, info: &[u8]) -> Result<(), Error> {
    let hold = &guard.hold;
    let until = hold.valid_until();
    let bytes = [&[Tag::Election as u8], info].concat();
    let answer = hold.note(version, &bytes, Duration::ZERO, until, OnRefusal::Fail);
    match answer.await?.reply {
        NoteReply::Noted(_) => Ok(()),
        NoteReply::Lost { reason, .. } => Err(hold.loss_error(reason.into())),
    }
}
