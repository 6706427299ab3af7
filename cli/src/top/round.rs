//! One look at all keys.

use std::cmp::Reverse;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use leasehold::inspect::{Inspection, Role};
use leasehold::{Error, Key, LockClient};
use tokio::time::{Instant, timeout_at};

/// How many keys a round asks for.
pub(super) const KEYS: usize = 500;
/// How long a round may take: on Redis, the listing walks over everything that the server has.
pub(super) const TIME: Duration = Duration::from_secs(5);
/// How many keys are asked for at once.
const AT_ONCE: usize = 16;

/// What a round has found.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// The keys in use, those with the most waiters first.
    pub(super) keys: Vec<Inspection>,
    /// Why it is not all.
    pub(super) partial: Option<String>,
}

impl Round {
    /// Lists the keys and asks for each.
    ///
    /// # Errors
    /// The first error of a call.
    pub(super) async fn run(locks: &LockClient, prefix: &str) -> Result<Self, Error> {
        let until = Instant::now() + TIME;
        let late = || format!("the first that came within {TIME:?}");
        let mut round = Self::default();
        let mut listed = Vec::new();
        round.partial = match timeout_at(until, list(locks, prefix, &mut listed)).await {
            Ok(complete) => (!complete?).then(|| format!("the first {KEYS} keys")),
            Err(_) => Some(late()),
        };
        // A listing that used all the time has something to show too.
        let until = until.max(Instant::now() + TIME / 5);
        let asked = stream::iter(&listed).map(|key| locks.inspect(key));
        let mut asked = asked.buffer_unordered(AT_ONCE);
        loop {
            match timeout_at(until, asked.next()).await {
                Ok(None) => break,
                // Something else lives under a name like that of a lock.
                Ok(Some(Err(Error::ForeignValue { .. }))) => {}
                Ok(Some(state)) => round.keys.extend(Some(state?).filter(is_in_use)),
                Err(_) => {
                    round.partial = Some(late());
                    break;
                }
            }
        }
        round.keys.sort_by(|a, b| order(a).cmp(&order(b)));
        Ok(round)
    }
}

/// Lists the keys, up to the limit. Returns whether these are all.
async fn list(locks: &LockClient, prefix: &str, listed: &mut Vec<Key>) -> Result<bool, Error> {
    let mut listing = locks.list(prefix)?;
    while let Some(keys) = listing.next_page().await? {
        listed.extend(keys);
        if listed.len() > KEYS {
            listed.truncate(KEYS);
            return Ok(false);
        }
    }
    Ok(true)
}

/// A free key is listed for a while after its last use. A job has a record, also while nobody runs it.
fn is_in_use(state: &Inspection) -> bool {
    state.spec().is_some() || state.role() == Some(Role::Job)
}

fn order(state: &Inspection) -> (Reverse<u32>, Reverse<u32>, &str) {
    let (waiters, holders) = (state.waiter_count(), state.holder_count());
    (Reverse(waiters), Reverse(holders), state.key().as_str())
}
