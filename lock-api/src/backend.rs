//! The trait that a backend implements.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_core::Stream;
use futures_util::future::join_all;

use crate::error::BackendError;
use crate::id::{FencingToken, Key, SessionId};
use crate::reply::{
    AcquireReply, ConvertReply, ForceReply, InspectReply, PollReply, ReleaseReply, RenewReply,
};
use crate::request::{Acquire, Convert, ForceRelease, Poll, Release, Renew};
use crate::runtime::Runtime;
use crate::time::{Stamp, Stamped};

/// What a backend can do. The client adapts to it, and the conformance suite lists what it
/// leaves out because of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Waiters queue in the backend ([`LockBackend::poll`], `Acquire::wait`).
    pub queue: bool,
    /// [`LockBackend::listen`] delivers grants as they are made.
    pub push: bool,
    /// Reader/writer locks.
    pub rw_locks: bool,
    /// Semaphores.
    pub semaphores: bool,
    /// One owner may hold a key several times.
    pub reentrancy: bool,
    /// [`LockBackend::convert`].
    pub convert: bool,
    /// [`LockBackend::inspect`].
    pub inspect: bool,
    /// [`LockBackend::force_release`].
    pub force_release: bool,
    /// Tokens increase over the epochs of a key. Without it, no guard gives one.
    pub fencing_tokens: bool,
    /// Renewals can run on a connection and a thread of their own.
    pub independent_renewal: bool,
    /// A call for several keys costs less than a call for each, so that acquires and ends that
    /// are ready at the same time may travel together ([`LockBackend::acquire_all`],
    /// [`LockBackend::release`]). Leave it out where a call must keep to one key, as in a cluster.
    pub batches: bool,
}

impl Capabilities {
    /// Exclusive locks with a lease, and nothing else: `hello`, `acquire`, `renew` and `release`, in
    /// about a hundred lines.
    pub const fn minimal() -> Self {
        Self {
            queue: false,
            push: false,
            rw_locks: false,
            semaphores: false,
            reentrancy: false,
            convert: false,
            inspect: false,
            force_release: false,
            fencing_tokens: false,
            independent_renewal: false,
            batches: false,
        }
    }

    /// Everything.
    pub const fn full() -> Self {
        Self {
            queue: true,
            push: true,
            rw_locks: true,
            semaphores: true,
            reentrancy: true,
            convert: true,
            inspect: true,
            force_release: true,
            fencing_tokens: true,
            independent_renewal: true,
            batches: true,
        }
    }
}

/// What the backend tells a session that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notification {
    /// A queued attempt was granted: the notification *is* the offer.
    Granted {
        /// Sequence of the attempt within the session that listens.
        sequence: u64,
        /// Token of the epoch.
        token: FencingToken,
        /// Time that the offer had left at the stamp.
        remaining: Duration,
        /// When it was granted.
        stamp: Stamp,
    },
    /// A barging key became free: the attempt may poll now.
    WakeUp {
        /// Sequence of the attempt.
        sequence: u64,
        /// When.
        stamp: Stamp,
    },
    /// A forced release revoked or ended the hold.
    Revoked {
        /// Sequence of the attempt that holds.
        sequence: u64,
        /// When.
        stamp: Stamp,
    },
    /// Notifications may have been missed: every waiter polls at once.
    Missed {
        /// Whether the subscription stands again.
        listening: bool,
    },
}

/// A stream of notifications; dropping it ends the subscription. It ends only when the backend is
/// closed.
pub type Notifications = Pin<Box<dyn Stream<Item = Notification> + Send>>;

/// One lock service, one attempt at a time.
///
/// Implement this to bring leasehold to another store; hold one as `Arc<dyn LockBackend>`.
/// Waiting, retries, renewal, validity and guards exist once, above this trait, so a backend
/// contains none of them.
///
/// # Contract
/// - **One attempt per call.** A method sends its command once and does not wait for the lock. It
///   must end within [`CALL_TIMEOUT`](crate::bounds::CALL_TIMEOUT), whatever the server does.
/// - **One effect per operation.** Delivering a command twice, or late, has the effect of
///   delivering it once, and its reply is true when it is given.
/// - **The backend's clock decides.** Replies carry the time that is *left*, computed in the
///   execution that granted or extended, and the [`Stamp`] of that execution.
/// - **Outcomes are typed.** Contention is a reply. An error is for what prevented a reply; use
///   [`BackendError::Unavailable`] only if the command was certainly not executed, and
///   [`BackendError::OutcomeUnknown`] whenever that is in doubt.
/// - **A batch is many steps, not a transaction.** The answer has one element for each request,
///   in the same order; an error of one touches no other. A batch has at most
///   [`MAX_BATCH`](crate::bounds::MAX_BATCH) elements.
/// - **Cancel safety.** Dropping a method's future may leave the command executed or not, which
///   the caller then treats as outcome unknown; it must leave nothing else.
///
/// The meaning of each command is [`machine`](crate::machine); the conformance suite checks a
/// backend against it.
///
/// # What may be left out
/// Only [`acquire`](Self::acquire), [`renew`](Self::renew), [`release`](Self::release) and
/// [`hello`](Self::hello) must exist. The others answer [`BackendError::Unsupported`] unless
/// implemented, and [`capabilities`](Self::capabilities) says which are.
///
/// # Clone
/// The trait does not ask for `Clone`; share a backend as `Arc<dyn LockBackend>`, which is a
/// backend too.
///
/// # Wrappers
/// A backend around another one (tracing, a key prefix, fault injection) implements every method.
/// [`forward_lock_backend!`](crate::forward_lock_backend) writes those that it doesn't change. Deny
/// `clippy::missing_trait_methods` on such an implementation: a default that answers "unsupported"
/// would otherwise hide what the inner backend can do.
#[async_trait]
pub trait LockBackend: fmt::Debug + Send + Sync + 'static {
    /// What this backend can do; the same at every call.
    fn capabilities(&self) -> Capabilities;

    /// Where the client above takes time, randomness and tasks from.
    fn runtime(&self) -> Arc<dyn Runtime>;

    /// Reads the backend's clock.
    ///
    /// - Checks that the server can be used at all, as far as that is cheap.
    async fn hello(&self) -> Result<Stamp, BackendError>;

    /// Subscribes to the notifications of a session.
    ///
    /// Requires [`Capabilities::push`].
    /// - Returns once the subscription is confirmed by the server.
    /// - A lost subscription shows as [`Notification::Missed`], once when it is noticed and once when it
    ///   stands again.
    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        let _ = session;
        Err(BackendError::Unsupported { what: "listen" })
    }

    /// Tries to hold a key, or to queue for it.
    ///
    /// - An operation that is live only reports: it takes nothing twice and extends nothing.
    /// - Without [`Capabilities::queue`], `wait` is ignored and the answer is `Held`.
    async fn acquire(&self, request: &Acquire) -> Result<Stamped<AcquireReply>, BackendError>;

    /// Several acquires, each as [`acquire`](Self::acquire) does it, of one client and mostly of
    /// different keys.
    ///
    /// Asked for with [`Capabilities::batches`] only. Unless implemented, they are as many calls,
    /// all at once.
    /// - One that is refused or fails by itself changes nothing about the others.
    /// - Of two for one key, the first in the batch comes first.
    async fn acquire_all(
        &self,
        batch: &[Acquire],
    ) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        join_all(batch.iter().map(|request| self.acquire(request))).await
    }

    /// Refreshes places in the queue and reports on them.
    ///
    /// Requires [`Capabilities::queue`].
    /// - Never creates a place, never extends an offer.
    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        unsupported(batch.len(), "poll")
    }

    /// Extends holders.
    ///
    /// - Never creates, resurrects or shortens one.
    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>>;

    /// Ends operations: releases the hold, gives up the offer or leaves the queue, whichever
    /// there is.
    ///
    /// - An end that arrives before its acquire makes that acquire `Stale`.
    /// - `Released` is answered to one execution only, the one that ended the hold. Clients decide
    ///   by it who has taken a hand-off over.
    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>>;

    /// Turns one hold of a reader/writer lock into the other kind.
    ///
    /// Requires [`Capabilities::convert`].
    /// - Acts only in the epoch that the request names.
    async fn convert(&self, request: &Convert) -> Result<Stamped<ConvertReply>, BackendError> {
        let _ = request;
        Err(BackendError::Unsupported { what: "convert" })
    }

    /// Looks at a key, changing nothing.
    ///
    /// Requires [`Capabilities::inspect`].
    async fn inspect(&self, key: &Key) -> Result<Stamped<InspectReply>, BackendError> {
        let _ = key;
        Err(BackendError::Unsupported { what: "inspect" })
    }

    /// Takes a key away from those who were seen to hold it.
    ///
    /// Requires [`Capabilities::force_release`].
    /// - Never touches a later epoch than the tokens in the request.
    async fn force_release(
        &self,
        request: &ForceRelease,
    ) -> Result<Stamped<ForceReply>, BackendError> {
        let _ = request;
        Err(BackendError::Unsupported {
            what: "force_release",
        })
    }

    /// Closes connections; later calls answer [`BackendError::Closed`]. Closing twice is fine.
    async fn close(&self) -> Result<(), BackendError> {
        Ok(())
    }
}

fn unsupported<T>(len: usize, what: &'static str) -> Vec<Result<T, BackendError>> {
    (0..len)
        .map(|_| Err(BackendError::Unsupported { what }))
        .collect()
}

/// Writes the methods of a [`LockBackend`] that only call the same method of another backend.
///
/// `|wrapper| inner` says which backend they call. The names of the methods follow, or `all`. The
/// methods return the inner backend's own futures: an `async fn` in their place would box another
/// one around each. `inner` may be a block, whose statements run at each call.
///
/// ```
/// use async_trait::async_trait;
/// use leasehold_api::{BackendError, LockBackend, Renew, RenewReply, Stamped, forward_lock_backend};
///
/// #[derive(Debug)]
/// struct Logged<B>(B);
///
/// #[async_trait]
/// #[deny(clippy::missing_trait_methods)]
/// impl<B: LockBackend> LockBackend for Logged<B> {
///     forward_lock_backend! {
///         |wrapper| wrapper.0;
///         capabilities runtime hello listen acquire acquire_all poll end convert inspect
///         force_release close
///     }
///
///     async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
///         println!("renewing {}", batch.len());
///         self.0.renew(batch).await
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_lock_backend {
    (|$wrapper:ident| $inner:expr; all) => {
        $crate::forward_lock_backend! {
            |$wrapper| $inner;
            capabilities runtime hello listen acquire acquire_all poll renew release convert inspect
            force_release close
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
    (@ listen $($to:tt)+) => {
        $crate::forward_lock_backend!(
            @async listen(session: [$crate::SessionId]) -> [$crate::Notifications] $($to)+
        );
    };
    (@ acquire $($to:tt)+) => {
        $crate::forward_lock_backend!(@one acquire(Acquire) -> AcquireReply, $($to)+);
    };
    (@ acquire_all $($to:tt)+) => {
        $crate::forward_lock_backend!(@batch acquire_all(Acquire) -> AcquireReply, $($to)+);
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
    (@ close $($to:tt)+) => {
        $crate::forward_lock_backend!(@async close() -> [()] $($to)+);
    };
    (@one $name:ident($request:ident) -> $reply:ident, $($to:tt)+) => {
        $crate::forward_lock_backend!(
            @async $name(request: &'life1 [$crate::$request]) -> [$crate::Stamped<$crate::$reply>]
            $($to)+
        );
    };
    (@batch $name:ident($request:ident) -> $reply:ident, |$wrapper:ident| $inner:expr) => {
        fn $name<'life0, 'life1, 'async_trait>(
            &'life0 self,
            batch: &'life1 [$crate::$request],
        ) -> $crate::BoxFuture<
            'async_trait,
            ::std::vec::Vec<
                ::std::result::Result<$crate::Stamped<$crate::$reply>, $crate::BackendError>,
            >,
        >
        where
            'life0: 'async_trait,
            'life1: 'async_trait,
            Self: 'async_trait,
        {
            let $wrapper = self;
            ($inner).$name(batch)
        }
    };
    (
        @async $name:ident($($argument:ident: $(&$life:lifetime)? [$type:ty])?) -> [$output:ty]
        |$wrapper:ident| $inner:expr
    ) => {
        fn $name<'life0, $($($life,)?)? 'async_trait>(
            &'life0 self,
            $($argument: $(&$life)? $type,)?
        ) -> $crate::BoxFuture<
            'async_trait,
            ::std::result::Result<$output, $crate::BackendError>,
        >
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
