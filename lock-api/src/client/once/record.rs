//! What the note of a job says.

use crate::time::{FireTime, ServerTime};

/// The first bytes of the note of a job: what it is, and the version of its format.
const MAGIC: [u8; 2] = *b"J\x01";
const LENGTH: usize = 2 + 4 * 8 + 4;

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
        let mut bytes = MAGIC.to_vec();
        let done_at = self.done_at.unwrap_or_default().as_micros();
        for number in [
            self.done.unwrap_or_default().as_millis(),
            done_at,
            self.tried.unwrap_or_default().as_millis(),
            self.tried_at.as_micros(),
        ] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.attempts.to_le_bytes());
        bytes
    }

    /// Returns `None` if the bytes are something else.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != LENGTH || bytes[..2] != MAGIC {
            return None;
        }
        let number = |index: usize| {
            let at = 2 + 8 * index;
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
        };
        let attempts = bytes[LENGTH - 4..].try_into().expect("4 bytes");
        let fire =
            |index| Some(FireTime::from_millis(number(index))).filter(|fire| fire.as_millis() > 0);
        let done_at = Some(ServerTime::from_micros(number(1)));
        Some(Self {
            done: fire(0),
            done_at: done_at.filter(|at| at.as_micros() > 0),
            tried: fire(2),
            tried_at: ServerTime::from_micros(number(3)),
            attempts: u32::from_le_bytes(attempts),
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
            assert_eq!(Record::from_bytes(&bytes[1..]), None);
        }
        assert_eq!(Record::from_bytes(b"10.0.0.7:80"), None);
    }
}
