//! What this client has seen of the rows, and since when.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use leasehold_api::{Key, Moment, ServerTime};

use super::row::{Header, Promise};
use crate::lock;

/// At most this many keys are remembered. If one is forgotten, its observation begins anew, which is safe, and late.
const MOST_KEYS: usize = 32_768;

/// The time of each row, as this client has observed it.
#[derive(Debug, Default)]
pub(super) struct KeyTimes(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// When half of all keys are recent, the older ones are forgotten.
    recent: BTreeMap<Key, SeenRow>,
    older: BTreeMap<Key, SeenRow>,
}

#[derive(Clone, Copy, Debug)]
struct SeenRow {
    version: u64,
    /// When this version was first received.
    changed: Moment,
    promise: Promise,
    /// How far the time of the row is ahead of our clock, in µs. It is the greatest of the rows with this promise. A row that
    /// is seen again says less, so the first sight counts.
    ahead: i128,
    keep_until: ServerTime,
}

impl SeenRow {
    fn time(&self, now: Moment) -> ServerTime {
        let micros = (self.ahead + micros(now)).max(0);
        ServerTime::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

fn micros(moment: Moment) -> i128 {
    i128::try_from(moment.since_origin().as_micros()).unwrap_or(i128::MAX / 2)
}

impl KeyTimes {
    /// Notes a row that was received before `now`, when its time was at least this one, and returns its time.
    pub(super) fn saw(&self, key: &Key, row: &Header, at: ServerTime, now: Moment) -> ServerTime {
        let mut inner = lock(&self.0);
        let ahead = i128::from(at.as_micros()) - micros(now);
        let known = inner.take(key);
        let same = known.filter(|known| known.version == row.version);
        let known = known.filter(|known| known.promise == row.promise);
        let row = SeenRow {
            version: row.version,
            changed: same.map_or(now, |same| same.changed),
            promise: row.promise,
            ahead: known.map_or(ahead, |known| known.ahead.max(ahead)),
            keep_until: row.keep_until,
        };
        inner.insert(key, row);
        row.time(now)
    }

    /// How long ago the last change of the row was received.
    pub(super) fn last_change(&self, key: &Key, now: Moment) -> Option<Duration> {
        let changed = lock(&self.0).get(key)?.changed;
        Some(now.saturating_since(changed))
    }

    /// Forgets a key that has no row.
    pub(super) fn forget(&self, key: &Key) {
        lock(&self.0).take(key);
    }

    /// The keys whose rows may be removed.
    pub(super) fn over(&self, now: Moment) -> Vec<Key> {
        let inner = lock(&self.0);
        let is_over = |row: &SeenRow| row.time(now) >= row.keep_until;
        let all = inner.recent.iter().chain(&inner.older);
        let over = all.filter(|(_, row)| is_over(row));
        over.map(|(key, _)| key.clone()).collect()
    }
}

impl Inner {
    fn get(&self, key: &Key) -> Option<&SeenRow> {
        self.recent.get(key).or_else(|| self.older.get(key))
    }

    fn take(&mut self, key: &Key) -> Option<SeenRow> {
        let recent = self.recent.remove(key);
        recent.or_else(|| self.older.remove(key))
    }

    fn insert(&mut self, key: &Key, row: SeenRow) {
        if self.recent.len() >= MOST_KEYS / 2 {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(key.clone(), row);
    }
}
