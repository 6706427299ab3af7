//! The bytes of a row and of the floor.
//!
//! A row is a format version, the numbers of its [`Header`], and the state. Numbers have 8 bytes, the most significant
//! one first.

use std::time::Duration;

use leasehold_api::{BackendError, ServerTime};

use crate::store::Tag;

/// Format 1 had no [`Promise::origin`]. No release has written it.
const FORMAT: u8 = 2;
const NUMBERS: usize = 5;
const STATE_FROM: usize = 1 + 8 * NUMBERS;

/// The last write that promised that a hold lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Promise {
    /// The version of the write.
    pub(super) version: u64,
    /// The latest true time when the time of the row was zero, in µs since 1970. `u64::MAX` if the writer has declared no skew: no
    /// clock shows a later time.
    origin: u64,
}

impl Promise {
    /// The promise of a write at this time of the row, and at this true time or before.
    pub(super) fn new(version: u64, at: ServerTime, latest: Option<Duration>) -> Self {
        let micros = latest.and_then(|time| u64::try_from(time.as_micros()).ok());
        let origin = micros.and_then(|micros| micros.checked_sub(at.as_micros()));
        Self {
            version,
            origin: origin.unwrap_or(u64::MAX),
        }
    }

    /// The least time of the row at this true time.
    pub(super) fn time_at(&self, time_of_day: Duration) -> ServerTime {
        let micros = u64::try_from(time_of_day.as_micros()).unwrap_or(0);
        ServerTime::from_micros(micros.saturating_sub(self.origin))
    }
}

/// What a row says beside the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The version of the write.
    pub(super) version: u64,
    pub(super) promise: Promise,
    /// The time of the step. It is never before that of the row that it replaced.
    pub(super) at: ServerTime,
    /// When the row may be removed.
    pub(super) keep_until: ServerTime,
}

impl Header {
    pub(super) fn encode(&self, state: &[u8]) -> Vec<u8> {
        let times = [self.at, self.keep_until].map(ServerTime::as_micros);
        let Promise { version, origin } = self.promise;
        let numbers = [self.version, version, origin, times[0], times[1]];
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
            promise: Promise {
                version: number(1),
                origin: number(2),
            },
            at: time(3),
            keep_until: time(4),
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
pub(super) fn with_promise(promise: Promise, tag: &Tag) -> Tag {
    let numbers = [promise.version, promise.origin].map(u64::to_be_bytes);
    let bytes: Vec<u8> = [&numbers.concat(), tag.as_bytes()].concat();
    Tag::new(bytes)
}

/// The promise and the tag of the store.
pub(super) fn split_promise(tag: &Tag) -> (Promise, Tag) {
    let bytes = tag.as_bytes();
    let promise = Promise {
        version: number(bytes),
        origin: number(&bytes[8..]),
    };
    (promise, Tag::new(&bytes[16..]))
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
            promise: Promise {
                version: 2,
                origin: 4,
            },
            at: ServerTime::from_micros(3),
            keep_until: ServerTime::from_micros(u64::MAX - 1),
        };
        let bytes = header.encode(b"state");
        let decoded = Header::decode(&bytes).expect("a row");
        assert_eq!(decoded, (header, &b"state"[..]));
        assert_eq!(decode_floor(&encode_floor(7)).expect("a floor"), 7);
        let tag = Tag::new(*b"etag");
        assert_eq!(
            split_promise(&with_promise(header.promise, &tag)),
            (header.promise, tag)
        );
    }

    #[test]
    fn time_of_day_tells_the_time_of_a_row() {
        let (at, day) = (ServerTime::from_micros(5), Duration::from_micros);
        let promise = Promise::new(1, at, Some(day(1_000)));
        for (time_of_day, time) in [(1_000, 5), (1_007, 12), (996, 1), (0, 0)] {
            assert_eq!(promise.time_at(day(time_of_day)).as_micros(), time);
        }
        // None is declared, the clock is before the row, and no clock shows it.
        for unknown in [None, Some(day(4)), Some(Duration::MAX)] {
            let promise = Promise::new(1, at, unknown);
            for time_of_day in [day(1_000), day(u64::MAX), Duration::MAX] {
                assert_eq!(promise.time_at(time_of_day).as_micros(), 0);
            }
        }
    }

    #[test]
    fn other_bytes_are_foreign() {
        let other = |format| [&[format], &[0; 100][..]].concat();
        let (older, newer) = (other(FORMAT - 1), other(FORMAT + 1));
        for bytes in [&b""[..], b"another program's value", &older, &newer] {
            let decoded = Header::decode(bytes);
            assert!(
                matches!(decoded, Err(BackendError::ForeignValue { .. })),
                "{decoded:?}"
            );
            assert!(decode_floor(bytes).is_err());
        }
    }
}
