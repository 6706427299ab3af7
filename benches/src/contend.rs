//! Several clients that want one mutex, again and again.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold::LockClient;
use redis::RedisError;
use redis::aio::MultiplexedConnection;

use crate::counting::{Counts, Snapshot};
use crate::samples::Samples;

/// Time for all to get into the queue before anything counts.
const WARM_UP: Duration = Duration::from_millis(500);

/// How long each keeps the lock, and stays away from it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// From having it to giving it back.
    pub hold: Duration,
    /// From having given it back to asking again.
    pub away: Duration,
}

/// What was measured.
#[derive(Debug, Default)]
pub struct Contention {
    /// From the beginning of a release to the other client's having the lock, for those who
    /// waited when the release began.
    pub hand_over: Samples,
    /// From asking to having.
    pub wait: Samples,
    /// From having to the beginning of the release.
    pub hold: Samples,
    /// How often each client had the lock.
    pub by_client: Vec<u64>,
    /// For how long it was measured.
    pub time: Duration,
    /// Calls to the backends meanwhile.
    pub calls: Snapshot,
    /// What the server counted meanwhile.
    pub scripts: Scripts,
}

/// Calls of EVALSHA and EVAL.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scripts {
    /// How many.
    pub calls: u64,
    /// The server's time for all of them, in microseconds.
    pub micros: u64,
}

impl Contention {
    /// How often the lock was had.
    #[must_use]
    pub const fn acquisitions(&self) -> usize {
        self.wait.count()
    }

    /// The same, for each second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.acquisitions() as f64 / self.time.as_secs_f64()
    }
}

/// What the contenders share.
#[derive(Debug)]
struct Arena {
    /// Who began to release last, and when.
    released: Mutex<Option<(usize, Instant)>>,
    counts: AtomicBool,
    over: AtomicBool,
}

/// Lets the clients contend for `key` for so long.
///
/// # Errors
/// [`leasehold::Error`] of any of them.
///
/// # Panics
/// If one of the tasks does.
pub async fn contend(
    clients: Vec<LockClient>,
    counts: &Counts,
    server: &mut MultiplexedConnection,
    key: &str,
    pace: Pace,
    time: Duration,
) -> Result<Contention, Box<dyn Error>> {
    let arena = Arc::new(Arena {
        released: Mutex::default(),
        counts: AtomicBool::new(false),
        over: AtomicBool::new(false),
    });
    let mut tasks = Vec::new();
    for (number, locks) in clients.into_iter().enumerate() {
        let (arena, mutex) = (Arc::clone(&arena), locks.mutex(key)?);
        tasks.push(tokio::spawn(async move {
            contender(number, &mutex, &arena, pace).await
        }));
    }
    tokio::time::sleep(WARM_UP).await;
    let scripts = script_calls(server).await?;
    let (begun, before) = (Instant::now(), counts.snapshot());
    arena.counts.store(true, Ordering::Relaxed);
    tokio::time::sleep(time).await;
    arena.counts.store(false, Ordering::Relaxed);
    let mut all = Contention {
        time: begun.elapsed(),
        calls: counts.snapshot().since(before),
        scripts: script_calls(server).await?.since(scripts),
        ..Contention::default()
    };
    arena.over.store(true, Ordering::Relaxed);
    for task in tasks {
        let own = task.await??;
        all.hand_over.merge(own.hand_over);
        all.by_client.push(own.wait.count() as u64);
        all.wait.merge(own.wait);
        all.hold.merge(own.hold);
    }
    Ok(all)
}

impl Scripts {
    const fn since(self, earlier: Self) -> Self {
        Self {
            calls: self.calls - earlier.calls,
            micros: self.micros - earlier.micros,
        }
    }
}

async fn script_calls(server: &mut MultiplexedConnection) -> Result<Scripts, RedisError> {
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(server)
        .await?;
    let mut all = Scripts::default();
    for line in stats.lines() {
        if let Some((name, fields)) = line.split_once(':')
            && ["cmdstat_evalsha", "cmdstat_eval"].contains(&name)
        {
            all.calls += field(fields, "calls");
            all.micros += field(fields, "usec");
        }
    }
    Ok(all)
}

/// A number out of `name=1,other=2`; 0 without it.
fn field(fields: &str, wanted: &str) -> u64 {
    let mut named = fields.split(',').filter_map(|field| field.split_once('='));
    named
        .find(|(name, _)| *name == wanted)
        .and_then(|(_, number)| number.parse().ok())
        .unwrap_or_default()
}

async fn contender(
    number: usize,
    mutex: &leasehold::Mutex,
    arena: &Arena,
    pace: Pace,
) -> Result<Contention, leasehold::Error> {
    let mut seen = Contention::default();
    while !arena.over.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let guard = mutex.lock().await?;
        let had = Instant::now();
        let released = *arena
            .released
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !pace.hold.is_zero() {
            tokio::time::sleep(pace.hold).await;
        }
        let releasing = Instant::now();
        *arena
            .released
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some((number, releasing));
        guard.release().await?;
        if arena.counts.load(Ordering::Relaxed) {
            seen.wait.add(had - asked);
            seen.hold.add(releasing - had);
            if let Some((by, at)) = released
                && by != number
                && at > asked
            {
                seen.hand_over.add(had.saturating_duration_since(at));
            }
        }
        if !pace.away.is_zero() {
            tokio::time::sleep(pace.away).await;
        }
    }
    Ok(seen)
}
