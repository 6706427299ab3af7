//! Errors, outcomes and losses: the results of a user's calls.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{BackendError, InvalidInput};
use crate::id::Key;
use crate::reply::{Contention, EndReason, Refused};
use crate::request::{Kind, LockSpec};

/// The error of a client library.
type Cause = Arc<dyn StdError + Send + Sync>;

/// Why a call failed. Each variant says what to do next.
///
/// Contention is not an error. If another owner holds the lock, or the time to wait runs out, you
/// get an [`Outcome`].
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// match locks.mutex("invoice:42")?.try_lock().await {
///     Ok(outcome) => println!("acquired: {}", outcome.is_acquired()),
///     Err(error) if error.is_transient() => println!("try again later: {error}"),
///     Err(error) => return Err(error),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input is outside its limits. Nothing was sent. Fix the caller.
    #[error("invalid input: {0}")]
    InvalidInput(InvalidInput),
    /// The server could not be reached, and nothing changed. Try again later.
    #[error("the lock service is unavailable: {reason}")]
    Unavailable {
        /// What happened.
        reason: String,
        /// The client library's error, for programs that downcast it.
        ///
        /// `reason` already contains its message. It isn't the [`source`](StdError::source),
        /// because error reports would then print the message twice.
        cause: Option<Cause>,
    },
    /// The server did not answer, so the call may or may not have taken effect. Try again later.
    ///
    /// The client releases in the background what the call may have left on the server. If that
    /// fails, it expires with its lease.
    #[error("the lock service did not answer; the outcome is unknown: {reason}")]
    OutcomeUnknown {
        /// What happened.
        reason: String,
        /// The client library's error, for programs that downcast it.
        ///
        /// `reason` already contains its message. It isn't the [`source`](StdError::source),
        /// because error reports would then print the message twice.
        cause: Option<Cause>,
    },
    /// The server rejected the request, and would reject it again. Fix the configuration of the
    /// server or the client.
    #[error("the lock service rejected the request: {reason}")]
    Rejected {
        /// What the server said.
        reason: String,
        /// The client library's error, for programs that downcast it.
        ///
        /// `reason` already contains its message. It isn't the [`source`](StdError::source),
        /// because error reports would then print the message twice.
        cause: Option<Cause>,
    },
    /// The state of the key does not allow the request, and waiting would not help. The reason
    /// says what to change.
    #[error("key {key:?}: the request was refused: {}", refusal(asked, reason))]
    Refused {
        /// The key.
        key: Key,
        /// The spec that was requested for the key.
        asked: LockSpec,
        /// Why the request was refused.
        reason: Refused,
    },
    /// The key holds a value that is not a lock of this library, or a lock in an unknown format.
    /// It was not changed. Use another key or another prefix.
    #[error("key {key:?} holds a foreign value ({found}); it was not changed")]
    ForeignValue {
        /// The key.
        key: Key,
        /// The type of the value, or its format version.
        found: String,
    },
    /// The backend does not support the operation, as its
    /// [`Capabilities`](crate::Capabilities) say.
    #[error("not supported: {what}")]
    Unsupported {
        /// The operation or feature.
        what: &'static str,
    },
    /// The client was shut down, or its backend was closed. Open a new client.
    #[error("the lock client is closed")]
    Closed,
    /// The guard was already released. Take the lock again.
    #[error("key {key:?}: the guard was already released")]
    Released {
        /// The key.
        key: Key,
    },
    /// The lock was lost. Stop the work that it protected. If the protected resource checks
    /// fencing tokens, it refuses a late write.
    #[error("key {key:?}: the lock was lost: {reason}")]
    Lost {
        /// The key.
        key: Key,
        /// Why the lock was lost.
        reason: Loss,
    },
    /// The hand-off can no longer be adopted: another call has adopted it, or its hold is gone.
    /// Take the lock again.
    #[error(
        "key {key:?}: the hand-off can no longer be adopted: {}",
        hold_ended(reason)
    )]
    HandoffSpent {
        /// The key.
        key: Key,
        /// Why the hold ended, as far as the server knows.
        reason: EndReason,
    },
}

/// The error of a backend without fencing tokens.
pub(crate) const NO_TOKENS: Error = Error::Unsupported {
    what: "fencing tokens",
};

impl Error {
    /// Returns the key that the error is about, if it is about a single key.
    ///
    /// # Examples
    /// ```
    /// # use leasehold_api::{Error, Key};
    /// let key = Key::new("invoice:42")?;
    /// assert_eq!(Error::Released { key: key.clone() }.key(), Some(&key));
    /// assert_eq!(Error::Closed.key(), None);
    /// # Ok::<(), Error>(())
    /// ```
    pub const fn key(&self) -> Option<&Key> {
        match self {
            Self::Refused { key, .. }
            | Self::ForeignValue { key, .. }
            | Self::Released { key }
            | Self::Lost { key, .. }
            | Self::HandoffSpent { key, .. } => Some(key),
            _ => None,
        }
    }

    /// Returns `true` if the same call may succeed later without any change.
    ///
    /// # Examples
    /// ```
    /// # use leasehold_api::Error;
    /// let outage = Error::Unavailable { reason: "connection refused".into(), cause: None };
    /// assert!(outage.is_transient());
    /// assert!(!Error::Closed.is_transient());
    /// ```
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::OutcomeUnknown { .. })
    }
}

// `InvalidInput` isn't the `source`, because reports would then print its message twice.
impl From<InvalidInput> for Error {
    fn from(error: InvalidInput) -> Self {
        Self::InvalidInput(error)
    }
}

impl BackendError {
    /// Converts the error of a call about `key` into the error that the user gets.
    pub(crate) fn on(self, key: &Key) -> Error {
        match self {
            Self::Unavailable { reason, cause } => Error::Unavailable { reason, cause },
            Self::OutcomeUnknown { reason, cause } => Error::OutcomeUnknown { reason, cause },
            Self::Rejected { reason, cause } => Error::Rejected { reason, cause },
            Self::ForeignValue { found } => Error::ForeignValue {
                key: key.clone(),
                found,
            },
            Self::Unsupported { what } => Error::Unsupported { what },
            Self::Closed => Error::Closed,
        }
    }
}

/// Describes why a request was refused.
fn refusal(asked: &LockSpec, reason: &Refused) -> String {
    match reason {
        Refused::Stale => "a later attempt of this client reached the server first".into(),
        Refused::TooLate => "the attempt reached the server too late".into(),
        Refused::Mismatch { lives_with } => format!(
            "the key was requested as a {}, but is in use as a {}",
            describe(asked),
            describe(lives_with)
        ),
        Refused::QueueFull => "the queue of the key is full".into(),
        Refused::HoldersFull => "the key has the maximum number of holders".into(),
        Refused::HoldLimit => "the owner has the maximum number of nested holds".into(),
        Refused::WouldDeadlock => {
            "the owner has a read guard and would wait for itself; upgrade that guard instead"
                .into()
        }
        Refused::FloorTooHigh => {
            "the highest fencing token seen is too far ahead of the server's clock".into()
        }
    }
}

/// Describes how the hold of a hand-off ended.
const fn hold_ended(reason: &EndReason) -> &'static str {
    match reason {
        EndReason::Expired => "its lease ran out",
        EndReason::Forced => "the lock was released by force",
        EndReason::Released | EndReason::Unknown => "it was already adopted, or the lock is gone",
    }
}

/// Describes a spec with every setting that all users of a key must share.
fn describe(spec: &LockSpec) -> String {
    format!(
        "{} (policy {:?}, waiter lease {:?})",
        describe_kind(spec),
        spec.policy(),
        spec.waiter_lease()
    )
}

/// Describes the kind of lock that a key is in use as.
pub(crate) fn describe_kind(spec: &LockSpec) -> String {
    match spec.kind() {
        Kind::Mutex => "mutex".into(),
        Kind::RwLock => "reader/writer lock".into(),
        Kind::Semaphore => format!("semaphore of {}", spec.capacity()),
    }
}

/// Why a lock was lost while its guard was in use.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient, Loss};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let guard = locks.mutex("invoice:42")?.lock().await?;
/// match guard.lost().await {
///     Loss::Forced => println!("an operator released the lock"),
///     loss => println!("stop the work: {loss}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The guard's local deadline passed before a renewal succeeded.
    #[error("the lease ran out before it could be renewed")]
    Deadline,
    /// The server reports that the lease ran out.
    #[error("the lease expired on the server")]
    Expired,
    /// The lock was [released by force](crate::LockClient::force_release).
    #[error("it was released by force")]
    Forced,
    /// The server no longer knows the lock: the server lost its data, or the key was deleted.
    #[error("the server no longer knows it")]
    Unknown,
    /// The server's clock was stepped, so its leases can't be trusted.
    #[error("the server's clock was stepped")]
    ClockStepped,
    /// The guard reached its [`max_hold`](crate::Mutex::max_hold).
    #[error("it reached its maximum hold time")]
    MaxHold,
    /// The client was shut down while the guard was in use.
    #[error("the client was shut down")]
    ClientClosed,
}

impl From<EndReason> for Loss {
    fn from(reason: EndReason) -> Self {
        match reason {
            EndReason::Expired => Self::Expired,
            EndReason::Forced => Self::Forced,
            EndReason::Released | EndReason::Unknown => Self::Unknown,
        }
    }
}

/// The result of an attempt to take a lock, if the attempt may end without it.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient, Outcome};
/// # use std::time::Duration;
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// match locks.mutex("invoice:42")?.try_lock_for(Duration::from_secs(5)).await? {
///     Outcome::Acquired(guard) => println!("acquired: {}", guard.key()),
///     Outcome::Held(contention) => println!("held by {:?}", contention.holder),
///     Outcome::TimedOut(timed_out) => println!("gave up after {:?}", timed_out.waited),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an outcome may carry a guard, and a dropped guard releases its lock"]
pub enum Outcome<G> {
    /// You have the lock.
    Acquired(G),
    /// Another owner has the lock, or others wait for it. Only the `try_…` methods return this.
    Held(Contention),
    /// The time to wait ran out. Only the `try_…_for` methods return this.
    TimedOut(TimedOut),
}

/// Details of a wait that timed out.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient, Outcome};
/// # use std::time::Duration;
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let report = locks.mutex("report")?;
/// if let Outcome::TimedOut(timed_out) = report.try_lock_for(Duration::from_secs(5)).await? {
///     println!("waited {:?}, {:?} waiters ahead", timed_out.waited, timed_out.ahead);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TimedOut {
    /// How long the call took.
    pub waited: Duration,
    /// An upper bound on the waiters ahead of this one, from the last reply of the server. `None`
    /// if this one was not in the queue.
    pub ahead: Option<u32>,
}

impl<G> Outcome<G> {
    /// Returns the guard, or `None` if you don't have the lock.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// if let Some(guard) = locks.mutex("invoice:42")?.try_lock().await?.acquired() {
    ///     guard.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquired(self) -> Option<G> {
        match self {
            Self::Acquired(guard) => Some(guard),
            Self::Held(_) | Self::TimedOut(_) => None,
        }
    }

    /// Returns `true` if you have the lock.
    ///
    /// # Examples
    /// ```
    /// # use leasehold_api::Outcome;
    /// assert!(Outcome::Acquired("a guard").is_acquired());
    /// ```
    pub const fn is_acquired(&self) -> bool {
        matches!(self, Self::Acquired(_))
    }

    /// Applies `f` to the guard, and leaves the other outcomes as they are.
    ///
    /// # Examples
    /// ```
    /// # use leasehold_api::Outcome;
    /// let length = Outcome::Acquired("guard").map(str::len);
    /// assert_eq!(length.acquired(), Some(5));
    /// ```
    pub fn map<H>(self, f: impl FnOnce(G) -> H) -> Outcome<H> {
        match self {
            Self::Acquired(guard) => Outcome::Acquired(f(guard)),
            Self::Held(contention) => Outcome::Held(contention),
            Self::TimedOut(timed_out) => Outcome::TimedOut(timed_out),
        }
    }
}

/// The result of releasing a guard.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient, ReleaseOutcome};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let guard = locks.mutex("invoice:42")?.lock().await?;
/// match guard.release().await? {
///     ReleaseOutcome::Released { .. } => println!("released"),
///     ReleaseOutcome::NotHeld(reason) => println!("the lock was already gone: {reason:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReleaseOutcome {
    /// The hold was released.
    Released {
        /// Holds of the same owner that are left on the key. It is 0 unless the handle is
        /// reentrant.
        holds_left: u32,
    },
    /// The server no longer had the hold, and another owner may have the lock by now. Work after
    /// the loss was not protected.
    NotHeld(EndReason),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_happened() {
        let key = || Key::new("invoice:42").expect("valid");
        let refused = |reason| Error::Refused {
            key: key(),
            asked: LockSpec::mutex(),
            reason,
        };
        let lost = |reason| Error::Lost { key: key(), reason };
        let foreign = BackendError::ForeignValue {
            found: "list".into(),
        };
        let errors = [
            Error::InvalidInput(InvalidInput::KeyLength { bytes: 0 }),
            BackendError::unavailable("connection refused").on(&key()),
            BackendError::outcome_unknown("no answer within 1s").on(&key()),
            BackendError::rejected("NOAUTH Authentication required").on(&key()),
            refused(Refused::Stale),
            refused(Refused::TooLate),
            refused(Refused::Mismatch {
                lives_with: LockSpec::rw_lock(),
            }),
            refused(Refused::QueueFull),
            refused(Refused::HoldersFull),
            refused(Refused::HoldLimit),
            refused(Refused::WouldDeadlock),
            refused(Refused::FloorTooHigh),
            foreign.on(&key()),
            Error::Unsupported { what: "convert" },
            Error::Closed,
            Error::Released { key: key() },
            lost(Loss::Deadline),
            lost(Loss::Expired),
            lost(Loss::Forced),
            lost(Loss::Unknown),
            lost(Loss::ClockStepped),
            lost(Loss::MaxHold),
            lost(Loss::ClientClosed),
            Error::HandoffSpent {
                key: key(),
                reason: EndReason::Released,
            },
            Error::InvalidInput(InvalidInput::KeyCount { asked: 65 }),
            Error::InvalidInput(InvalidInput::RepeatedKey { key: key() }),
        ];
        // No error has a source, so a report of the whole chain prints each message once.
        assert!(errors.iter().all(|error| error.source().is_none()));
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn only_outages_are_transient() {
        let key = Key::new("k").expect("valid");
        assert!(BackendError::unavailable("x").on(&key).is_transient());
        assert!(BackendError::outcome_unknown("x").on(&key).is_transient());
        assert!(!BackendError::rejected("x").on(&key).is_transient());
        assert!(!Error::Closed.is_transient());
    }
}
