//! What an attempt to take a lock returns: the guard, or why there is none.

use std::fmt;
use std::time::Duration;

use crate::id::{Key, Label};
use crate::time::Rounded;

/// The result of an attempt to take a lock, if the attempt may end without it.
///
/// All `try_…` methods return it. `G` is the guard, of one lock or a [`MultiGuard`](crate::MultiGuard), or the output
/// of the body of [`with`](Outcome::with). There is no third
/// variant, so a `match` needs no other arm.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient, Outcome};
/// # use std::time::Duration;
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// match locks.mutex("invoice:42")?.try_lock_for(Duration::from_secs(5)).await? {
///     Outcome::Acquired(guard) => println!("acquired: {}", guard.key()),
///     Outcome::Contended(contention) => println!("{contention}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an outcome may carry a guard, and a dropped guard releases its lock"]
pub enum Outcome<G> {
    /// You have the lock.
    Acquired(G),
    /// Another owner has the lock, or others wait for it, and your time to wait is over.
    Contended(Contention),
}

impl<G> Outcome<G> {
    /// Returns the guard, or `None` if you don't have the lock.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// if let Some(guard) = locks.mutex("invoice:42")?.try_lock().await?.into_guard() {
    ///     guard.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_guard(self) -> Option<G> {
        match self {
            Self::Acquired(guard) => Some(guard),
            Self::Contended(_) => None,
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

    /// Applies `f` to the guard, and leaves a [`Contention`] as it is.
    ///
    /// # Examples
    /// ```
    /// # use leasehold_api::Outcome;
    /// let length = Outcome::Acquired("guard").map(str::len);
    /// assert_eq!(length.into_guard(), Some(5));
    /// ```
    pub fn map<H>(self, f: impl FnOnce(G) -> H) -> Outcome<H> {
        match self {
            Self::Acquired(guard) => Outcome::Acquired(f(guard)),
            Self::Contended(contention) => Outcome::Contended(contention),
        }
    }
}

/// Why you don't have the lock: another owner has it, or others wait for it.
///
/// What the client knows comes from the last reply of the server.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient, Outcome};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// if let Outcome::Contended(contention) = locks.mutex("report")?.try_lock().await? {
///     println!("{contention}"); // key "report" is held by "billing-7"; waited 2 ms
///     println!("try again in {:?}", contention.retry_after);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Contention {
    /// The key that was not free. If you asked for several, the first that the call could not lock.
    pub key: Key,
    /// `true` if you waited until your time was over; `false` if you asked not to wait, and the key is
    /// not free now.
    pub timed_out: bool,
    /// Label of the holder whose lease ends first. `None` if the server didn't say: after a wait in
    /// the queue, or if the key is free for the waiters before you, or if it has very many holders.
    /// [`LockClient::inspect`](crate::LockClient::inspect) lists all holders.
    pub holder: Option<Label>,
    /// When to try again: a lease may end then. A release may free the key sooner.
    ///
    /// After a wait in the queue this is at most 1 s, because the server tells a waiter no more.
    /// Zero if that time is over, or if the server said nothing.
    pub retry_after: Duration,
    /// How long the call took.
    pub waited: Duration,
    /// An upper bound on the waiters ahead of you. `None` if you were not in the queue.
    pub ahead: Option<u32>,
}

impl fmt::Display for Contention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {:?} is ", self.key)?;
        match &self.holder {
            Some(label) => write!(f, "held by {label:?}")?,
            None => f.write_str("not free")?,
        }
        let waited = if self.timed_out {
            "timed out after"
        } else {
            "waited"
        };
        write!(f, "; {waited} {}", Rounded(self.waited))?;
        match self.ahead {
            Some(1) => f.write_str(", 1 waiter ahead"),
            Some(ahead) => write!(f, ", {ahead} waiters ahead"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contention_says_who_and_how_long() {
        let seen = |timed_out, holder: Option<&str>, waited, ahead| {
            let contention = Contention {
                key: Key::new("invoice:42").expect("valid"),
                timed_out,
                holder: holder.map(|label| Label::new(label).expect("valid")),
                retry_after: Duration::ZERO,
                waited: Duration::from_micros(waited),
                ahead,
            };
            contention.to_string()
        };
        let held = "key \"invoice:42\" is held by \"worker-3\"; ";
        assert_eq!(
            seen(true, Some("worker-3"), 5_000_000, Some(2)),
            format!("{held}timed out after 5 s, 2 waiters ahead")
        );
        assert_eq!(
            seen(false, Some("worker-3"), 2_345, None),
            format!("{held}waited 2.3 ms")
        );
        assert_eq!(
            seen(true, None, 61_500_000, Some(1)),
            "key \"invoice:42\" is not free; timed out after 62 s, 1 waiter ahead"
        );
    }
}
