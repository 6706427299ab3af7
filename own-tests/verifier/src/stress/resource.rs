//! The resource that the lock protects. It checks fencing tokens in two ways.
//!
//! - A plain write is refused if its token is lower than the highest that was accepted.
//! - A counter is read, and one more is written back later. Before it reads, a user claims its token
//!   at the counter, which refuses all older ones from then on. Without the claim, an older holder
//!   could still write after a newer one has read, and the newer one would overwrite that addition.

use leasehold_api::Key;
use litemap::LiteMap;

/// A mistake of the resource or of its users, which the checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Plain writes are never refused.
    TakesOlderTokens,
    /// Users read the counter without a claim. Only their write is checked.
    ReadsWithoutClaim,
}

#[derive(Debug, Default)]
pub(crate) struct Resource {
    flaw: Option<Flaw>,
    /// The highest token of a plain write to each key.
    highest: LiteMap<Key, u64>,
    counters: LiteMap<Key, Counter>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    value: u32,
    /// The highest token that claimed the counter or wrote it.
    fence: u64,
}

/// A claim was made too late: the resource has accepted this greater token.
pub(crate) struct Refused(pub(crate) u64);

impl Resource {
    pub(crate) fn new(flaw: Option<Flaw>) -> Self {
        Self {
            flaw,
            ..Self::default()
        }
    }

    pub(crate) fn write(&mut self, key: &Key, token: u64) -> Result<(), Refused> {
        let highest = self.highest.entry(key.clone()).or_default();
        if token < *highest && self.flaw != Some(Flaw::TakesOlderTokens) {
            return Err(Refused(*highest));
        }
        *highest = token.max(*highest);
        Ok(())
    }

    /// Claims the counter: it refuses lower tokens from now on.
    pub(crate) fn claim(&mut self, key: &Key, token: u64) -> Result<(), Refused> {
        let unclaimed = self.flaw == Some(Flaw::ReadsWithoutClaim);
        let counter = self.counter(key);
        if token < counter.fence {
            return Err(Refused(counter.fence));
        }
        if !unclaimed {
            counter.fence = token;
        }
        Ok(())
    }

    pub(crate) fn read(&mut self, key: &Key) -> u32 {
        self.counter(key).value
    }

    /// Writes one more than was read. Returns the value that this replaces.
    pub(crate) fn add(&mut self, key: &Key, token: u64, read: u32) -> Result<u32, Refused> {
        let counter = self.counter(key);
        if token < counter.fence {
            return Err(Refused(counter.fence));
        }
        counter.fence = token;
        Ok(std::mem::replace(&mut counter.value, read + 1))
    }

    fn counter(&mut self, key: &Key) -> &mut Counter {
        self.counters.entry(key.clone()).or_default()
    }
}
