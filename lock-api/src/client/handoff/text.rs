//! A hold on its way from one client to another, and its text.

use std::error::Error as StdError;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::bounds::{MAX_HANDOFF_TEXT, MAX_LEASE, MAX_WAITER_LEASE};
use crate::client::error::{Error, NO_TOKENS};
use crate::error::InvalidInput;
use crate::id::{FencingToken, Key, Operation, OwnerId, SessionId};
use crate::mutants::mutant;
use crate::reply::EndReason;
use crate::request::{Kind, Mode};
use crate::time::{ServerTime, micros};

/// First field of the text: what it is, and the version of its format.
const FORMAT: &str = "leasehold-handoff-1";

/// A lock that is held, on its way to another function, client or process: made by
/// [`Guard::into_handoff`](crate::Guard::into_handoff), and turned into a guard again by
/// [`LockClient::adopt`](crate::LockClient::adopt).
///
/// - **It is a secret.** Whoever has it, or its [text](Self::to_secret_text), holds the lock, and
///   can act in the name of the client that handed it off. Pass it as you would pass a password.
///   `Debug` shows the key and the token only.
/// - **It is adopted once.** The text can be copied, but of those who adopt it at most one ever
///   gets a guard.
/// - **It ends with its lease**, counted from when it was made, unless it is adopted before.
///   Nobody renews it on the way. Dropping it ends nothing.
///
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
#[must_use = "a hand-off that nobody adopts ends with its lease"]
pub struct Handoff {
    pub(crate) key: Key,
    pub(crate) kind: Kind,
    pub(crate) mode: Mode,
    /// The hold.
    pub(crate) operation: Operation,
    /// Sequence of the hold beside it, which only one can end.
    pub(crate) transfer_hold: u64,
    /// `None` if the backend has no fencing tokens; in the text a 0.
    pub(crate) token: Option<FencingToken>,
    pub(crate) lease: Duration,
    pub(crate) waiter_lease: Duration,
    pub(crate) fixed_lease: bool,
    /// Release of the longest hold.
    pub(crate) until: Option<ServerTime>,
    pub(crate) adoption: Adoption,
}

/// Whether this very value has taken the transfer hold; no part of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adoption {
    No,
    InDoubt,
    Yes,
    /// The transfer hold is gone, and the answer that said to whom is lost.
    Never(EndReason),
}

impl fmt::Debug for Handoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if mutant!(HandoffShown) {
            return f.write_str(&self.to_secret_text());
        }
        f.debug_struct("Handoff")
            .field("key", &self.key)
            .field("holds", &name(self.kind, self.mode))
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

/// What a guard of this kind is called.
pub(crate) const fn name(kind: Kind, mode: Mode) -> &'static str {
    match (kind, mode) {
        (Kind::Mutex, _) => "mutex guard",
        (Kind::RwLock, Mode::Shared) => "read guard",
        (Kind::RwLock, _) => "write guard",
        (Kind::Semaphore, _) => "permit guard",
    }
}

impl Handoff {
    /// The key that is held.
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// What sort of lock it is.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether it is held for reading or exclusively.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The token of the hold when it was handed off.
    ///
    /// # Errors
    /// As [`Guard::fencing_token`](crate::Guard::fencing_token).
    pub fn fencing_token(&self) -> Result<FencingToken, Error> {
        self.token.ok_or(NO_TOKENS)
    }

    /// The hand-off as a line of ASCII, at most
    /// [`MAX_HANDOFF_TEXT`](crate::bounds::MAX_HANDOFF_TEXT) bytes long, to be parsed on the
    /// other side (`FromStr`). **It is a secret**: keep it out of logs, and send it where you
    /// would send a password.
    pub fn to_secret_text(&self) -> String {
        let form = match (self.kind, self.mode) {
            (Kind::RwLock, Mode::Shared) => "read",
            (Kind::RwLock, _) => "write",
            (Kind::Mutex | Kind::Semaphore, _) => "mutex",
        };
        let until = self.until.map_or(0, ServerTime::as_micros);
        format!(
            "{FORMAT}:{form}:{}:{:016x}:{}:{}:{}:{}:{}:{}:{until}:{}",
            hex(self.operation.session.as_bytes()),
            self.operation.owner.as_u64(),
            self.operation.sequence,
            self.transfer_hold,
            self.token.map_or(0, FencingToken::get),
            micros(self.lease),
            micros(self.waiter_lease),
            u8::from(self.fixed_lease),
            hex(self.key.as_str().as_bytes()),
        )
    }
}

/// Reads what [`Handoff::to_secret_text`] wrote. Does no I/O.
///
/// # Errors
/// [`InvalidInput::HandoffText`] for anything else. The error does not show the text.
impl FromStr for Handoff {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        if text.len() > MAX_HANDOFF_TEXT {
            return Err(bad("it is too long"));
        }
        let mut fields = text.trim().split(':');
        let format = fields.next().unwrap_or_default();
        if format != FORMAT {
            let known = format.starts_with("leasehold-handoff-");
            return Err(bad(if known {
                "its version is not known here"
            } else {
                "it does not begin like one"
            }));
        }
        let handoff = read(&mut fields).ok_or(bad("a field is missing or damaged"))?;
        match fields.next() {
            None => Ok(handoff),
            Some(_) => Err(bad("it has too many fields")),
        }
    }
}

const fn bad(problem: &'static str) -> InvalidInput {
    InvalidInput::HandoffText { problem }
}

fn read<'a>(fields: &mut impl Iterator<Item = &'a str>) -> Option<Handoff> {
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
    let fixed_lease = match number()? {
        0 => false,
        1 => true,
        _ => return None,
    };
    let until = number()?;
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
        token: (token > 0).then_some(FencingToken::new(token)),
        lease,
        waiter_lease,
        fixed_lease,
        until: (until > 0).then_some(ServerTime::from_micros(until)),
        adoption: Adoption::No,
    })
}

fn duration(micros: u64, most: Duration) -> Option<Duration> {
    let duration = Duration::from_micros(micros);
    (!duration.is_zero() && duration <= most).then_some(duration)
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

/// A hand-off that did not come about, or was not adopted: the error, and what was to be passed
/// on. It can be made into an [`Error`], which drops that.
pub struct HandoffFailed<T>(Box<(Error, T)>);

impl<T> HandoffFailed<T> {
    pub(crate) fn new(error: Error, given_back: T) -> Self {
        Self(Box::new((error, given_back)))
    }

    /// Why it failed.
    pub const fn error(&self) -> &Error {
        &self.0.0
    }

    /// The guard, or the hand-off, to be used again; a dropped guard releases its lock.
    pub fn given_back(self) -> T {
        self.0.1
    }

    /// Both.
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
            token: Some(FencingToken::new(77)),
            lease: Duration::from_secs(30),
            waiter_lease: Duration::from_secs(5),
            fixed_lease: true,
            until: Some(ServerTime::from_micros(9)),
            adoption: Adoption::No,
        }
    }

    #[test]
    fn text_says_it_all_and_is_read_again() {
        for key in ["k", "a:b\n{*}ü", &"x".repeat(256)] {
            let sent = handoff(key);
            let text = sent.to_secret_text();
            assert!(text.is_ascii() && text.len() <= MAX_HANDOFF_TEXT, "{text}");
            assert_eq!(text.parse(), Ok(sent));
            assert_eq!(format!("{text}\n").parse(), Ok(handoff(key)));
        }
    }

    #[test]
    fn damaged_text_is_refused_and_not_shown() {
        let text = handoff("k").to_secret_text();
        let fields: Vec<&str> = text.split(':').collect();
        for (n, field) in fields.iter().enumerate() {
            // A longer number is a number too; what comes before the numbers is not.
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
        let error = newer.parse::<Handoff>().expect_err("unknown");
        assert!(error.to_string().contains("version"), "{error}");
    }

    #[test]
    fn debug_shows_nothing_that_authorises() {
        let text = format!("{:?}", handoff("k"));
        assert_eq!(
            text,
            "Handoff { key: \"k\", holds: \"read guard\", token: Some(Token(77)), .. }"
        );
    }
}
