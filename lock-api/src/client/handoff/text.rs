//! A hand-off and its text.

use std::error::Error as StdError;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::bounds::{MAX_HANDOFF_TEXT, MAX_LEASE, MAX_WAITER_LEASE};
use crate::client::error::Error;
use crate::error::InvalidInput;
use crate::id::{FencingToken, Key, Operation, OwnerId, SessionId};
use crate::reply::EndReason;
use crate::request::{Kind, Mode};
use crate::time::{ServerTime, micros};

/// First field of the text: the name and version of the format.
const FORMAT: &str = "leasehold-handoff-1";

/// A held lock that is passed to another function, client or process.
///
/// [`Guard::into_handoff`](crate::Guard::into_handoff) makes a hand-off, and
/// [`LockClient::adopt`](crate::LockClient::adopt) turns it into a guard again.
///
/// - **It is a secret.** A hand-off, or its [text](Self::to_secret_text), gives access to the lock
///   in the name of the client that made it. Treat it like a password. `Debug` shows only the key,
///   the kind of guard and the token.
/// - **It is adopted once.** The text can be copied, but at most one adopter gets a guard.
/// - **It expires.** The hold lasts for one lease, counted from when the hand-off was made. Nobody
///   renews it before it is adopted. If you drop a hand-off, the lock stays held until then.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Handoff, LockClient, MutexGuard};
/// # async fn example(sender: LockClient, receiver: LockClient)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let guard = sender.mutex("report")?.lock().await?;
/// let secret: String = guard.into_handoff().await?.to_secret_text();
///
/// // … in another process …
/// let handoff: Handoff = secret.parse()?;
/// let guard: MutexGuard = receiver.adopt(handoff).await?;
/// # Ok(())
/// # }
/// ```
#[derive(PartialEq, Eq)]
#[must_use = "a hand-off that nobody adopts keeps the lock until its lease expires"]
pub struct Handoff {
    pub(crate) key: Key,
    pub(crate) kind: Kind,
    pub(crate) mode: Mode,
    pub(crate) operation: Operation,
    /// Sequence of the transfer hold. Only one adopter can release it.
    pub(crate) transfer_hold: u64,
    pub(crate) token: FencingToken,
    pub(crate) lease: Duration,
    pub(crate) waiter_lease: Duration,
    /// When a fixed lease ends.
    pub(crate) fixed_until: Option<ServerTime>,
    /// When `max_hold` ends.
    pub(crate) max_until: Option<ServerTime>,
    pub(crate) adoption: Adoption,
}

/// Whether this value has released the transfer hold. Not part of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adoption {
    No,
    InDoubt,
    Yes,
    /// The transfer hold is gone, and the answer that named its adopter is lost.
    Never(EndReason),
}

impl fmt::Debug for Handoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handoff")
            .field("key", &self.key)
            .field("holds", &guard_name(self.kind, self.mode))
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

pub(crate) const fn guard_name(kind: Kind, mode: Mode) -> &'static str {
    match (kind, mode) {
        (Kind::Mutex, _) => "mutex guard",
        (Kind::RwLock, Mode::Shared) => "read guard",
        (Kind::RwLock, _) => "write guard",
        (Kind::Semaphore, _) => "permit guard",
    }
}

impl Handoff {
    /// Returns the key of the lock.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let handoff = locks.mutex("report")?.lock().await?.into_handoff().await?;
    /// assert_eq!(handoff.key().as_str(), "report");
    /// # Ok(())
    /// # }
    /// ```
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the kind of the lock.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, Kind, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let handoff = locks.mutex("report")?.lock().await?.into_handoff().await?;
    /// assert_eq!(handoff.kind(), Kind::Mutex);
    /// # Ok(())
    /// # }
    /// ```
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns whether the lock is held for reading or exclusively.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient, Mode};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let handoff = locks.mutex("report")?.lock().await?.into_handoff().await?;
    /// assert_eq!(handoff.mode(), Mode::Exclusive);
    /// # Ok(())
    /// # }
    /// ```
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the fencing token that the guard had when it was handed off.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let handoff = locks.mutex("report")?.lock().await?.into_handoff().await?;
    /// println!("handed off with token {}", handoff.fencing_token());
    /// # Ok(())
    /// # }
    /// ```
    pub const fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// Returns the hand-off as a line of ASCII. **The text is a secret**: keep it out of logs, and
    /// send it only where you would send a password.
    ///
    /// The receiver parses it with `FromStr`. The text has at most
    /// [`MAX_HANDOFF_TEXT`](crate::bounds::MAX_HANDOFF_TEXT) bytes.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, Handoff, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let handoff = locks.mutex("report")?.lock().await?.into_handoff().await?;
    /// let secret = handoff.to_secret_text();
    ///
    /// // … in another process …
    /// let handoff: Handoff = secret.parse()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn to_secret_text(&self) -> String {
        let form = match (self.kind, self.mode) {
            (Kind::RwLock, Mode::Shared) => "read",
            (Kind::RwLock, _) => "write",
            (Kind::Mutex | Kind::Semaphore, _) => "mutex",
        };
        let micros_or_zero = |until: Option<ServerTime>| until.map_or(0, ServerTime::as_micros);
        format!(
            "{FORMAT}:{form}:{}:{:016x}:{}:{}:{}:{}:{}:{}:{}:{}",
            hex(self.operation.session.as_bytes()),
            self.operation.owner.as_u64(),
            self.operation.sequence,
            self.transfer_hold,
            self.token.get(),
            micros(self.lease),
            micros(self.waiter_lease),
            micros_or_zero(self.fixed_until),
            micros_or_zero(self.max_until),
            hex(self.key.as_str().as_bytes()),
        )
    }
}

/// Parses the text of [`Handoff::to_secret_text`]. Does no I/O.
///
/// # Errors
/// [`InvalidInput::HandoffText`] for any other text. The error does not show the text.
impl FromStr for Handoff {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        if text.len() > MAX_HANDOFF_TEXT {
            return Err(bad_text("it is too long"));
        }
        let mut fields = text.trim().split(':');
        let format = fields.next().unwrap_or_default();
        if format != FORMAT {
            let other_version = format.starts_with("leasehold-handoff-");
            return Err(bad_text(if other_version {
                "its format version is unknown"
            } else {
                "the text does not start with its format name"
            }));
        }
        let handoff = parse_fields(&mut fields).ok_or(bad_text("a field is missing or damaged"))?;
        match fields.next() {
            None => Ok(handoff),
            Some(_) => Err(bad_text("it has too many fields")),
        }
    }
}

const fn bad_text(problem: &'static str) -> InvalidInput {
    InvalidInput::HandoffText { problem }
}

fn parse_fields<'a>(fields: &mut impl Iterator<Item = &'a str>) -> Option<Handoff> {
    let (kind, mode) = match fields.next()? {
        "mutex" => (Kind::Mutex, Mode::Exclusive),
        "read" => (Kind::RwLock, Mode::Shared),
        "write" => (Kind::RwLock, Mode::Exclusive),
        _ => return None,
    };
    let session = SessionId::from_bytes(unhex(fields.next()?)?.try_into().ok()?);
    let owner = u64::from_str_radix(fields.next()?, 16).ok()?;
    let mut number = || fields.next()?.parse::<u64>().ok();
    let (sequence, transfer_hold, token) = (number()?, number()?, number()?);
    let lease = duration(number()?, MAX_LEASE)?;
    let waiter_lease = duration(number()?, MAX_WAITER_LEASE)?;
    let time = |micros: u64| (micros > 0).then_some(ServerTime::from_micros(micros));
    let (fixed_until, max_until) = (time(number()?), time(number()?));
    let key = String::from_utf8(unhex(fields.next()?)?).ok()?;
    Some(Handoff {
        key: Key::new(key).ok()?,
        kind,
        mode,
        operation: Operation {
            session,
            sequence,
            owner: OwnerId::from_u64(owner),
        },
        transfer_hold,
        token: FencingToken::new(token),
        lease,
        waiter_lease,
        fixed_until,
        max_until,
        adoption: Adoption::No,
    })
}

fn duration(micros: u64, max: Duration) -> Option<Duration> {
    let duration = Duration::from_micros(micros);
    (!duration.is_zero() && duration <= max).then_some(duration)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match *pair {
            [high, low] => u8::try_from(digit(high)? * 16 + digit(low)?).ok(),
            _ => None,
        })
        .collect()
}

/// The error of a failed [`into_handoff`](crate::Guard::into_handoff) or
/// [`adopt`](crate::LockClient::adopt), with the guard or the hand-off that was passed in.
///
/// The `?` operator converts it into an [`Error`], and drops the guard or the hand-off.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let guard = locks.mutex("report")?.lock().await?;
/// match guard.into_handoff().await {
///     Ok(handoff) => println!("{handoff:?}"),
///     Err(failed) => {
///         eprintln!("not handed off: {failed}");
///         failed.given_back().release().await?;
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct HandoffFailed<T>(Box<(Error, T)>);

impl<T> HandoffFailed<T> {
    pub(crate) fn new(error: Error, given_back: T) -> Self {
        Self(Box::new((error, given_back)))
    }

    /// Returns why the call failed.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// if let Err(failed) = locks.mutex("report")?.lock().await?.into_handoff().await {
    ///     println!("try again: {}", failed.error().is_transient());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub const fn error(&self) -> &Error {
        &self.0.0
    }

    /// Returns the guard or the hand-off, so you can use it again. A dropped guard releases its
    /// lock.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// if let Err(failed) = locks.mutex("report")?.lock().await?.into_handoff().await {
    ///     failed.given_back().release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn given_back(self) -> T {
        self.0.1
    }

    /// Returns the error, and the guard or the hand-off.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// if let Err(failed) = locks.mutex("report")?.lock().await?.into_handoff().await {
    ///     let (error, guard) = failed.into_parts();
    ///     eprintln!("{}: {error}", guard.key());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_parts(self) -> (Error, T) {
        *self.0
    }
}

impl<T> fmt::Debug for HandoffFailed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HandoffFailed").field(self.error()).finish()
    }
}

impl<T> fmt::Display for HandoffFailed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

impl<T> StdError for HandoffFailed<T> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error().source()
    }
}

impl<T> From<HandoffFailed<T>> for Error {
    fn from(failed: HandoffFailed<T>) -> Self {
        failed.0.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn handoff(key: &str) -> Handoff {
        Handoff {
            key: Key::new(key).expect("valid"),
            kind: Kind::RwLock,
            mode: Mode::Shared,
            operation: Operation {
                session: SessionId::from_bytes([0xa7; 16]),
                sequence: 31,
                owner: OwnerId::from_u64(0xdead_beef),
            },
            transfer_hold: 32,
            token: FencingToken::new(77),
            lease: Duration::from_secs(30),
            waiter_lease: Duration::from_secs(5),
            fixed_until: Some(ServerTime::from_micros(8)),
            max_until: Some(ServerTime::from_micros(9)),
            adoption: Adoption::No,
        }
    }

    #[test]
    fn text_round_trips() {
        for key in ["k", "a:b\n{*}ü", &"x".repeat(256)] {
            let sent = handoff(key);
            let text = sent.to_secret_text();
            assert!(text.is_ascii() && text.len() <= MAX_HANDOFF_TEXT, "{text}");
            assert_eq!(text.parse(), Ok(sent));
            assert_eq!(format!("{text}\n").parse(), Ok(handoff(key)));
        }
    }

    #[test]
    fn damaged_text_is_rejected_and_not_shown() {
        let text = handoff("k").to_secret_text();
        let fields: Vec<&str> = text.split(':').collect();
        for (n, field) in fields.iter().enumerate() {
            // A longer number is still a number. The fields before the numbers are not valid when
            // they are longer.
            let longer = (n < 3).then(|| format!("{field}0"));
            let others = ["", "zz", "-1"].map(String::from).into_iter().chain(longer);
            for other in others {
                let mut damaged = fields.clone();
                damaged[n] = &other;
                let error = damaged.join(":").parse::<Handoff>().expect_err(&other);
                assert!(!error.to_string().contains("a7a7"), "{error}");
            }
            assert!(fields[..n].join(":").parse::<Handoff>().is_err());
        }
        assert!(format!("{text}:1").parse::<Handoff>().is_err());
        assert!("x".repeat(2_000).parse::<Handoff>().is_err());
        let newer = text.replacen("handoff-1", "handoff-2", 1);
        let error = newer.parse::<Handoff>().expect_err("an unknown version");
        assert!(error.to_string().contains("version"), "{error}");
    }

    #[test]
    fn debug_hides_the_secrets() {
        let text = format!("{:?}", handoff("k"));
        assert_eq!(
            text,
            "Handoff { key: \"k\", holds: \"read guard\", token: Token(77), .. }"
        );
    }

    proptest! {
        /// A text with changes is another valid text, or refused. The error shows nothing of it.
        #[test]
        fn any_text_is_read_or_refused(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<char>()), 0..4),
            end in prop::option::weighted(0.2, any::<prop::sample::Index>()),
            other in prop::option::weighted(0.2, any::<String>()),
        ) {
            let mut text: Vec<char> = handoff("k").to_secret_text().chars().collect();
            for (at, value) in changes {
                let at = at.index(text.len());
                text[at] = value;
            }
            if let Some(end) = end {
                text.truncate(end.index(text.len()));
            }
            let text = other.unwrap_or_else(|| text.into_iter().collect());
            match text.parse::<Handoff>() {
                Ok(read) => {
                    let again: Handoff = read.to_secret_text().parse().expect("readable");
                    prop_assert_eq!(again.to_secret_text(), read.to_secret_text());
                }
                Err(error) => {
                    prop_assert!(matches!(error, InvalidInput::HandoffText { .. }), "{error}");
                }
            }
        }

        #[test]
        fn key_is_its_name_or_refused(name in any::<String>(), times in 0..60_usize) {
            let name = name.repeat(times);
            match Key::new(&name) {
                Ok(key) => prop_assert_eq!(key.as_str(), name),
                Err(error) => {
                    let bytes = name.len();
                    prop_assert_eq!(error, InvalidInput::KeyLength { bytes });
                    prop_assert!(bytes == 0 || bytes > 256);
                }
            }
        }
    }
}
