//! Errors and losses.

use std::time::Duration;

use crate::error::{BackendError, Cause, InvalidInput};
use crate::id::Key;
use crate::reply::{EndReason, Refused};
use crate::request::{Kind, LockSpec};
use crate::time::{FireTime, Rounded};

/// Why a call failed. Each variant says what to do next.
///
/// Contention is not an error. If another owner holds the lock, or the time to wait runs out, you
/// get an [`Outcome`](crate::Outcome).
///
/// The message does not contain the error of the client library. That is the
/// [`source`](std::error::Error::source), which error reports print.
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
    #[error("{}{reason}", about(key.as_ref()))]
    #[non_exhaustive]
    InvalidInput {
        /// The key of the handle or guard. `None` if there is none, as for an invalid key.
        key: Option<Key>,
        /// What is invalid.
        reason: InvalidInput,
    },
    /// The server could not be reached, and nothing changed. Try again later.
    #[error("the lock service is unavailable: {reason}")]
    #[non_exhaustive]
    Unavailable {
        /// What happened.
        reason: String,
        /// The client library's error. `reason` does not repeat it.
        source: Option<Cause>,
    },
    /// The server did not answer, so the call may or may not have taken effect. Try again later.
    ///
    /// The client releases in the background what the call may have left on the server. If that
    /// fails, it expires with its lease.
    #[error("the lock service did not answer; the outcome is unknown: {reason}")]
    #[non_exhaustive]
    OutcomeUnknown {
        /// What happened.
        reason: String,
        /// The client library's error. `reason` does not repeat it.
        source: Option<Cause>,
    },
    /// The server rejected the request, and would reject it again. Fix the configuration of the
    /// server or the client.
    #[error("the lock service rejected the request: {reason}")]
    #[non_exhaustive]
    Rejected {
        /// What the server said.
        reason: String,
        /// The client library's error. `reason` does not repeat it.
        source: Option<Cause>,
    },
    /// The state of the key does not allow the request, and waiting would not help. The reason
    /// says what to change.
    #[error("key {key:?}: the request was refused: {}", refusal(asked, reason))]
    #[non_exhaustive]
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
    #[non_exhaustive]
    ForeignValue {
        /// The key.
        key: Key,
        /// The type of the value, or its format version.
        found: String,
    },
    /// The backend does not support the operation, as its
    /// [`Capabilities`](crate::Capabilities) say.
    #[error("not supported: {what}")]
    #[non_exhaustive]
    Unsupported {
        /// The operation or feature.
        what: &'static str,
    },
    /// The client was shut down, or its backend was closed. Open a new client.
    #[error("the lock client is closed")]
    Closed,
    /// The guard was already released. Take the lock again.
    #[error("key {key:?}: the guard was already released")]
    #[non_exhaustive]
    Released {
        /// The key.
        key: Key,
    },
    /// The lock was lost. Stop the work that it protected. If the protected resource checks
    /// fencing tokens, it refuses a late write.
    #[error("key {key:?}: the lock was lost: {reason}")]
    #[non_exhaustive]
    Lost {
        /// The key.
        key: Key,
        /// Why the lock was lost.
        reason: Loss,
    },
    /// A time in the record of the job is further ahead of the server's clock than the window of the job, because the
    /// clock was wrong. [`Once::reset`](crate::Once::reset) forgets the record. Or the fire time that was asked for
    /// is more than 366 days ahead, or in a loop, more than a period: the clock was set back.
    #[error("key {key:?}: the fire time {fire} is {} ahead of the server's clock", Rounded(*ahead))]
    #[non_exhaustive]
    FireTimeAhead {
        /// The name of the job.
        key: Key,
        /// The fire time.
        fire: FireTime,
        /// How far it is ahead.
        ahead: Duration,
    },
}

impl Error {
    pub(crate) fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable {
            reason: reason.into(),
            source: None,
        }
    }

    /// Returns an error unless the backend has a capability.
    pub(crate) const fn require(has: bool, what: &'static str) -> Result<(), Self> {
        match has {
            true => Ok(()),
            false => Err(Self::Unsupported { what }),
        }
    }

    /// Returns the key that the error is about, if it is about a single key.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// if let Err(error) = locks.mutexes(["a", "b"])?.lock().await {
    ///     println!("{error}; about {:?}", error.key());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub const fn key(&self) -> Option<&Key> {
        match self {
            Self::Refused { key, .. }
            | Self::ForeignValue { key, .. }
            | Self::Released { key }
            | Self::Lost { key, .. }
            | Self::FireTimeAhead { key, .. } => Some(key),
            Self::InvalidInput { key, .. } => key.as_ref(),
            _ => None,
        }
    }

    /// Returns `true` if the same call may succeed later without any change.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// match locks.inspect("invoice:42").await {
    ///     Err(error) if error.is_transient() => println!("try again later: {error}"),
    ///     inspection => println!("{}", inspection?),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::OutcomeUnknown { .. })
    }
}

impl From<InvalidInput> for Error {
    fn from(reason: InvalidInput) -> Self {
        Self::InvalidInput { key: None, reason }
    }
}

impl InvalidInput {
    /// Converts the error of a handle or guard of `key` into the error that the user gets.
    pub(crate) fn on(self, key: &Key) -> Error {
        Error::InvalidInput {
            key: Some(key.clone()),
            reason: self,
        }
    }
}

impl BackendError {
    /// Converts the error of a call about `key` into the error that the user gets.
    pub(crate) fn on(self, key: &Key) -> Error {
        match self {
            Self::ForeignValue { found } => Error::ForeignValue {
                key: key.clone(),
                found,
            },
            other => other.about_no_key(),
        }
    }

    /// Converts the error of a call about no single key.
    pub(crate) fn about_no_key(self) -> Error {
        match self {
            Self::Unavailable { reason, source } => Error::Unavailable { reason, source },
            Self::OutcomeUnknown { reason, source } => Error::OutcomeUnknown { reason, source },
            Self::Rejected { reason, source } => Error::Rejected { reason, source },
            Self::ForeignValue { found } => Error::Rejected {
                reason: format!("a foreign value ({found})"),
                source: None,
            },
            Self::Unsupported { what } => Error::Unsupported { what },
            Self::Closed => Error::Closed,
        }
    }
}

fn about(key: Option<&Key>) -> String {
    key.map_or_else(String::new, |key| format!("key {key:?}: "))
}

pub(crate) fn refusal(asked: &LockSpec, reason: &Refused) -> String {
    match reason {
        Refused::Mismatch { lives_with } => mismatch(asked, lives_with),
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

/// Describes how the spec in use differs from the one that was asked for.
fn mismatch(asked: &LockSpec, lives_with: &LockSpec) -> String {
    let mut differences = Vec::new();
    let used = describe_kind(lives_with);
    if lives_with.kind() != asked.kind() {
        differences.push(format!("as a {used}, here as a {}", describe_kind(asked)));
    } else if lives_with.capacity() != asked.capacity() {
        differences.push(format!("as a {used}, here with {}", asked.capacity()));
    }
    let (used, here) = (lives_with.waiter_lease(), asked.waiter_lease());
    if used != here {
        differences.push(format!("with a waiter lease of {used:?}, here of {here:?}"));
    }
    if differences.is_empty() {
        differences.push("with other settings".into());
    }
    format!("the key is in use {}", differences.join("; "))
}

/// Describes the kind of lock that a key is in use as.
pub(crate) fn describe_kind(spec: &LockSpec) -> String {
    match spec.kind() {
        Kind::Mutex => "mutex".into(),
        Kind::RwLock => "reader/writer lock".into(),
        Kind::Semaphore if spec.capacity() == 1 => "semaphore with 1 permit".into(),
        Kind::Semaphore => format!("semaphore with {} permits", spec.capacity()),
    }
}

/// Why a lock was lost while its guard was in use: what the client noticed itself, or what the server
/// answered ([`EndReason`]).
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
    /// The server no longer knows the lock, and can't tell why. For example, it lost its data, the key was
    /// deleted, or the lease ran out and another client noticed it first.
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

#[cfg(test)]
mod tests {
    use std::error::Error as StdError;
    use std::time::Duration;

    use super::*;
    use crate::error::Chain;

    #[test]
    fn messages_say_what_happened() {
        let key = || Key::new("invoice:42").expect("valid");
        let refuse = |asked, reason| Error::Refused {
            key: key(),
            asked,
            reason,
        };
        let refused = |reason| refuse(LockSpec::mutex(), reason);
        let mismatch = |asked, lives_with| refuse(asked, Refused::Mismatch { lives_with });
        let semaphore = |permits| LockSpec::semaphore(permits).expect("valid");
        let other_settings = LockSpec::mutex().with_waiter_lease(Duration::from_secs(9));
        let lost = |reason| Error::Lost { key: key(), reason };
        let foreign = BackendError::foreign_value("list");
        let library_error = || std::io::Error::other("the library's error");
        let errors = [
            InvalidInput::setting("URL", "it has no host").into(),
            InvalidInput::setting("max_hold", "it must be more than zero").on(&key()),
            BackendError::unavailable("connection refused").on(&key()),
            BackendError::outcome_unknown("no answer within 1s").on(&key()),
            BackendError::rejected("NOAUTH Authentication required").on(&key()),
            mismatch(LockSpec::mutex(), LockSpec::rw_lock()),
            mismatch(LockSpec::mutex(), other_settings.expect("valid")),
            mismatch(semaphore(5), semaphore(3)),
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
            BackendError::unavailable("connecting to 10.0.0.7:6379 failed")
                .with_source(library_error())
                .on(&key()),
            BackendError::rejected("the server answered NOAUTH")
                .with_source(library_error())
                .with_context("connecting to 10.0.0.7:6379")
                .on(&key()),
        ];
        let lines: Vec<String> = errors
            .iter()
            .map(|error| Chain(error).to_string())
            .collect();
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn source_is_the_error_of_the_library() {
        let key = Key::new("k").expect("valid");
        let library_error = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let backend_error = BackendError::outcome_unknown("lost").with_source(library_error);
        let user_error = backend_error.clone().on(&key);
        for error in [&backend_error as &dyn StdError, &user_error] {
            let source = error.source().expect("a source");
            let source = source.downcast_ref::<std::io::Error>();
            let kind = source.map(std::io::Error::kind);
            assert_eq!(kind, Some(std::io::ErrorKind::BrokenPipe), "{error}");
        }
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
