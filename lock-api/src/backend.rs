//! The trait that a backend implements.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_core::Stream;

use crate::bounds;
use crate::error::BackendError;
use crate::id::{FencingToken, Key, SessionId};
use crate::reply::{
    AcquireReply, ConvertReply, ForceReply, InspectReply, Listed, NoteReply, PollReply,
    ReleaseReply, RenewReply,
};
use crate::request::{Acquire, Convert, ForceRelease, List, Note, Poll, Release, Renew};
use crate::runtime::Runtime;
use crate::time::{ClockId, ServerTime, Stamp, Stamped};

/// What a backend supports.
///
/// The client adapts to a missing capability, or returns an error before any I/O. The conformance
/// suite lists the cases that need a missing capability as ignored.
///
/// Start from [`minimal`](Self::minimal) or [`full`](Self::full) and set fields:
///
/// ```
/// use leasehold_api::Capabilities;
///
/// let mut capabilities = Capabilities::minimal();
/// capabilities.inspect = true;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Waiters queue in the backend: [`LockBackend::poll`], and [`LockBackend::acquire`] with
    /// [`wait`](Acquire::wait). Without it, the client retries until it gets the lock.
    pub queue: bool,
    /// [`LockBackend::listen`] delivers grants as they are made, whichever client makes them. Without it,
    /// it delivers at most those that the same backend makes, and waiters rely on polls.
    pub push: bool,
    /// The backend can tell which sessions listen, so it passes over unreachable waiters (rule 9).
    /// Without it, every session counts as listening. It means nothing without `push`.
    pub reachability: bool,
    /// The backend has reader/writer locks.
    pub rw_locks: bool,
    /// The backend has semaphores.
    pub semaphores: bool,
    /// One owner may hold a key several times.
    pub reentrancy: bool,
    /// The backend implements [`LockBackend::convert`].
    pub convert: bool,
    /// The backend implements [`LockBackend::inspect`].
    pub inspect: bool,
    /// The backend implements [`LockBackend::force_release`].
    pub force_release: bool,
    /// The backend implements [`LockBackend::list`].
    pub list: bool,
    /// The backend implements [`LockBackend::write_note`], and its inspections show the note of a key.
    pub notes: bool,
    /// The clock shows the time of day, see [`LockBackend::time_of_day`]. Jobs that run once are due by it.
    pub time_of_day: bool,
    /// Renewals can run on a separate connection and a separate thread.
    pub independent_renewal: bool,
    /// One call for several keys costs less than one call for each. The client then sends
    /// acquires and releases that are ready at the same time in one call ([`LockBackend::acquire`],
    /// [`LockBackend::release`]), and polls and renews keys together. Without it, each acquire and each
    /// release has a separate call, and so has each key that is polled or renewed. Leave it out if the keys of a call may
    /// be on several servers, as in a cluster: the answers to a call come together, so a server that
    /// doesn't answer would delay the renewals and releases of keys on all others.
    pub batches: bool,
    /// The longest lease that the backend grants. The client refuses a longer one with
    /// [`InvalidInput`](crate::InvalidInput), before any I/O.
    pub max_lease: Duration,
    /// The largest difference between two readings of the clock at the same moment, if its readings come from several machines
    /// or it moves in steps. Zero by default, and at most [`MAX_CLOCK_ERROR`](bounds::MAX_CLOCK_ERROR).
    ///
    /// Guards end that much earlier, and a lease below [four times it](bounds::LEASE_PER_CLOCK_ERROR) is
    /// [`InvalidInput`](crate::InvalidInput), before any I/O.
    pub clock_error: Duration,
}

impl Capabilities {
    /// Exclusive locks with a lease, and nothing else. A backend with these capabilities
    /// implements the required methods of [`LockBackend`], in about a hundred lines.
    pub const fn minimal() -> Self {
        Self::each(false)
    }

    /// All capabilities.
    pub const fn full() -> Self {
        Self::each(true)
    }

    const fn each(has: bool) -> Self {
        Self {
            queue: has,
            push: has,
            reachability: has,
            rw_locks: has,
            semaphores: has,
            reentrancy: has,
            convert: has,
            inspect: has,
            force_release: has,
            list: has,
            notes: has,
            time_of_day: has,
            independent_renewal: has,
            batches: has,
            max_lease: bounds::MAX_LEASE,
            clock_error: Duration::ZERO,
        }
    }
}

/// A message from the backend to a session that listens.
///
/// Notifications may be lost, delayed or duplicated. Waiters poll, so none of this is an error
/// (rule 11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notification {
    /// A queued attempt was granted. The notification *is* the offer: a grant that a renewal must confirm.
    Granted {
        /// Sequence of the attempt within the listening session.
        sequence: u64,
        /// Token of the epoch.
        token: FencingToken,
        /// Time that the offer had left at `stamp`.
        remaining: Duration,
        /// When the attempt was granted.
        stamp: Stamp,
    },
    /// A forced release revoked or removed the hold.
    Revoked {
        /// Sequence of the attempt that made the hold.
        sequence: u64,
        /// When the hold was revoked.
        stamp: Stamp,
    },
    /// Notifications may have been missed. Every waiter polls at once.
    Missed {
        /// `false` if the subscription is lost; `true` if it works again, or still works although a
        /// message was lost.
        listening: bool,
    },
}

/// A stream of notifications. It ends when the backend is closed, or when the server refuses to
/// subscribe again after a loss. Dropping it unsubscribes.
pub type Notifications = Pin<Box<dyn Stream<Item = Notification> + Send>>;

/// A connection to a lock service.
///
/// Implement this trait to bring leasehold to another store. The client builds waiting, retries,
/// renewal, validity and guards on top of it, so a backend contains none of them.
///
/// Every method that sends a command runs one atomic step in the store for each request.
/// [`machine`](crate::machine) defines these steps. The conformance suite checks a backend against
/// them.
///
/// # Contract
/// - **One attempt per call.** A method sends its command once. It may send it again only if it
///   certainly was not executed. It does not wait for the lock. It returns within
///   [`CALL_TIMEOUT`](crate::bounds::CALL_TIMEOUT), or the limit that the backend's user has set,
///   whatever the server does. The limit includes connecting.
/// - **One effect per operation.** A command that is delivered twice, or late, has the same effect
///   as one delivery. Each reply is true at its [`Stamp`].
/// - **The backend's clock decides.** Replies carry the *remaining* time, computed in the step that
///   granted or extended the hold, and the [`Stamp`] of that step.
/// - **Outcomes are typed.** Contention is a reply. An error means that there is no reply. Return
///   [`BackendError::Unavailable`] only if the command was certainly not executed. If in doubt,
///   return [`BackendError::OutcomeUnknown`].
/// - **A batch is not a transaction.** The result has one element for each request, in the same
///   order. Requests for one key are executed in the order of the batch, requests for different
///   keys in any order. A request that is refused or fails touches no other. A batch has at most
///   [`MAX_BATCH`](crate::bounds::MAX_BATCH) elements. [`convert`](Self::convert),
///   [`inspect`](Self::inspect), [`list`](Self::list), [`force_release`](Self::force_release) and
///   [`write_note`](Self::write_note) take one request, because they are rare and nobody sends several at once.
/// - **Cancel safety.** The caller may drop a method's future at any time. The command may then
///   have been executed or not, and the caller treats its outcome as unknown. Nothing else may be
///   left behind.
///
/// # Required methods
/// A backend must implement [`capabilities`](Self::capabilities), [`runtime`](Self::runtime),
/// [`hello`](Self::hello), [`acquire`](Self::acquire), [`renew`](Self::renew),
/// [`release`](Self::release) and [`close`](Self::close). The defaults of the commands and of
/// [`listen`](Self::listen) return [`BackendError::Unsupported`]. `capabilities` says which methods a
/// backend implements.
///
/// # Clone
/// The trait does not require `Clone`. Share a backend as `Arc<dyn LockBackend>`, which is a
/// backend too.
///
/// # Wrappers
/// A backend may wrap another one, for tracing, a key prefix or fault injection. A wrapper
/// implements every method: a default that returns "unsupported" would hide what the inner backend
/// supports. Put `#[deny(clippy::missing_trait_methods)]` on the implementation.
/// [`forward_lock_backend!`](crate::forward_lock_backend) writes the methods that the wrapper
/// doesn't change.
///
/// # Examples
/// A client calls these methods for you. To send one attempt yourself:
///
/// ```
/// use std::time::Duration;
///
/// use leasehold_api::{Acquire, AcquireReply, Key, LockBackend, LockSpec, Mode, Operation};
///
/// /// Tries once to lock `key` for 30 s.
/// async fn try_once(
///     backend: &dyn LockBackend,
///     key: Key,
///     operation: Operation,
/// ) -> Result<bool, Box<dyn std::error::Error>> {
///     let stamp = backend.hello().await?;
///     let deliver_before = stamp.at.saturating_add(Duration::from_secs(1));
///     let lease = Duration::from_secs(30);
///     let request = Acquire::new(
///         key, LockSpec::mutex(), Mode::Exclusive, operation, lease, deliver_before,
///     )?;
///     match backend.acquire(&[request]).await.remove(0)?.reply {
///         AcquireReply::Acquired(_) => Ok(true),
///         AcquireReply::Contended(contended) => {
///             println!("try again in {:?}", contended.retry_after);
///             Ok(false)
///         }
///         reply => Err(format!("unexpected: {reply:?}").into()),
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    note = "if `{Self}` is a future that connects, await it and handle its error first"
)]
#[async_trait]
pub trait LockBackend: fmt::Debug + Send + Sync + 'static {
    /// Returns what this backend supports.
    ///
    /// - The result is the same at every call.
    fn capabilities(&self) -> Capabilities;

    /// Returns the source of time, randomness and tasks for the client.
    fn runtime(&self) -> Arc<dyn Runtime>;

    /// Reads the backend's clock.
    ///
    /// - Checks that the server is usable, as far as that is cheap.
    /// - If keys have different clocks, reads any of them.
    async fn hello(&self) -> Result<Stamp, BackendError>;

    /// Returns the id of the clock that the next command for `key` reads, as far as the backend
    /// knows.
    ///
    /// The client computes the times in a request from the samples of this clock.
    /// - `None`, the default, means that all keys have the same clock. The client then uses the
    ///   clock of the last reply.
    /// - If the keys are spread over servers with separate clocks, return the clock of the key's
    ///   server. While it isn't known, return an id that no reply has. The client then calls
    ///   [`read_clock`](Self::read_clock).
    /// - The id may be outdated, for example after a failover. A request with times of another
    ///   clock may be refused as [`TooLate`](crate::AcquireReply::TooLate), and the client tries again.
    /// - Does no I/O.
    fn clock(&self, key: &Key) -> Option<ClockId> {
        let _ = key;
        None
    }

    /// Returns the address of the server that has this clock, for the log.
    ///
    /// The client warns if the clocks of two servers differ by more than the drift allowance.
    /// - `None`, the default, if the backend doesn't know. The log then shows the number of the clock.
    /// - The address contains no user and no password.
    /// - Does no I/O.
    fn clock_address(&self, clock: ClockId) -> Option<String> {
        let _ = clock;
        None
    }

    /// Returns the time of day at a time of the backend's clock: microseconds since 1970, UTC. Jobs are due by it.
    ///
    /// - The default is the same time: the clock shows the time of day.
    /// - Does no I/O.
    fn time_of_day(&self, at: ServerTime) -> ServerTime {
        at
    }

    /// Reads the clock that commands for `key` read.
    ///
    /// The default calls [`hello`](Self::hello). Implement it together with
    /// [`clock`](Self::clock).
    async fn read_clock(&self, key: &Key) -> Result<Stamp, BackendError> {
        let _ = key;
        self.hello().await
    }

    /// Checks what nobody can see from outside.
    ///
    /// The conformance suite calls it; clients never do.
    /// - The default, for a backend whose commands are one step in the store, finds nothing.
    /// - A backend that reads first and writes later checks that its store refuses a late write. The suite
    ///   can't send one: only a stalled process or network does.
    /// - Nobody has used `key`. The check may write to it, and to keys that begin with it.
    /// - What is wrong is the reason of a [`BackendError::Rejected`].
    async fn self_check(&self, key: &Key) -> Result<(), BackendError> {
        let _ = key;
        Ok(())
    }

    /// Subscribes to the notifications of a session.
    ///
    /// Requires [`Capabilities::push`].
    /// - Returns once the server has confirmed the subscription.
    /// - If the subscription is lost, the stream yields [`Notification::Missed`] twice: when the
    ///   backend notices the loss, and when the subscription works again.
    /// - A session may have several streams at a time, because the client subscribes again before it
    ///   drops a stream. Each gets every notification, and goes on when another one is dropped.
    /// - If the server then refuses the subscription, end the stream: the client calls `listen` again
    ///   every few seconds and reports why. A backend may instead do both itself.
    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        let _ = session;
        Err(BackendError::unsupported("listen"))
    }

    /// Tries to acquire keys, or to queue for them.
    ///
    /// - If an operation already holds or waits, the reply only reports that. The operation takes
    ///   nothing twice and extends nothing.
    /// - An acquire outside its delivery window is [`TooLate`](crate::AcquireReply::TooLate), whatever the
    ///   state of the key is.
    /// - Without [`Capabilities::queue`], [`wait`](Acquire::wait) is ignored, and a key that is not
    ///   free is [`Contended`](AcquireReply::Contended).
    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>>;

    /// Refreshes waiters and reports their state.
    ///
    /// Requires [`Capabilities::queue`].
    /// - Never creates a waiter.
    /// - Never extends an offer.
    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        let answer = |_| Err(BackendError::unsupported("poll"));
        batch.iter().map(answer).collect()
    }

    /// Extends holders, and confirms offers.
    ///
    /// - Never creates, revives or shortens a holder.
    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>>;

    /// Releases operations: removes the hold, the offer or the waiter, whichever exists.
    ///
    /// - If a release arrives before its acquire, the acquire is [`Stale`](crate::AcquireReply::Stale).
    /// - [`Released`](ReleaseReply::Released) is the reply of one execution only: the one that
    ///   removed the hold.
    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>>;

    /// Converts one hold of a reader/writer lock: downgrades or upgrades it.
    ///
    /// Requires [`Capabilities::convert`].
    /// - Changes nothing if the current epoch is not the one that the request names.
    async fn convert(&self, request: &Convert) -> Result<Stamped<ConvertReply>, BackendError> {
        let _ = request;
        Err(BackendError::unsupported("convert"))
    }

    /// Describes the holders and waiters of a key.
    ///
    /// Requires [`Capabilities::inspect`].
    /// - Changes nothing.
    async fn inspect(&self, key: &Key) -> Result<Stamped<InspectReply>, BackendError> {
        let _ = key;
        Err(BackendError::unsupported("inspect"))
    }

    /// Lists keys that begin with a text, a page at a time.
    ///
    /// Requires [`Capabilities::list`].
    /// - Every key that has a holder or a waiter from the first page to the last is in one of the pages. A
    ///   key that nobody has used for a while need not be.
    /// - It is no snapshot: a key that comes or goes meanwhile may be missing, and a key may come twice.
    /// - One page is a short call: it may not delay the commands of others. It may have no keys, also if
    ///   others follow.
    /// - Changes nothing.
    async fn list(&self, request: &List) -> Result<Listed, BackendError> {
        let _ = request;
        Err(BackendError::unsupported("list"))
    }

    /// Takes a key away from the holders that the request names by their tokens.
    ///
    /// Requires [`Capabilities::force_release`].
    /// - Never touches a holder of a later epoch.
    /// - A reader who joined a named epoch after the inspection is one of its holders.
    async fn force_release(
        &self,
        request: &ForceRelease,
    ) -> Result<Stamped<ForceReply>, BackendError> {
        let _ = request;
        Err(BackendError::unsupported("force_release"))
    }

    /// Leaves a note on a key that the caller holds.
    ///
    /// Requires [`Capabilities::notes`].
    /// - Acts only for a live hold, and only if the note is newer than the one that stands: by the token
    ///   of the hold, then by its version.
    /// - The note stands while its token is the last one of the key, and at least for
    ///   [`keep`](Note::keep).
    async fn write_note(&self, request: &Note) -> Result<Stamped<NoteReply>, BackendError> {
        let _ = request;
        Err(BackendError::unsupported("write_note"))
    }

    /// Closes the backend and its connections.
    ///
    /// - Later calls return [`BackendError::Closed`]. Other clients of the server go on.
    /// - Closing twice is fine.
    /// - Streams of [`listen`](Self::listen) end.
    async fn close(&self) -> Result<(), BackendError>;
}

/// Writes [`LockBackend`] methods that forward to the same method of another backend.
///
/// The first line, `|wrapper| inner`, names the backend to call. `inner` may be a block; it runs at
/// each call. The second line lists the methods to forward, or is `all`. `clock` also forwards
/// [`clock_address`](LockBackend::clock_address), and `read_clock` also forwards
/// [`self_check`](LockBackend::self_check): these two have no name of their own in the list.
///
/// The methods return the inner backend's futures as they are. An `async fn` would box each of
/// them once more.
///
/// ```
/// use async_trait::async_trait;
/// use leasehold_api::{
///     BackendError, LockBackend, Renew, RenewReply, Stamped, forward_lock_backend,
/// };
///
/// #[derive(Debug)]
/// struct Logged<B>(B);
///
/// #[async_trait]
/// #[deny(clippy::missing_trait_methods)]
/// impl<B: LockBackend> LockBackend for Logged<B> {
///     forward_lock_backend! {
///         |wrapper| wrapper.0;
///         capabilities runtime hello clock read_clock listen acquire poll release convert
///         inspect force_release list write_note close
///     }
///
///     async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
///         println!("renewing {} holds", batch.len());
///         self.0.renew(batch).await
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_lock_backend {
    (|$wrapper:ident| $inner:expr; all) => {
        $crate::forward_lock_backend! {
            |$wrapper| $inner;
            capabilities runtime hello clock read_clock listen acquire poll renew release convert
            inspect force_release list write_note close
        }
    };
    (|$wrapper:ident| $inner:expr; $($method:ident)+) => {
        $($crate::forward_lock_backend!(@ $method |$wrapper| $inner);)+
    };
    (@ capabilities |$wrapper:ident| $inner:expr) => {
        fn capabilities(&self) -> $crate::Capabilities {
            let $wrapper = self;
            ($inner).capabilities()
        }
    };
    (@ runtime |$wrapper:ident| $inner:expr) => {
        fn runtime(&self) -> ::std::sync::Arc<dyn $crate::Runtime> {
            let $wrapper = self;
            ($inner).runtime()
        }
    };
    (@ hello $($to:tt)+) => {
        $crate::forward_lock_backend!(@async hello() -> [$crate::Stamp] $($to)+);
    };
    (@ clock |$wrapper:ident| $inner:expr) => {
        fn clock(&self, key: &$crate::Key) -> ::std::option::Option<$crate::ClockId> {
            let $wrapper = self;
            ($inner).clock(key)
        }

        fn clock_address(
            &self,
            clock: $crate::ClockId,
        ) -> ::std::option::Option<::std::string::String> {
            let $wrapper = self;
            ($inner).clock_address(clock)
        }

        fn time_of_day(&self, at: $crate::ServerTime) -> $crate::ServerTime {
            let $wrapper = self;
            ($inner).time_of_day(at)
        }
    };
    (@ read_clock $($to:tt)+) => {
        $crate::forward_lock_backend!(
            @async read_clock(key: &'life1 [$crate::Key]) -> [$crate::Stamp] $($to)+
        );
        $crate::forward_lock_backend!(
            @async self_check(key: &'life1 [$crate::Key]) -> [()] $($to)+
        );
    };
    (@ listen $($to:tt)+) => {
        $crate::forward_lock_backend!(
            @async listen(session: [$crate::SessionId]) -> [$crate::Notifications] $($to)+
        );
    };
    (@ acquire $($to:tt)+) => {
        $crate::forward_lock_backend!(@batch acquire(Acquire) -> AcquireReply, $($to)+);
    };
    (@ poll $($to:tt)+) => {
        $crate::forward_lock_backend!(@batch poll(Poll) -> PollReply, $($to)+);
    };
    (@ renew $($to:tt)+) => {
        $crate::forward_lock_backend!(@batch renew(Renew) -> RenewReply, $($to)+);
    };
    (@ release $($to:tt)+) => {
        $crate::forward_lock_backend!(@batch release(Release) -> ReleaseReply, $($to)+);
    };
    (@ convert $($to:tt)+) => {
        $crate::forward_lock_backend!(@one convert(Convert) -> ConvertReply, $($to)+);
    };
    (@ inspect $($to:tt)+) => {
        $crate::forward_lock_backend!(@one inspect(Key) -> InspectReply, $($to)+);
    };
    (@ force_release $($to:tt)+) => {
        $crate::forward_lock_backend!(@one force_release(ForceRelease) -> ForceReply, $($to)+);
    };
    (@ list $($to:tt)+) => {
        $crate::forward_lock_backend!(
            @async list(request: &'life1 [$crate::List]) -> [$crate::Listed] $($to)+
        );
    };
    (@ write_note $($to:tt)+) => {
        $crate::forward_lock_backend!(@one write_note(Note) -> NoteReply, $($to)+);
    };
    (@ close $($to:tt)+) => {
        $crate::forward_lock_backend!(@async close() -> [()] $($to)+);
    };
    (@one $name:ident($request:ident) -> $reply:ident, $($to:tt)+) => {
        $crate::forward_lock_backend!(
            @async $name(request: &'life1 [$crate::$request]) -> [$crate::Stamped<$crate::$reply>]
            $($to)+
        );
    };
    (@batch $name:ident($request:ident) -> $reply:ident, $($to:tt)+) => {
        $crate::forward_lock_backend!(
            @future $name(batch: &'life1 [[$crate::$request]]) -> [::std::vec::Vec<
                ::std::result::Result<$crate::Stamped<$crate::$reply>, $crate::BackendError>,
            >]
            $($to)+
        );
    };
    (@async $name:ident($($argument:tt)*) -> [$output:ty] $($to:tt)+) => {
        $crate::forward_lock_backend!(
            @future $name($($argument)*) -> [::std::result::Result<$output, $crate::BackendError>]
            $($to)+
        );
    };
    (
        @future $name:ident($($argument:ident: $(&$life:lifetime)? [$type:ty])?) -> [$output:ty]
        |$wrapper:ident| $inner:expr
    ) => {
        fn $name<'life0, $($($life,)?)? 'async_trait>(
            &'life0 self,
            $($argument: $(&$life)? $type,)?
        ) -> $crate::BoxFuture<'async_trait, $output>
        where
            'life0: 'async_trait,
            $($($life: 'async_trait,)?)?
            Self: 'async_trait,
        {
            let $wrapper = self;
            ($inner).$name($($argument)?)
        }
    };
}

#[deny(clippy::missing_trait_methods)]
impl<T: LockBackend + ?Sized> LockBackend for Arc<T> {
    forward_lock_backend!(|pointer| **pointer; all);
}

#[deny(clippy::missing_trait_methods)]
impl<T: LockBackend + ?Sized> LockBackend for Box<T> {
    forward_lock_backend!(|pointer| **pointer; all);
}
