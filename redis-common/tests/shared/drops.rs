//! Futures dropped at random moments leave nothing behind.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::TryFutureExt as _;
use leasehold_api::{BoxFuture, LockBackend as _, LockClient, Mutex, Outcome};
use leasehold_redis_common::Options;
use leasehold_test_servers::{RedisServer, Stopwatch, eventually};
use tokio::task::JoinSet;

use super::recording::{Phase, RecordingBackend};
use super::support::connected_with;

/// The number of futures to drop: a tenth of a long run, or the value of
/// `LEASEHOLD_DROPPED_FUTURES`.
const DROPS: u32 = 1_000;
/// Futures are dropped in waves, so that each wave is checked before its leftovers expire.
const WAVE: u32 = 500;
const CLIENTS: usize = 16;
/// The number of attempts on one key, sequential or concurrent.
const ATTEMPTS_PER_KEY: u32 = 4;
const LEASE: Duration = Duration::from_secs(10);
/// The maximum delay of replies and pushes.
const MAX_DELAY: Duration = Duration::from_millis(1);
/// Longer than the stalls of a busy machine. A shorter timeout would make clients retry calls, which this doesn't examine.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// A future is dropped after a few polls, or within this time.
const MAX_LIFETIME_US: u64 = 3_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_futures_leave_nothing() {
    let wanted = match std::env::var("LEASEHOLD_DROPPED_FUTURES") {
        Ok(text) => text.parse().expect("LEASEHOLD_DROPPED_FUTURES is a number"),
        Err(_) => DROPS,
    };
    let server = RedisServer::start();
    let mut droppers = Vec::new();
    for _ in 0..CLIENTS {
        droppers.push(dropper(&server.url()).await);
    }
    let mut total = Counts::default();
    let (mut keys, mut left_after_1_s, mut suspects) = (0, 0, Vec::new());
    while total.dropped < wanted {
        let wave = WAVE.min(wanted - total.dropped);
        let first_key = keys;
        total.add(&drop_some(&droppers, wave, &mut keys).await);
        let since = Stopwatch::start();
        eventually("a second passes, without stalls", async || {
            since.elapsed() > Duration::from_secs(1)
        })
        .await;
        for key in first_key..keys {
            let left = left_on(&droppers[0].1, key).await;
            if left > 0 {
                left_after_1_s += left;
                suspects.push(key);
            }
        }
    }
    println!("{total:?}; {left_after_1_s} left after 1 s");
    let enough_sent = total.sent * 5 >= total.dropped;
    assert!(
        enough_sent,
        "{total:?}: too few were dropped after the send"
    );
    let enough_granted = total.granted * 20 >= total.dropped;
    assert!(
        enough_granted,
        "{total:?}: too few were dropped after the grant"
    );
    let few_left = left_after_1_s * 100 <= total.dropped;
    assert!(few_left, "{left_after_1_s} left after 1 s, {total:?}");
    for key in suspects {
        eventually("nothing is left after the lease", async || {
            left_on(&droppers[0].1, key).await == 0
        })
        .await;
    }
}

type Dropper = (Arc<RecordingBackend>, LockClient);

/// A client that records what it does, and holds back what it hears.
async fn dropper(url: &str) -> Dropper {
    let options = Options::new()
        .call_timeout(CALL_TIMEOUT)
        .connect_timeout(CALL_TIMEOUT);
    let backend = RecordingBackend::new(connected_with(url, options).await, MAX_DELAY);
    let recording = Arc::new(backend);
    let locks = LockClient::builder(Arc::clone(&recording)).call_timeout(CALL_TIMEOUT);
    (recording, locks.build().expect("good settings"))
}

#[derive(Debug, Default)]
struct Counts {
    /// Futures dropped before they completed.
    dropped: u32,
    /// Of these, dropped after the acquire was sent.
    sent: u32,
    /// Of these, dropped after this process received the grant.
    granted: u32,
    /// Futures that completed before they could be dropped.
    ready: u32,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.dropped += other.dropped;
        self.sent += other.sent;
        self.granted += other.granted;
        self.ready += other.ready;
    }
}

/// Drops `wanted` futures of all clients concurrently. `keys` counts the keys used so far.
async fn drop_some(droppers: &[Dropper], wanted: u32, keys: &mut u32) -> Counts {
    let (left, attempts) = (
        Arc::new(AtomicU32::new(wanted)),
        Arc::<AtomicU32>::default(),
    );
    let first_key = *keys;
    let mut tasks = JoinSet::new();
    for (recording, locks) in droppers {
        let (recording, locks) = (Arc::clone(recording), locks.clone());
        let (left, attempts) = (Arc::clone(&left), Arc::clone(&attempts));
        tasks.spawn(async move {
            let mut counts = Counts::default();
            while take_one(&left) {
                // Repeats until one future was dropped. Futures that complete don't count.
                let before = counts.dropped;
                while counts.dropped == before {
                    let number = attempts.fetch_add(1, Ordering::Relaxed);
                    let key = name(first_key + number / ATTEMPTS_PER_KEY);
                    let mutex = locks.mutex(key).expect("a good key").lease(LEASE);
                    drop_one(&recording, &mutex, &mut counts).await;
                }
            }
            counts
        });
    }
    let mut all = Counts::default();
    for counts in tasks.join_all().await {
        all.add(&counts);
    }
    *keys += attempts.load(Ordering::Relaxed).div_ceil(ATTEMPTS_PER_KEY);
    all
}

fn take_one(left: &AtomicU32) -> bool {
    let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
        left.checked_sub(1)
    });
    taken.is_ok()
}

fn name(key: u32) -> String {
    format!("drop-{key}")
}

/// Acquires the lock with a random method and drops the future at a random moment. If the future
/// completes first, releases the guard and drops that future at a random moment.
async fn drop_one(recording: &RecordingBackend, mutex: &Mutex, counts: &mut Counts) {
    let random = || recording.runtime().random_u64();
    recording.take_phase();
    let acquire: BoxFuture<'_, _> = match random() % 3 {
        0 => Box::pin(mutex.lock().map_ok(Outcome::Acquired)),
        1 => Box::pin(mutex.try_lock()),
        _ => Box::pin(mutex.try_lock_for(Duration::from_millis(50))),
    };
    let outcome = run_briefly(random(), acquire).await;
    let phase = recording.take_phase();
    let Some(outcome) = outcome else {
        counts.dropped += 1;
        counts.sent += u32::from(phase >= Phase::Sent);
        counts.granted += u32::from(phase >= Phase::Granted);
        return;
    };
    counts.ready += 1;
    match outcome {
        Ok(Outcome::Contended(_)) => {}
        Ok(Outcome::Acquired(guard)) => {
            // Dropped or completed: the outcome doesn't matter.
            let _ = run_briefly(random(), guard.release()).await;
        }
        // The time limit was over before a reply arrived.
        Err(error) => assert!(error.is_transient(), "{error}"),
    }
}

/// Runs a future for a few polls or a short time. Returns `None` if it was dropped.
async fn run_briefly<F: Future>(random: u64, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    if random.is_multiple_of(2) {
        let mut polls = random / 2 % 6;
        return poll_fn(|cx| {
            if polls == 0 {
                return Poll::Ready(None);
            }
            polls -= 1;
            match future.as_mut().poll(cx) {
                Poll::Pending if polls > 0 => Poll::Pending,
                Poll::Pending => Poll::Ready(None),
                Poll::Ready(output) => Poll::Ready(Some(output)),
            }
        })
        .await;
    }
    let lifetime = Duration::from_micros(random / 2 % MAX_LIFETIME_US);
    tokio::time::timeout(lifetime, future).await.ok()
}

/// The number of holders and waiters of a key.
async fn left_on(locks: &LockClient, key: u32) -> u32 {
    let seen = locks.inspect(name(key)).await.expect("an answer");
    seen.holder_count() + seen.waiter_count()
}
