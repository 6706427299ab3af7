//! Many clients on a store with every fault: no two of them hold a mutex at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_api::{LockClient, Outcome};
use leasehold_store::Written;

use crate::support::{Faults, Server, block_on};

const CLIENTS: u64 = 3;
const ROUNDS: u64 = 6;

/// What the clients do to the protected resource.
#[derive(Debug, Default)]
struct Resource {
    inside: AtomicU64,
    highest: AtomicU64,
    entered: AtomicU64,
}

impl Resource {
    async fn enter(&self, token: u64) {
        assert_eq!(
            self.inside.fetch_add(1, Ordering::SeqCst),
            0,
            "two are inside"
        );
        let before = self.highest.swap(token, Ordering::SeqCst);
        assert!(before < token, "token {token} after {before}");
        tokio::time::sleep(Duration::from_millis(30)).await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
        self.entered.fetch_add(1, Ordering::SeqCst);
    }
}

async fn work(server: Arc<Server>, resource: Arc<Resource>) {
    let locks = LockClient::new(server.client());
    let mutex = locks
        .mutex("a")
        .expect("valid")
        .lease(Duration::from_secs(2));
    for round in 0..ROUNDS {
        let waiting = Duration::from_millis(500 + 7_000 * (round % 3));
        // An outage may end the wait with an error.
        let guard = mutex.try_lock_for(waiting).await;
        if let Some(guard) = guard.ok().and_then(Outcome::into_guard) {
            if guard.valid_for() > Duration::from_millis(100) {
                resource.enter(guard.fencing_token().get()).await;
            }
            let _ = guard.release().await;
        }
        server.remove_expired();
    }
    let _ = locks.shutdown().await;
}

/// Checks that each row was read before it was replaced, and that time went on.
fn check_writes(server: &Server) {
    let mut last = None;
    for (sent, written) in server.arrived() {
        if written == Written::Applied && sent.key.as_str() == "a" {
            assert!(last <= Some(sent.stamp.at), "a step before the last one");
            last = Some(sent.stamp.at);
        }
    }
}

fn explore(seed: u64, faults: Faults) -> (u64, usize) {
    block_on(async {
        let server = Server::new(seed, Duration::from_millis(3));
        server.set_faults(faults);
        let resource = Arc::new(Resource::default());
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| tokio::spawn(work(Arc::clone(&server), Arc::clone(&resource))))
            .collect();
        for client in clients {
            client
                .await
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        check_writes(&server);
        let arrived = server.arrived();
        let refused = arrived
            .iter()
            .filter(|(_, written)| *written == Written::NotApplied);
        (resource.entered.load(Ordering::SeqCst), refused.count())
    })
}

#[test]
fn exclusion_survives_every_fault() {
    let faults = Faults {
        conflict: 5,
        lost_reply: 5,
        late: 5,
        doubled: 5,
        copied: 10,
        unavailable: 3,
        hangs: 1,
        ..Faults::default()
    };
    let (mut entered, mut refused) = (0, 0);
    for seed in 0..100 {
        let run = explore(seed, faults);
        entered += run.0;
        refused += run.1;
    }
    println!("{entered} critical sections, {refused} writes refused");
    assert!(entered > 100 * CLIENTS * ROUNDS / 2, "{entered}");
    assert!(refused > 100, "{refused}");
}
