//! Clients that compete for a few locks, and what they saw on one monotonic clock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leasehold_api::{FencingToken, LockClient};
use tokio::task::JoinSet;

/// Short enough that a lock whose release was lost is free again soon.
const LEASE: Duration = Duration::from_secs(3);
/// A guard is held for this many pauses, and its validity is asked after each.
const PAUSES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(2);

/// A guard that somebody had.
#[derive(Clone, Copy)]
pub(crate) struct Hold {
    pub(crate) client: usize,
    pub(crate) token: FencingToken,
    /// The guard was certainly valid from here …
    pub(crate) from: Instant,
    /// … to here: after the future of `lock` had returned, and before `release` was called.
    pub(crate) until: Instant,
}

/// From the call of a release to the return of the next holder's `lock`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandOver {
    pub(crate) at: Instant,
    pub(crate) took: Duration,
}

/// What all clients of a cluster saw.
#[derive(Default)]
pub(crate) struct Seen {
    holds: HashMap<String, Vec<Hold>>,
    hand_overs: Vec<HandOver>,
    released: HashMap<String, Instant>,
    pub(crate) errors: Vec<String>,
}

impl Seen {
    pub(crate) fn grants(&self) -> usize {
        self.holds.values().map(Vec::len).sum()
    }

    /// The hand-overs that ended in this time.
    pub(crate) fn hand_overs(&self, from: Instant, to: Instant) -> Vec<HandOver> {
        let within = |it: &&HandOver| (from..to).contains(&it.at);
        self.hand_overs.iter().filter(within).copied().collect()
    }

    /// Pairs of guards that were valid at one instant.
    pub(crate) fn overlaps(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (key, holds) in &self.holds {
            let mut holds = holds.clone();
            holds.sort_by_key(|hold| hold.from);
            let mut last: Option<Hold> = None;
            for hold in holds {
                if let Some(last) = last.filter(|last| hold.from < last.until) {
                    found.push(describe(key, last, hold));
                }
                last = last.filter(|last| last.until >= hold.until).or(Some(hold));
            }
        }
        found
    }

    /// Pairs of guards with one token.
    pub(crate) fn tokens_twice(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (key, holds) in &self.holds {
            let mut holds = holds.clone();
            holds.sort_by_key(|hold| hold.token);
            for pair in holds.windows(2).filter(|it| it[0].token == it[1].token) {
                found.push(describe(key, pair[0], pair[1]));
            }
        }
        found
    }

    fn note_grant(&mut self, key: &str, at: Instant) {
        if let Some(released) = self.released.remove(key) {
            let took = at - released;
            self.hand_overs.push(HandOver { at, took });
        }
    }

    fn note_release(&mut self, key: &str, hold: Hold) {
        self.holds.entry(key.into()).or_default().push(hold);
        self.released.insert(key.into(), Instant::now());
    }
}

fn describe(key: &str, first: Hold, second: Hold) -> String {
    let (one, other) = (first.client, second.client);
    format!(
        "{key}: client {one} with {:?} for {:?}, and {:?} later client {other} with {:?} for {:?}",
        first.token,
        first.until - first.from,
        second.from.saturating_duration_since(first.from),
        second.token,
        second.until - second.from,
    )
}

/// The clients, and what they have seen so far. Dropping it stops them.
pub(crate) struct Load {
    seen: Arc<Mutex<Seen>>,
    _tasks: JoinSet<()>,
}

impl Load {
    /// Starts some tasks of each client. Each of them takes one key after the other.
    pub(crate) fn start(clients: &[LockClient], tasks: usize, keys: &[String]) -> Self {
        let seen = Arc::default();
        let mut running = JoinSet::new();
        for (client, locks) in clients.iter().enumerate() {
            for task in 0..tasks {
                let (locks, seen) = (locks.clone(), Arc::clone(&seen));
                let mut keys = keys.to_vec();
                let first = (client + task) % keys.len();
                keys.rotate_left(first);
                running.spawn(async move {
                    for key in keys.iter().cycle() {
                        take(client, &locks, key, &seen).await;
                    }
                });
            }
        }
        Self {
            seen,
            _tasks: running,
        }
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }
}

/// Takes a lock once, and releases it a few milliseconds later.
async fn take(client: usize, locks: &LockClient, key: &str, seen: &Mutex<Seen>) {
    let mutex = locks.mutex(key).expect("a good key").lease(LEASE);
    let guard = match mutex.lock().await {
        Ok(guard) => guard,
        Err(error) => {
            lock(seen).errors.push(error.to_string());
            // Not again at once: the error is permanent.
            return tokio::time::sleep(LEASE).await;
        }
    };
    let from = Instant::now();
    lock(seen).note_grant(key, from);
    let mut until = from;
    for _ in 0..PAUSES {
        tokio::time::sleep(PAUSE).await;
        let now = Instant::now();
        if !guard.is_valid() {
            break;
        }
        until = now;
    }
    let hold = Hold {
        client,
        token: guard.fencing_token(),
        from,
        until,
    };
    lock(seen).note_release(key, hold);
    // Without an answer, the client goes on releasing in the background.
    let _ = guard.release().await;
}

/// Ignores poisoning: what was seen is always valid.
fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
