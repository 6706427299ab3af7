//! Names and ids: keys, sessions, owners, operations, labels and tokens.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use crate::bounds::{MAX_KEY_BYTES, MAX_LABEL_BYTES};
use crate::error::InvalidInput;

/// The name of a lock: 1 to 256 bytes of UTF-8, any characters.
///
/// A key is cheap to clone. Backends encode it, so no character of it acts as a pattern or ends a hash tag.
///
/// ```
/// use leasehold_api::{InvalidInput, Key};
///
/// let key = Key::new("invoice:42")?;
/// assert_eq!(key.as_str(), "invoice:42");
/// assert!(Key::new("").is_err());
/// # Ok::<(), InvalidInput>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Creates a key from its name.
    ///
    /// # Errors
    /// [`InvalidInput`] if `name` is empty or has more than 256 bytes.
    pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidInput> {
        let name = name.as_ref();
        if name.is_empty() || name.len() > MAX_KEY_BYTES {
            let bytes = name.len();
            let text = format!("a key has 1 to {MAX_KEY_BYTES} bytes, this one has {bytes}");
            return Err(InvalidInput::new(text));
        }
        Ok(Self(name.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The id of one client instance: 16 random bytes.
///
/// A session id is secret: with it, anyone can renew and release the session's holds. `Debug` shows
/// only the first two bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId([u8; 16]);

impl SessionId {
    /// Creates an id from 16 bytes, which must come from
    /// [`Runtime::fill_random`](crate::Runtime::fill_random).
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl Ord for SessionId {
    /// Orders by bytes. One comparison of `u128` is faster than one of arrays, and maps by session
    /// are searched often.
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        u128::from_be_bytes(self.0).cmp(&u128::from_be_bytes(other.0))
    }
}

impl PartialOrd for SessionId {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

/// The owner of an operation: a secret 64-bit value, never a thread or task id.
///
/// A plain handle uses a new owner for each acquisition. A reentrant handle keeps one. An owner is
/// always read together with its session, so reentrancy never crosses processes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(u64);

impl OwnerId {
    /// Creates an owner from 64 bits, which must come from
    /// [`Runtime::random_u64`](crate::Runtime::random_u64).
    pub const fn from_u64(value: u64) -> Self {
        Self(value)
    }

    /// The value.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owner(..)")
    }
}

/// One attempt to hold a key. Renewals, releases and conversions name the operation that they act
/// on.
///
/// Session and sequence identify an operation. The owner lets a backend find the holder without a
/// search.
///
/// ```
/// use leasehold_api::{Operation, OwnerId, Runtime, SessionId};
///
/// fn first_operation(runtime: &dyn Runtime) -> Operation {
///     let mut bytes = [0; 16];
///     runtime.fill_random(&mut bytes);
///     Operation {
///         session: SessionId::from_bytes(bytes),
///         sequence: 1,
///         owner: OwnerId::from_u64(runtime.random_u64()),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Operation {
    /// The client instance that made the attempt.
    pub session: SessionId,
    /// The number of the attempt within its session. It starts at 1, grows, and is below 2^53.
    pub sequence: u64,
    /// The owner on whose behalf the attempt was made.
    pub owner: OwnerId,
}

/// The name that others see for a holder or waiter: at most 32 bytes of UTF-8, by default
/// `host:pid`.
///
/// ```
/// use leasehold_api::Label;
///
/// let label = Label::new("billing:17")?;
/// assert_eq!(label.to_string(), "billing:17");
/// # Ok::<(), leasehold_api::InvalidInput>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(Arc<str>);

impl Label {
    /// Creates a label. The text may be empty.
    ///
    /// # Errors
    /// [`InvalidInput`] if `text` has more than 32 bytes.
    pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidInput> {
        let text = text.as_ref();
        if text.len() > MAX_LABEL_BYTES {
            let bytes = text.len();
            let text = format!("a label has at most {MAX_LABEL_BYTES} bytes, this one has {bytes}");
            return Err(InvalidInput::new(text));
        }
        Ok(Self(text.into()))
    }

    /// The empty label.
    pub fn empty() -> Self {
        Self("".into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The number of an epoch. Tokens of a key strictly increase (rule 15, promise S4).
///
/// Each exclusive holder is an epoch. Readers that overlap share one. Claim the protected resource with
/// the token before you read it, and send the token with every write. The resource refuses a claim
/// with a lower token than the highest that it has seen, and a write with any other:
///
/// ```
/// use leasehold_api::FencingToken;
///
/// struct Account {
///     balance: i64,
///     highest: FencingToken,
/// }
///
/// impl Account {
///     fn claim(&mut self, token: FencingToken) -> Result<i64, &'static str> {
///         if token < self.highest {
///             return Err("a later holder has claimed the account");
///         }
///         self.highest = token;
///         Ok(self.balance)
///     }
///
///     fn write(&mut self, balance: i64, token: FencingToken) -> Result<(), &'static str> {
///         if token != self.highest {
///             return Err("claim the account first, and read it again");
///         }
///         self.balance = balance;
///         Ok(())
///     }
/// }
///
/// # fn example() -> Result<(), &'static str> {
/// let mut account = Account { balance: 100, highest: FencingToken::default() };
/// let (late, current) = (FencingToken::new(6), FencingToken::new(7));
/// let balance = account.claim(current)?;
/// assert!(account.write(110, late).is_err());
/// account.write(balance + 50, current)?;
/// # Ok(())
/// # }
/// # example().unwrap();
/// ```
///
/// A resource begins with the default, 0. Every token of a guard is greater.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Creates a token from its number, for example from one that is stored with the resource.
    ///
    /// Any number is accepted. A number above [`MAX_FLOOR`](crate::bounds::MAX_FLOOR) is refused if
    /// you send the token as a floor.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number. Tokens from a backend are below 2^53.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.0)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_sort_by_bytes() {
        let mut bytes = [[0; 16], [1; 16], [255; 16]].to_vec();
        for index in 0..16 {
            for value in [1, 128, 255] {
                let mut id = [0; 16];
                id[index] = value;
                bytes.push(id);
            }
        }
        let mut sessions: Vec<_> = bytes.iter().copied().map(SessionId::from_bytes).collect();
        bytes.sort_unstable();
        sessions.sort_unstable();
        let sorted: Vec<_> = sessions.iter().map(|session| *session.as_bytes()).collect();
        assert_eq!(sorted, bytes);
    }
}
