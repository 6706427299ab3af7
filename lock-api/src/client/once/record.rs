//! What the note of a job says.

use std::time::Duration;

use crate::client::hold::Tag;
use crate::id::Label;
use crate::time::{FireTime, ServerTime};

/// The first byte of the note of a job.
const JOB: u8 = Tag::Job as u8;
/// The version of the format, the second byte.
const VERSION: u8 = 3;

/// The state of a job. All times are the server's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// The last attempt, if there was one. It is only shown: no decision depends on it.
    pub(super) last: Option<Last>,
}

/// The last attempt of a job, and the settings of its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Last {
    pub(super) by: Label,
    /// Whether its body has returned an error.
    pub(super) failed: bool,
    /// That of the program that its body has run, as far as the body told it.
    pub(super) exit_status: Option<u8>,
    pub(super) max_attempts: u32,
    /// How long after its fire time the occurrence may start.
    pub(super) window: Duration,
    /// How long after a success the next occurrence is due, if no fire time says it.
    pub(super) apart: Option<Duration>,
}

impl Record {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let numbers = [
            self.done.unwrap_or_default().as_millis(),
            self.done_at.unwrap_or_default().as_micros(),
            self.tried.unwrap_or_default().as_millis(),
            self.tried_at.as_micros(),
        ];
        let (numbers, attempts) = (numbers.map(u64::to_le_bytes), self.attempts.to_le_bytes());
        let last = self.last.as_ref().map(Last::to_bytes).unwrap_or_default();
        [&[JOB, VERSION], numbers.as_flattened(), &attempts, &last].concat()
    }

    /// Returns `None` if the bytes are something else.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&[JOB, VERSION], rest) = bytes.split_first_chunk()? else {
            return None;
        };
        let (numbers, rest) = rest.split_first_chunk::<32>()?;
        let (attempts, rest) = rest.split_first_chunk::<4>()?;
        let last = match rest {
            [] => None,
            last => Some(Last::from_bytes(last)?),
        };
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
            last,
        })
    }
}

/// Returns the occurrence and the number of the attempt that the note of a job tells, for tools that watch a lock
/// service. `None` if it is the note of something else, or if the job was never tried.
///
/// # Examples
/// ```
/// assert_eq!(leasehold_api::attempt_of_job(b"10.0.0.7:80"), None);
/// ```
pub fn attempt_of_job(note: &[u8]) -> Option<(FireTime, u32)> {
    let record = Record::from_bytes(note)?;
    Some((record.tried?, record.attempts))
}

impl Last {
    /// The same attempt, after its body has returned.
    pub(super) fn ended(self, failed: bool, exit_status: Option<u8>) -> Self {
        Self {
            failed,
            exit_status,
            ..self
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let times = [self.window, self.apart.unwrap_or_default()];
        let exit_status = self.exit_status.map_or(0, |status| u16::from(status) + 1);
        [
            &[u8::from(self.failed)][..],
            &exit_status.to_le_bytes(),
            &self.max_attempts.to_le_bytes(),
            times.map(|time| millis(time).to_le_bytes()).as_flattened(),
            self.by.as_str().as_bytes(),
        ]
        .concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&[failed], rest) = bytes.split_first_chunk()?;
        let (exit_status, rest) = rest.split_first_chunk()?;
        let exit_status = u16::from_le_bytes(*exit_status);
        let (max_attempts, rest) = rest.split_first_chunk::<4>()?;
        let (window, rest) = rest.split_first_chunk::<8>()?;
        let (apart, label) = rest.split_first_chunk::<8>()?;
        let time = |bytes: &[u8; 8]| Duration::from_millis(u64::from_le_bytes(*bytes));
        Some(Self {
            by: Label::new(std::str::from_utf8(label).ok()?).ok()?,
            failed: failed > 0,
            exit_status: exit_status
                .checked_sub(1)
                .and_then(|status| u8::try_from(status).ok()),
            max_attempts: u32::from_le_bytes(*max_attempts),
            window: time(window),
            apart: Some(time(apart)).filter(|apart| !apart.is_zero()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::{MAX_LABEL_BYTES, MAX_NOTE_BYTES};

    #[test]
    fn record_survives_and_fits_a_note() {
        let record = Record {
            done: Some(FireTime::from_millis(7)),
            done_at: Some(ServerTime::from_micros(8_000)),
            tried: Some(FireTime::from_millis(9)),
            tried_at: ServerTime::from_micros(10_000),
            attempts: 3,
            last: Some(Last {
                by: Label::new("m".repeat(MAX_LABEL_BYTES)).expect("short"),
                failed: true,
                exit_status: Some(u8::MAX),
                max_attempts: 4,
                window: Duration::from_secs(5),
                apart: Some(Duration::from_secs(6)),
            }),
        };
        for record in [record, Record::default()] {
            let bytes = record.to_bytes();
            assert!(bytes.len() <= MAX_NOTE_BYTES);
            assert_eq!(Record::from_bytes(&bytes), Some(record));
            let longer = [&bytes[..], &[0]].concat();
            for other in [&bytes[1..], &bytes[..37], &longer] {
                assert_eq!(Record::from_bytes(other), None);
            }
        }
        assert_eq!(Record::from_bytes(b"10.0.0.7:80"), None);
    }
}
