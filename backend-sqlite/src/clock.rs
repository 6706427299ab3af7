//! The clock of a file: that of the boot, with an offset that the file keeps.

use leasehold_api::{ClockId, ServerTime, Stamp, TokioRuntime};
use rusqlite::{OptionalExtension, Transaction, params};

use crate::host;

/// `last` is at least as late as every write.
pub(crate) const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS leasehold_clock (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    boot TEXT NOT NULL,
    id INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    last INTEGER NOT NULL
)";

/// The clock that all processes of this boot read.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    id: i64,
    offset: i64,
    runtime: TokioRuntime,
}

impl Clock {
    /// Reads the offset. The first program after a boot stores it: the clock of a new file shows the time of day, and that of
    /// another goes on after the last write. It doesn't jump to the time of day. If this is not a boot, but a container with
    /// another boot id, locks would end before their holders know.
    pub(crate) fn of(
        step: &Transaction<'_>,
        boot: &str,
        runtime: TokioRuntime,
    ) -> rusqlite::Result<Self> {
        let found: Option<(String, i64, i64, i64)> = step
            .query_row(
                "SELECT boot, id, offset, last FROM leasehold_clock",
                [],
                |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
            )
            .optional()?;
        let (now, last) = match found {
            Some((of, id, offset, _)) if of == boot => {
                return Ok(Self {
                    id,
                    offset,
                    runtime,
                });
            }
            Some((.., last)) => (last + 1, last),
            None => (signed(host::time_of_day()), 0),
        };
        let offset = now - signed(host::since_boot(&runtime));
        let id = step.query_row(
            "INSERT OR REPLACE INTO leasehold_clock VALUES (1, ?1, random(), ?2, ?3) RETURNING id",
            params![boot, offset, last],
            |row| row.get(0),
        )?;
        Ok(Self {
            id,
            offset,
            runtime,
        })
    }

    pub(crate) fn now(&self) -> ServerTime {
        let now = self.offset + signed(host::since_boot(&self.runtime));
        ServerTime::from_micros(now.unsigned_abs())
    }

    pub(crate) fn stamp(&self) -> Stamp {
        Stamp {
            clock: ClockId::new(self.id.cast_unsigned()),
            at: self.now(),
        }
    }

    /// The time of day at a time of this clock.
    pub(crate) fn time_of_day(&self, at: ServerTime) -> ServerTime {
        let ahead = host::time_of_day().wrapping_sub(self.now().as_micros());
        ServerTime::from_micros(at.as_micros().wrapping_add(ahead))
    }

    /// Notes the time of a write. Returns `false` if another boot has taken the file over.
    pub(crate) fn note(&self, step: &Transaction<'_>, at: ServerTime) -> rusqlite::Result<bool> {
        let mut noting =
            step.prepare_cached("UPDATE leasehold_clock SET last = ?1 WHERE id = ?2")?;
        Ok(noting.execute([signed(at.as_micros()), self.id])? == 1)
    }
}

pub(crate) fn signed(micros: u64) -> i64 {
    i64::try_from(micros).unwrap_or(i64::MAX)
}
