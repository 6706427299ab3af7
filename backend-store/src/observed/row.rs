//! The bytes of a row and of the floor.
//!
//! A row is a format version, the numbers of its [`Header`], and the state. Numbers have 8 bytes, the most significant
//! one first.

use leasehold_api::{BackendError, ServerTime};

use crate::store::Tag;

const FORMAT: u8 = 1;
const NUMBERS: usize = 4;
const STATE_FROM: usize = 1 + 8 * NUMBERS;

/// What a row says beside the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The version of the write.
    pub(super) version: u64,
    /// The version of the last write that promised that a hold lasts.
    pub(super) promise: u64,
    /// The time of the step. It is never before that of the row that it replaced.
    pub(super) at: ServerTime,
    /// When the row may be removed.
    pub(super) keep_until: ServerTime,
}

impl Header {
    pub(super) fn encode(&self, state: &[u8]) -> Vec<u8> {
        let times = [self.at, self.keep_until].map(ServerTime::as_micros);
        let numbers = [self.version, self.promise, times[0], times[1]];
        let numbers = numbers.into_iter().flat_map(u64::to_be_bytes);
        let bytes = [FORMAT].into_iter().chain(numbers);
        bytes.chain(state.iter().copied()).collect()
    }

    /// Reads a row. The rest of the bytes are the state.
    pub(super) fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), BackendError> {
        let foreign = || BackendError::foreign_value("not the row of a lock");
        let (header, state) = bytes.split_at_checked(STATE_FROM).ok_or_else(foreign)?;
        let (format, numbers) = header.split_first().ok_or_else(foreign)?;
        if *format != FORMAT {
            return Err(BackendError::foreign_value(format!("row format {format}")));
        }
        let number = |index: usize| number(&numbers[8 * index..]);
        let time = |index| ServerTime::from_micros(number(index));
        let header = Self {
            version: number(0),
            promise: number(1),
            at: time(2),
            keep_until: time(3),
        };
        Ok((header, state))
    }
}

/// Reads the number at the beginning of at least 8 bytes.
fn number(bytes: &[u8]) -> u64 {
    let (number, _) = bytes.split_first_chunk().expect("8 bytes");
    u64::from_be_bytes(*number)
}

/// The tag of a row, which also says what the row promises.
pub(super) fn with_promise(promise: u64, tag: &Tag) -> Tag {
    let bytes: Vec<u8> = [&promise.to_be_bytes()[..], tag.as_bytes()].concat();
    Tag::new(bytes)
}

/// The promise and the tag of the store.
pub(super) fn split_promise(tag: &Tag) -> (u64, Tag) {
    let bytes = tag.as_bytes();
    (number(bytes), Tag::new(&bytes[8..]))
}

pub(super) fn encode_floor(floor: u64) -> Vec<u8> {
    [FORMAT].into_iter().chain(floor.to_be_bytes()).collect()
}

pub(super) fn decode_floor(bytes: &[u8]) -> Result<u64, BackendError> {
    match bytes {
        [FORMAT, rest @ ..] if rest.len() == 8 => Ok(number(rest)),
        _ => Err(BackendError::foreign_value("not the floor of a namespace")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_survives() {
        let header = Header {
            version: u64::MAX,
            promise: 2,
            at: ServerTime::from_micros(3),
            keep_until: ServerTime::from_micros(u64::MAX - 1),
        };
        let bytes = header.encode(b"state");
        let decoded = Header::decode(&bytes).expect("a row");
        assert_eq!(decoded, (header, &b"state"[..]));
        assert_eq!(decode_floor(&encode_floor(7)).expect("a floor"), 7);
        let tag = Tag::new(*b"etag");
        assert_eq!(split_promise(&with_promise(9, &tag)), (9, tag));
    }

    #[test]
    fn other_bytes_are_foreign() {
        let mut other = Header::decode(&[FORMAT; STATE_FROM])
            .expect("a row")
            .0
            .encode(b"");
        other[0] += 1;
        for bytes in [&b""[..], b"another program's value", &other] {
            let decoded = Header::decode(bytes);
            assert!(
                matches!(decoded, Err(BackendError::ForeignValue { .. })),
                "{decoded:?}"
            );
            assert!(decode_floor(bytes).is_err());
        }
    }
}
