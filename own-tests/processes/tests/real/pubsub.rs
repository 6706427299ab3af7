//! Subscriptions are killed repeatedly. Waiters notice it, stay in the queue, and still learn of
//! their grants.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use leasehold_api::{Inspection, LockClient, Mutex};
use leasehold_processes::{Library, RecordingBackend};
use leasehold_test_servers::{RedisServer, Stopwatch, eventually};
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

use crate::support::{assert_order, queue, recording_clients, until, waiters};

const CLIENTS: usize = 8;
/// The least number of acquisitions in a run of all waiters. Each waiter makes at least one.
const ACQUISITIONS: usize = 480;
/// Long enough that no waiter expires while a busy machine stalls.
const WAITER_LEASE: Duration = Duration::from_secs(30);
const HOLD: Duration = Duration::from_millis(5);
/// The pause between two kills, once all subscriptions are restored. Without a subscription, a
/// waiter finds its grant by a poll up to a second later, and these delays add up in the queue.
const BETWEEN_KILLS: Duration = Duration::from_millis(150);
/// The same for each waiter, if that is more: after a kill, all of them poll.
const BETWEEN_KILLS_PER_WAITER: Duration = Duration::from_millis(1);
/// The additional time that a wait may take while subscriptions are killed: a few of the waiters ahead
/// find their grants by a poll, up to a second late. A waiter whose grant is lost polls only after a third
/// of its waiter lease, 10 s. How many grants come late shows only in the simulator, where times are exact.
const ALLOWANCE: Duration = Duration::from_secs(4);
/// The time after which a step counts as hung, in addition to all turns.
const WATCHDOG: Duration = Duration::from_secs(60);
/// The longest mean time of a turn, on a busy machine.
const TURN: Duration = Duration::from_millis(150);

through_both_libraries!(pubsub_killed_under_contention);

async fn pubsub_killed_under_contention(library: Library) {
    let server = RedisServer::start();
    let waiters = waiters(CLIENTS);
    let clients = recording_clients(library, &server, CLIENTS, |it| {
        it.waiter_lease(WAITER_LEASE)
    })
    .await;
    // Subscribes all clients.
    waiters_are_kept(&server, &clients, waiters).await;

    let rounds = ACQUISITIONS.div_ceil(waiters);
    let calm = longest_wait(&clients, waiters, rounds, "calm").await;
    println!("{}: {calm:?} at most", library.name());
    let before = attempts(&clients);
    let kills = AtomicUsize::new(0);
    let killing = kill_repeatedly(connect(&server).await, waiters, &kills);
    let time = Stopwatch::start();
    let waiting = longest_wait(&clients, waiters, rounds, "killed");
    let killed = match select(pin!(waiting), pin!(killing)).await {
        Either::Left((longest, _)) => longest,
        Either::Right((never, _)) => match never {},
    };
    let stalled = time.stalled();
    // After the last kill too, all subscribe again.
    all_listen(&mut connect(&server).await).await;
    let (name, kills) = (library.name(), kills.load(Ordering::Relaxed));
    println!("{name}: {killed:?} with {kills} kills; the machine stalled for {stalled:?}");
    assert!(
        kills > 2 * CLIENTS,
        "only {kills} subscriptions were killed"
    );
    // Twice the calm time, because the machine may have become busier.
    let allowed = calm * 2 + ALLOWANCE + stalled;
    assert!(killed <= allowed, "{killed:?} with kills, {calm:?} without");
    for (recording, _) in &clients {
        assert_eq!(recording.waiters_lost(), 0, "no waiter is removed");
    }
    // Each lock was acquired by a waiter's first attempt: no waiter had to queue again.
    assert_eq!(attempts(&clients) - before, waiters * rounds);
}

type Client = (Arc<RecordingBackend>, LockClient);

fn attempts(clients: &[Client]) -> usize {
    let attempts = clients.iter().map(|(recording, _)| recording.attempts());
    attempts.sum()
}

fn mutex(locks: &LockClient, key: &str) -> Mutex {
    locks.mutex(key).expect("a good key")
}

/// All waiters repeatedly acquire the lock. Returns the longest wait.
async fn longest_wait(clients: &[Client], waiters: usize, rounds: usize, key: &str) -> Duration {
    let mut tasks = JoinSet::new();
    for (_, locks) in clients.iter().cycle().take(waiters) {
        let mutex = mutex(locks, key);
        tasks.spawn(async move {
            let mut longest = Duration::ZERO;
            for _ in 0..rounds {
                let began = Instant::now();
                let guard = mutex.lock().await.expect("acquired");
                longest = longest.max(began.elapsed());
                pause(HOLD).await;
                guard.release().await.expect("released");
            }
            longest
        });
    }
    let turns = u32::try_from(waiters * rounds).expect("few");
    let waits = tokio::time::timeout(WATCHDOG + TURN * turns, tasks.join_all()).await;
    let longest = waits.expect("nothing hangs").into_iter().max();
    longest.expect("at least one client")
}

/// A waiter whose subscription is killed is served in its turn.
async fn waiters_are_kept(server: &RedisServer, clients: &[Client], waiters: usize) {
    const KEY: &str = "parked";
    let gate = mutex(&clients[0].1, KEY).lock().await.expect("acquired");
    let served = Arc::new(StdMutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for (number, (_, locks)) in clients.iter().enumerate().cycle().take(waiters) {
        let (mutex, served) = (mutex(locks, KEY), Arc::clone(&served));
        tasks.spawn(async move {
            let guard = mutex.lock().await.expect("acquired");
            let label = format!("client-{number}");
            served.lock().expect("no panic").push(label);
            guard.release().await.expect("released");
        });
    }
    let locks = &clients[0].1;
    let all = |seen: &Inspection| seen.waiter_count() as usize == waiters;
    let waiting = queue(&until(locks, KEY, "all wait", all).await);
    let mut connection = connect(server).await;
    for _ in 0..3 {
        all_listen(&mut connection).await;
        let killed = kill_all(&mut connection).await;
        assert!(killed >= CLIENTS, "only {killed} of {CLIENTS} were killed");
        pause(BETWEEN_KILLS).await;
    }
    all_listen(&mut connection).await;
    let still = queue(&until(locks, KEY, "all wait", all).await);
    assert_order(&still, &waiting, "no waiter has lost its turn");
    gate.release().await.expect("released");
    let turns = u32::try_from(waiters).expect("few");
    let all_served = tokio::time::timeout(WATCHDOG + TURN * turns, tasks.join_all()).await;
    all_served.expect("nothing hangs");
    let served = served.lock().expect("no panic").clone();
    assert_order(
        &served,
        &waiting,
        "waiters are served in the order of the queue",
    );
}

async fn all_listen(connection: &mut MultiplexedConnection) {
    eventually("all listen", async || {
        let request = redis::cmd("PUBSUB").arg("CHANNELS").to_owned();
        let channels: Vec<String> = request.query_async(connection).await.expect("a list");
        channels.len() == CLIENTS
    })
    .await;
}

#[expect(
    clippy::disallowed_methods,
    reason = "a hold, or the time between two kills"
)]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

async fn connect(server: &RedisServer) -> MultiplexedConnection {
    let client = redis::Client::open(server.url()).expect("a good URL");
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(WATCHDOG))
        .set_response_timeout(Some(WATCHDOG));
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    connection.await.expect("connected")
}

/// Kills all subscriptions of a server. Returns their number.
async fn kill_all(connection: &mut MultiplexedConnection) -> usize {
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("pubsub");
    kill.query_async(connection).await.expect("a count")
}

/// Repeatedly kills all subscriptions of a server, and counts them.
async fn kill_repeatedly(
    mut connection: MultiplexedConnection,
    waiters: usize,
    killed: &AtomicUsize,
) -> Infallible {
    let waiters = u32::try_from(waiters).expect("few");
    let time = BETWEEN_KILLS.max(BETWEEN_KILLS_PER_WAITER * waiters);
    loop {
        killed.fetch_add(kill_all(&mut connection).await, Ordering::Relaxed);
        all_listen(&mut connection).await;
        pause(time).await;
    }
}
