//! The rows that this client has written: the next command on such a key needs no read.
//!
//! A remembered row is tried only if nobody else has written it between this client's last three writes, which
//! are more than one pair. So clients that take turns with a key pay for one attempt in vain, and then no more.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use leasehold_api::{Key, Moment, ServerTime, Stamp};

use crate::lock;
use crate::store::{Read, Row, Version};

/// At most this many rows are remembered.
const MOST_ROWS: usize = 4_096;
/// A longer row has waiters or many holders, and others write it too.
const LONGEST_ROW: usize = 512;
/// A row is tried after so many writes that have each found the one before it.
const TRY_AFTER: u8 = 2;
/// The store's clock is estimated for this time after the last answer.
const CLOCK_LASTS: Duration = Duration::from_secs(10);
/// The store's clock is estimated to go slower than ours by this part. If it goes slower still, the store
/// refuses the write.
const SLOWER_BY: u32 = 1_024;

/// A row to execute commands on, and the time at which to execute them.
#[derive(Debug)]
pub(crate) struct Remembered {
    pub(crate) row: Row,
    /// Not before the row, and probably not after the store's clock. The store compares it.
    pub(crate) now: Stamp,
}

/// Remembers rows.
#[derive(Debug, Default)]
pub(crate) struct Memory(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The store's clock in the last answer, and when the answer came.
    clock: Option<(Stamp, Moment)>,
    /// When half of all rows are recent, the older ones are forgotten.
    recent: BTreeMap<Key, Entry>,
    older: BTreeMap<Key, Entry>,
}

#[derive(Debug)]
struct Entry {
    row: Row,
    /// A time of the store's clock that is not before the row.
    at: ServerTime,
    /// How many writes of this client have found the one before it, up to `TRY_AFTER`. A client that has
    /// created a row is alone.
    alone: u8,
}

/// The store's clock now, or a time that is a little before it.
fn estimate((read, received): (Stamp, Moment), now: Moment) -> ServerTime {
    let elapsed = now.saturating_since(received);
    read.at.saturating_add(elapsed - elapsed / SLOWER_BY)
}

impl Memory {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }

    /// The row of a key, if it is probably still the current one.
    pub(crate) fn recall(&self, key: &Key, now: Moment) -> Option<Remembered> {
        let inner = self.inner();
        let clock @ (read, received) = inner.clock?;
        let elapsed = now.saturating_since(received);
        let entry = inner.entry(key)?;
        if entry.alone < TRY_AFTER || elapsed > CLOCK_LASTS {
            return None;
        }
        Some(Remembered {
            row: entry.row.clone(),
            now: Stamp {
                clock: read.clock,
                at: estimate(clock, now).max(entry.at),
            },
        })
    }

    /// Notes the store's clock in an answer that has just come. An answer that took long is behind the
    /// estimate, and is passed over.
    pub(crate) fn saw_clock(&self, stamp: Stamp, now: Moment) {
        let mut inner = self.inner();
        let is_behind = inner.clock.is_some_and(|clock| {
            let (read, received) = clock;
            read.clock == stamp.clock
                && now.saturating_since(received) <= CLOCK_LASTS
                && estimate(clock, now) >= stamp.at
        });
        if !is_behind {
            inner.clock = Some((stamp, now));
        }
    }

    /// Forgets the store's clock, whose estimate may be wrong, until the next answer.
    pub(crate) fn forget_clock(&self) {
        self.inner().clock = None;
    }

    /// Notes what a read has found.
    pub(crate) fn saw_read(&self, key: &Key, read: &Read, now: Moment) {
        self.saw_clock(read.stamp, now);
        let found = read.row.as_ref().map(|row| row.version);
        let mut inner = self.inner();
        let own = inner.entry(key).map(|entry| entry.row.version);
        if own.is_some() && own != found {
            inner.forget(key);
        }
    }

    /// Remembers a row that this client has written, in place of the version that it has found.
    pub(crate) fn remember(&self, key: &Key, found: Option<Version>, row: Row, at: ServerTime) {
        let mut inner = self.inner();
        let alone = match (found, inner.entry(key)) {
            (None, _) => TRY_AFTER,
            (Some(found), Some(own)) if own.row.version == found => TRY_AFTER.min(own.alone + 1),
            _ => 0,
        };
        inner.forget(key);
        if row.bytes.len() > LONGEST_ROW {
            return;
        }
        if inner.recent.len() >= MOST_ROWS / 2 {
            inner.older = std::mem::take(&mut inner.recent);
        }
        let entry = Entry { row, at, alone };
        inner.recent.insert(key.clone(), entry);
    }

    /// Forgets a row: another client has written it.
    pub(crate) fn forget(&self, key: &Key) {
        self.inner().forget(key);
    }
}

impl Inner {
    fn entry(&self, key: &Key) -> Option<&Entry> {
        self.recent.get(key).or_else(|| self.older.get(key))
    }

    fn forget(&mut self, key: &Key) {
        self.recent.remove(key);
        self.older.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use leasehold_api::ClockId;

    use super::*;

    const START: ServerTime = ServerTime::from_micros(1_000_000_000);

    fn stamp(at: ServerTime) -> Stamp {
        let clock = ClockId::new(1);
        Stamp { clock, at }
    }

    fn key(name: &str) -> Key {
        Key::new(name).expect("valid")
    }

    fn row(version: u64) -> Row {
        Row::new(Version::new(version), vec![0; 100])
    }

    fn after(seconds: u64) -> Moment {
        Moment::default().saturating_add(Duration::from_secs(seconds))
    }

    fn version(memory: &Memory, name: &str) -> Option<u64> {
        let remembered = memory.recall(&key(name), after(0));
        remembered.map(|it| it.row.version.get())
    }

    /// A client writes `new` after it has found `found`.
    fn write(memory: &Memory, name: &str, found: Option<u64>, new: u64) {
        memory.saw_clock(stamp(START), after(0));
        memory.remember(&key(name), found.map(Version::new), row(new), START);
    }

    fn read(memory: &Memory, name: &str, found: u64) {
        let (stamp, row) = (stamp(START), Some(row(found)));
        memory.saw_read(&key(name), &Read::new(stamp, row), after(0));
    }

    #[test]
    fn row_is_tried_only_if_its_client_is_alone() {
        let memory = Memory::default();
        write(&memory, "a", None, 1);
        assert_eq!(version(&memory, "a"), Some(1), "it has created the row");
        write(&memory, "a", Some(1), 2);
        assert_eq!(version(&memory, "a"), Some(2));
        write(&memory, "a", Some(7), 8);
        assert_eq!(version(&memory, "a"), None, "another client wrote 7");
        write(&memory, "a", Some(8), 9);
        assert_eq!(
            version(&memory, "a"),
            None,
            "this may be the release of its only use"
        );
        write(&memory, "a", Some(9), 10);
        assert_eq!(version(&memory, "a"), Some(10));
        read(&memory, "a", 10);
        assert_eq!(version(&memory, "a"), Some(10));
        read(&memory, "a", 11);
        assert_eq!(version(&memory, "a"), None, "another client wrote 11");
        write(&memory, "a", Some(11), 12);
        assert_eq!(version(&memory, "a"), None);
        write(&memory, "b", Some(1), 2);
        assert_eq!(version(&memory, "b"), None, "the row existed");
    }

    #[test]
    fn time_is_behind_the_clock_and_not_before_the_row() {
        let memory = Memory::default();
        write(&memory, "a", None, 1);
        let now = |moment| memory.recall(&key("a"), moment).map(|it| it.now.at);
        assert_eq!(now(after(0)), Some(START));
        let estimate = now(after(10)).expect("remembered");
        let behind = START
            .saturating_add(Duration::from_secs(10))
            .saturating_since(estimate);
        assert!(behind > Duration::from_millis(9) && behind < Duration::from_millis(10));
        assert_eq!(now(after(11)), None, "the clock was read long ago");
        // Another answer says that the clock was stepped back.
        memory.saw_clock(stamp(ServerTime::from_micros(1)), after(11));
        assert_eq!(now(after(11)), Some(START));
    }

    #[test]
    fn memory_is_bounded() {
        let memory = Memory::default();
        for n in 0..10_000 {
            write(&memory, &n.to_string(), None, n + 1);
        }
        let inner = memory.inner();
        let size = inner.recent.len() + inner.older.len();
        assert!(size > MOST_ROWS / 2 && size <= MOST_ROWS, "{size}");
        drop(inner);
        assert_eq!(version(&memory, "9999"), Some(10_000));
        let mut long = row(1);
        long.bytes = vec![0; LONGEST_ROW + 1];
        memory.remember(&key("9999"), Some(Version::new(10_000)), long, START);
        assert_eq!(version(&memory, "9999"), None);
        let shown = format!("{memory:?}");
        assert!(!shown.contains("[0, 0"), "no bytes of a state");
    }
}
