//! Names and identities: keys, sessions, owners, operations, labels, tokens.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use crate::bounds::{MAX_KEY_BYTES, MAX_LABEL_BYTES};
use crate::error::InvalidInput;

/// The name of a lock: 1–256 bytes of UTF-8, any characters.
///
/// Cheap to clone. Backends encode it; it is never used as a pattern or a cluster hash tag.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Checks the length and takes the name.
    ///
    /// # Errors
    /// [`InvalidInput::KeyLength`] for an empty name or one of more than 256 bytes.
    pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidInput> {
        let name = name.as_ref();
        if name.is_empty() || name.len() > MAX_KEY_BYTES {
            return Err(InvalidInput::KeyLength { bytes: name.len() });
        }
        Ok(Self(name.into()))
    }

    /// The name as the user gave it.
    pub fn as_str(&self) -> &str {
        &self.0
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

/// One client instance: 128 bits from the OS random source.
///
/// Together with a sequence number it authorises ending and renewing, so it is secret: `Debug`
/// shows only a fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId([u8; 16]);

impl SessionId {
    /// Takes 16 bytes, which must come from the runtime's random source.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes as they go on the wire.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl Ord for SessionId {
    /// The order of the bytes, compared as one number: maps by session are searched all the time.
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

/// Who holds: a secret value, never a thread or task id.
///
/// Plain handles draw a fresh one for each acquisition; reentrant handles reuse theirs. On the
/// wire an owner is always (session, owner), so that reentrancy never crosses processes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(u64);

impl OwnerId {
    /// Takes 64 bits, which must come from the runtime's random source.
    pub const fn from_u64(value: u64) -> Self {
        Self(value)
    }

    /// The value as it goes on the wire.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owner(..)")
    }
}

/// One attempt to hold, by one owner of one session: the thing that is ended, renewed, converted.
///
/// Within a session the sequence alone identifies it; it is below 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Operation {
    /// The client instance that made the attempt.
    pub session: SessionId,
    /// Number of the attempt within its session, drawn in increasing order, from 1.
    pub sequence: u64,
    /// On whose behalf it was made.
    pub owner: OwnerId,
}

/// What others see of a holder or waiter: at most 32 bytes of UTF-8, by default `host:pid`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(Arc<str>);

impl Label {
    /// Checks the length and takes the text; it may be empty.
    ///
    /// # Errors
    /// [`InvalidInput::LabelLength`] for more than 32 bytes.
    pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidInput> {
        let text = text.as_ref();
        if text.len() > MAX_LABEL_BYTES {
            return Err(InvalidInput::LabelLength { bytes: text.len() });
        }
        Ok(Self(text.into()))
    }

    /// The label that says nothing.
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

/// Number of an exclusive holder, or of a group of overlapping readers; strictly increasing.
///
/// Pass it with every write to the protected resource, and let the resource refuse any token
/// lower than the highest that it has accepted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// A token from its number, such as one that was stored beside what it protects.
    ///
    /// Any number is taken; one that no backend gives is refused where it is
    /// [brought as a floor](crate::bounds::MAX_FLOOR).
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number; below 2^53 if a backend gave it.
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
    fn sessions_sort_as_their_bytes() {
        let mut bytes = [[0; 16], [1; 16], [255; 16]].to_vec();
        for at in 0..16 {
            for value in [1, 128, 255] {
                let mut one = [0; 16];
                one[at] = value;
                bytes.push(one);
            }
        }
        let mut sessions: Vec<_> = bytes.iter().copied().map(SessionId::from_bytes).collect();
        bytes.sort_unstable();
        sessions.sort_unstable();
        let sorted: Vec<_> = sessions.iter().map(|it| *it.as_bytes()).collect();
        assert_eq!(sorted, bytes);
    }
}
