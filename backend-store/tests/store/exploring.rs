//! Many clients on a store with every fault: no two of them hold a mutex at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_api::{LockClient, Outcome};

use crate::support::{Fault, Faults, Server, block_on};

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
    let mutex = locks.mutex("a").expect("valid");
    let mutex = mutex.lease(Duration::from_secs(2));
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
        // A client that uses the key alone for a while remembers its row.
        if server.random().is_multiple_of(2) {
            tokio::time::sleep(server.up_to(Duration::from_millis(400))).await;
        }
    }
    let _ = locks.shutdown().await;
}

/// Checks that each row was known before it was replaced, and that time went on.
fn check_writes(server: &Server) {
    let mut last = None;
    for (sent, written) in server.arrived() {
        if written.is_applied() && sent.key.as_str() == "a" {
            assert!(last <= Some(sent.stamp.at), "a step before the last one");
            last = Some(sent.stamp.at);
        }
    }
}

/// What happened in all runs.
#[derive(Debug, Default)]
struct Seen {
    entered: u64,
    refused: usize,
    /// Writes that no read came before.
    remembered: usize,
}

fn explore(seed: u64, faults: Faults, all: &mut Seen) {
    block_on(async {
        let server = Server::new(seed, Duration::from_millis(3));
        server.set_faults(faults);
        if seed.is_multiple_of(2) {
            server.compare_reach();
        }
        if seed % 4 < 2 {
            server.send_rows();
        }
        if seed % 8 < 4 {
            server.compare_tags();
        }
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
        let refused = arrived.iter().filter(|(_, written)| !written.is_applied());
        let read = server.read_at();
        let remembered = arrived
            .iter()
            .filter(|(sent, _)| !read.contains(&sent.stamp.at));
        all.entered += resource.entered.load(Ordering::SeqCst);
        all.refused += refused.count();
        all.remembered += remembered.count();
    });
}

#[test]
fn exclusion_survives_every_fault() {
    let faults = Faults::default()
        .share(Fault::Conflict, 5)
        .share(Fault::LostReply, 5)
        .share(Fault::Late, 5)
        .share(Fault::Doubled, 5)
        .share(Fault::Copied, 10)
        .share(Fault::Unavailable, 3)
        .share(Fault::Hangs, 1);
    let mut all = Seen::default();
    for seed in seeds() {
        explore(seed, faults, &mut all);
    }
    println!("{all:?}");
    let runs = seeds().count() as u64;
    assert!(all.entered > runs * CLIENTS * ROUNDS / 2, "{all:?}");
    assert!(all.refused as u64 > runs, "{all:?}");
    assert!(all.remembered as u64 > runs, "{all:?}");
}

/// `LEASEHOLD_STORE_SEEDS=0..100000` asks for more.
fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("LEASEHOLD_STORE_SEEDS") else {
        return 0..100;
    };
    let (first, end) = text.split_once("..").expect("FIRST..END");
    first.parse().expect("a number")..end.parse().expect("a number")
}
