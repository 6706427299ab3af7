//! What a free lock costs where nothing is known of its key: keys that are new each time, and clients that take turns. Beside it
//! the least that a compare-and-set can cost: two bare commands.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::redis_rs::Options;
use leasehold::{LockClient, Mutex};
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, Value};

use crate::Result;
use crate::figures::measurement::{Fixture, Goal, Reading, median};
use crate::floor::Floor;
use crate::library::{Library, each_key};
use crate::load::side_by_side;
use crate::lock::{FloorLock, Pair};

const TASKS: usize = 64;

pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    let mut readings = vec![new_keys(fixture).await?, turns(fixture).await?];
    if fixture.library == Library::RedisRs {
        readings.extend(bare(fixture).await?);
    }
    Ok(readings)
}

/// The pairs per second of the first locks, over those of the others.
async fn compared<L: Pair, M: Pair>(
    (name, fixture): (&str, &Fixture),
    own: Vec<L>,
    least: Vec<M>,
) -> Result<Reading> {
    let (own, least) = (Arc::new(own), Arc::new(least));
    let time = Duration::from_millis(fixture.effort.of(20, 250));
    side_by_side(&least, time / 4).await?;
    side_by_side(&own, time / 4).await?;
    let (mut own_rates, mut least_rates) = (Vec::new(), Vec::new());
    for _ in 0..fixture.effort.of(1, 5) {
        least_rates.push(side_by_side(&least, time).await?);
        own_rates.push(side_by_side(&own, time).await?);
    }
    let reading = Reading::new(format!("free_lock.{name}"), median(own_rates), "pairs/s");
    Ok(reading.over(median(least_rates)))
}

/// A lock on another key each time.
struct NewKeys<T> {
    source: T,
    task: usize,
    count: AtomicU64,
}

impl<T> NewKeys<T> {
    fn each(source: impl Fn() -> T) -> Vec<Self> {
        let tasks = (0..TASKS).map(|task| Self {
            source: source(),
            task,
            count: AtomicU64::new(0),
        });
        tasks.collect()
    }

    fn key(&self) -> String {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        format!("new-{}-{count}", self.task)
    }
}

impl Pair for NewKeys<LockClient> {
    async fn pair(&self) -> Result<()> {
        self.source.mutex(self.key())?.pair().await
    }
}

impl Pair for NewKeys<Floor> {
    async fn pair(&self) -> Result<()> {
        FloorLock::new(&self.source, self.key()).pair().await
    }
}

/// Each task has a key that nobody has ever used, over the same with the floor.
async fn new_keys(fixture: &Fixture) -> Result<Reading> {
    let locks = fixture.library.connect(&fixture.url()).await?;
    let floor = fixture.library.floor(&fixture.url()).await?;
    let own = NewKeys::each(|| locks.clone());
    let least = NewKeys::each(|| floor.clone());
    let reading = compared(("new_keys.64", fixture), own, least).await?;
    locks.shutdown().await?;
    Ok(reading.goal(Goal::RatioAtLeast(0.7)))
}

/// The mutexes of two clients, which have the lock in turn.
struct Turns([Mutex; 2]);

impl Pair for Turns {
    async fn pair(&self) -> Result<()> {
        self.0[0].pair().await?;
        self.0[1].pair().await
    }
}

/// Two clients take turns with a key, over the same with scripts alone.
async fn turns(fixture: &Fixture) -> Result<Reading> {
    let (url, mut clients) = (fixture.url(), Vec::new());
    for compares in [true, true, false, false] {
        let options = Options::new().compare_and_set(compares);
        let backend = fixture.library.backend_with(&url, options).await?;
        clients.push(LockClient::new(backend));
    }
    let turns = |key, one: usize, other: usize| -> Result<_> {
        Ok(vec![Turns([
            clients[one].mutex(key)?,
            clients[other].mutex(key)?,
        ])])
    };
    let (own, scripts) = (turns("turns", 0, 1)?, turns("scripted-turns", 2, 3)?);
    let reading = compared(("turns", fixture), own, scripts).await?;
    for locks in clients {
        locks.shutdown().await?;
    }
    Ok(reading.goal(Goal::RatioAtLeast(0.95)))
}

/// About as long as the stored string of a mutex.
const STRINGS: [[u8; 170]; 2] = [[b'0'; 170], [b'1'; 170]];

/// Two bare commands, as a lock sends them to a server that compares.
struct Bare {
    connection: MultiplexedConnection,
    key: String,
}

impl Pair for Bare {
    async fn pair(&self) -> Result<()> {
        for [old, new] in [STRINGS, [STRINGS[1], STRINGS[0]]] {
            let mut set = redis::cmd("SET");
            set.arg(&self.key).arg(&new).arg("IFEQ").arg(&old);
            match set.query_async(&mut self.connection.clone()).await? {
                Value::Okay => {}
                _ => return Err("the key has another string".into()),
            }
        }
        Ok(())
    }
}

/// Known keys, over two bare commands for each. Nothing if the server can't compare.
async fn bare(fixture: &Fixture) -> Result<Option<Reading>> {
    let client = redis::Client::open(fixture.url())?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut probe = redis::cmd("SET");
    probe.arg("probe").arg("new").arg("IFEQ").arg("old");
    if probe.query_async::<Value>(&mut connection).await.is_err() {
        return Ok(None);
    }
    let mut least = Vec::new();
    for task in 0..TASKS {
        let (key, mut connection) = (format!("bare-{task}"), connection.clone());
        let () = connection.set(&key, &STRINGS[0]).await?;
        least.push(Bare { connection, key });
    }
    let locks = fixture.library.connect(&fixture.url()).await?;
    let own = each_key(&locks, (0..TASKS).map(|task| format!("free-{task}")))?;
    let reading = compared(("bare.64", fixture), own, least).await?;
    locks.shutdown().await?;
    Ok(Some(reading.goal(Goal::RatioAtLeast(0.65))))
}
