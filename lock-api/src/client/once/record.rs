//! What the note of a job says.

use crate::time::{FireTime, ServerTime};

/// The first bytes of the note of a job: what it is, and the version of its format.
const MAGIC: [u8; 2] = *b"J\x01";

/// The state of a job. All times are the server's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Every occurrence up to this one is done.
    pub(super) done: Option<FireTime>,
    /// When the last one was done.
    pub(super) done_at: Option<ServerTime>,
    /// The latest occurrence that was tried.
    pub(super) tried: Option<FireTime>,
    /// When its last attempt began or failed.
    pub(super) tried_at: ServerTime,
    /// How often it was tried.
    pub(super) attempts: u32,
}

impl Record {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let numbers = [
            self.done.unwrap_or_default().as_millis(),
            self.done_at.unwrap_or_default().as_micros(),
            self.tried.unwrap_or_default().as_millis(),
            self.tried_at.as_micros(),
        ];
        let (numbers, attempts) = (numbers.map(u64::to_le_bytes), self.attempts.to_le_bytes());
        [&MAGIC[..], numbers.as_flattened(), &attempts].concat()
    }

    /// Returns `None` if the bytes are something else.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (numbers, attempts) = bytes.strip_prefix(&MAGIC)?.split_last_chunk::<4>()?;
        let (&[done, done_at, tried, tried_at], []) = numbers.as_chunks::<8>() else {
            return None;
        };
        let known = |bytes| Some(u64::from_le_bytes(bytes)).filter(|number| *number > 0);
        Some(Self {
            done: known(done).map(FireTime::from_millis),
            done_at: known(done_at).map(ServerTime::from_micros),
            tried: known(tried).map(FireTime::from_millis),
            tried_at: ServerTime::from_micros(u64::from_le_bytes(tried_at)),
            attempts: u32::from_le_bytes(*attempts),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_survives_and_fits_a_note() {
        let record = Record {
            done: Some(FireTime::from_millis(7)),
            done_at: Some(ServerTime::from_micros(8_000)),
            tried: Some(FireTime::from_millis(9)),
            tried_at: ServerTime::from_micros(10_000),
            attempts: 3,
        };
        for record in [record, Record::default()] {
            let bytes = record.to_bytes();
            assert!(bytes.len() <= crate::bounds::MAX_NOTE_BYTES);
            assert_eq!(Record::from_bytes(&bytes), Some(record));
            let longer = [&bytes[..], &[0]].concat();
            for other in [&bytes[1..], &bytes[..bytes.len() - 1], &longer] {
                assert_eq!(Record::from_bytes(other), None);
            }
        }
        assert_eq!(Record::from_bytes(b"10.0.0.7:80"), None);
    }
}
