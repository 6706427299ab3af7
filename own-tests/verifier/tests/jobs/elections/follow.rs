//! Followers: two streams of one client, which share their questions.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use leasehold_api::{Election, FencingToken, Leader, LockClient};
use leasehold_sim::{JoinHandle, Latency};

use super::office::Office;

/// Until then, the faults are over, and the streams have learned that nobody leads any more.
const PATIENCE: Duration = Duration::from_secs(150);

/// What each stream has yielded last.
type Seen = Arc<Mutex<[Option<Option<Leader>>; 2]>>;

pub(super) struct Followers {
    office: Arc<Office>,
    locks: LockClient,
    seen: Seen,
    tasks: Vec<JoinHandle<()>>,
}

fn is_known(leader: &Leader) -> bool {
    let label = leader.label.as_str();
    ["ann", "bob", "eve"].contains(&label) && [&b""[..], b"here"].contains(&&*leader.info)
}

async fn follow(office: Arc<Office>, election: Election, seen: Seen, number: usize) {
    let mut leaders = pin!(election.observe());
    let mut last = FencingToken::default();
    while let Some(leader) = leaders.next().await {
        if let Some(leader) = &leader {
            let is_older = office.within && leader.term < last;
            if is_older || !is_known(leader) {
                office.problem(format!("a follower sees {leader:?} after term {last}"));
            }
            last = leader.term;
        }
        seen.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some(leader);
    }
}

impl Followers {
    pub(super) fn begin(office: &Arc<Office>) -> Self {
        let sim = &office.sim;
        let backend = sim.client("fay");
        let latency = Duration::from_millis([3, 400][sim.draw(2) as usize]);
        backend.set_latency(Latency::between(latency / 2, latency));
        let locks = LockClient::new(backend.clone());
        let seen = Seen::default();
        let stream = |number| {
            let election = locks.election("leader").expect("valid");
            let follow = follow(Arc::clone(office), election, Arc::clone(&seen), number);
            let backend = backend.clone();
            sim.spawn(async move { backend.run(follow).await })
        };
        let tasks = (0..2).map(stream).collect();
        Self {
            office: Arc::clone(office),
            locks,
            seen,
            tasks,
        }
    }

    /// All terms are over, and each stream must learn it.
    pub(super) async fn end(self) {
        let sim = &self.office.sim;
        let until = sim.elapsed() + PATIENCE;
        let seen = || {
            *self.seen.lock().unwrap_or_else(PoisonError::into_inner) == [const { Some(None) }; 2]
        };
        while !seen() && sim.elapsed() < until {
            sim.sleep(Duration::from_secs(1)).await;
        }
        if !seen() {
            let seen = format!("{:?}", self.seen);
            self.office
                .problem(format!("a follower doesn't see that nobody leads: {seen}"));
        }
        drop(self.locks.shutdown().await);
        for task in self.tasks {
            task.await;
        }
    }
}
