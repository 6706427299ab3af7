//! Waiters that die in the queue delay the others by one waiter lease together, whatever their
//! number.

use std::sync::Arc;
use std::time::Duration;

use leasehold_processes::{Library, RecordingBackend};
use leasehold_test_servers::{RedisServer, Stopwatch};
use rustix::process::Signal;

use crate::support::{
    Behavior, Grant, PROCESSES, Processes, assert_order, client, connect, until, waiters,
};

/// The queue positions of waiters whose processes die, with all their waiters. They are not adjacent,
/// so that a cost for each one would add up to five waiter leases or more.
const VICTIMS: [usize; 5] = [1, 7, 13, 19, 25];
const WAITER_LEASE: Duration = Duration::from_secs(3);
/// The maximum time between two polls.
const POLL: Duration = Duration::from_secs(1);
/// An allowance, less than another waiter lease.
const MARGIN: Duration = Duration::from_millis(1_500);
const KEY: &str = "dead";

through_both_libraries!(
    dead_waiters_cost_one_waiter_lease_killed,
    dead_waiters_cost_one_waiter_lease_stopped
);

async fn dead_waiters_cost_one_waiter_lease_killed(library: Library) {
    dead_waiters_cost_one_waiter_lease(library, Signal::KILL).await;
}

async fn dead_waiters_cost_one_waiter_lease_stopped(library: Library) {
    dead_waiters_cost_one_waiter_lease(library, Signal::STOP).await;
}

async fn dead_waiters_cost_one_waiter_lease(library: Library, signal: Signal) {
    let server = RedisServer::start();
    let backend = RecordingBackend::new(connect(library, &server).await);
    let backend = backend.waiter_lease(WAITER_LEASE);
    let locks = client(Arc::new(backend), "test");
    let mutex = locks.mutex(KEY).expect("a good key");
    let gate = mutex.lock().await.expect("acquired");
    let behavior = Behavior {
        waiters: waiters(PROCESSES),
        rounds: 1,
        waiter_lease: WAITER_LEASE,
    };
    let mut processes = Processes::start(library, &server.url(), KEY, &behavior).await;
    let waiting = processes.queue_up(&locks, KEY).await;
    let victims = VICTIMS.map(|at| waiting[at].clone());
    for victim in &victims {
        processes.signal(victim, signal);
    }
    let time = Stopwatch::start();
    gate.release().await.expect("released");

    let (dead, live): (Vec<_>, Vec<_>) =
        (0..waiting.len()).partition(|at| victims.contains(&waiting[*at]));
    let grants = processes.grants(live.len()).await;
    assert_order(
        grants.iter().map(|grant| &grant.label),
        live.iter().map(|at| &waiting[*at]),
        "in the order of the queue",
    );
    let delays = Delays::measure(&grants, &live);
    let (name, count) = (library.name(), dead.len());
    println!("{name} {signal:?}: {count} dead waiters; {delays:?}");
    delays.check(time.stalled());

    let mut succeeded = PROCESSES - VICTIMS.len();
    if signal == Signal::STOP {
        // A resumed process queues again.
        for victim in &victims {
            processes.signal(victim, Signal::CONT);
        }
        processes.grants(dead.len()).await;
        succeeded = PROCESSES;
    }
    until(&locks, KEY, "the key is free", |seen| {
        seen.holder_count() == 0 && seen.waiter_count() == 0
    })
    .await;
    let ended = processes.end().await;
    assert_eq!(
        ended, succeeded,
        "every process that was not killed succeeds"
    );
}

/// The times between grants to live waiters, by the server's clock.
#[derive(Debug)]
struct Delays {
    /// The time that dead waiters took together: the times between two waiters with dead ones between
    /// them, without the mean time of a hand-over.
    by_dead: Duration,
    /// The longest time between two neighbours.
    neighbours: Duration,
}

impl Delays {
    /// `live` are the positions of these waiters in the queue.
    fn measure(grants: &[Grant], live: &[usize]) -> Self {
        let (mut past_dead, mut neighbours) = (Vec::new(), Vec::new());
        for (grants, at) in grants.windows(2).zip(live.windows(2)) {
            // A token is the server's time of the grant in µs (rule 15).
            let time = Duration::from_micros(grants[1].token - grants[0].token);
            if at[1] - at[0] > 1 {
                past_dead.push(time);
            } else {
                neighbours.push(time);
            }
        }
        let count = |times: &[Duration]| u32::try_from(times.len()).expect("few");
        let mean = neighbours.iter().sum::<Duration>() / count(&neighbours);
        let all_past_dead: Duration = past_dead.iter().sum();
        Self {
            by_dead: all_past_dead.saturating_sub(mean * count(&past_dead)),
            neighbours: neighbours.into_iter().max().unwrap_or_default(),
        }
    }

    /// The machine has stalled meanwhile.
    fn check(&self, stalled: Duration) {
        let margin = MARGIN + stalled;
        assert!(
            self.by_dead <= WAITER_LEASE + POLL + margin,
            "dead waiters: {self:?}"
        );
        assert!(self.neighbours <= POLL + margin, "live waiters: {self:?}");
    }
}
