//! Many clients that compete for one key.

use std::time::Duration;

use leasehold_api::LockClient;
use leasehold_store::Written;

use crate::support::{Server, block_on};

const CLIENTS: u32 = 32;
const TIME: Duration = Duration::from_secs(10);

/// With pauses of at most 50 ms, the server would spend its time on writes that it refuses: 100 acquisitions,
/// and 13 refused writes for each operation.
#[test]
fn clients_of_a_busy_store_make_room_for_each_other() {
    block_on(async {
        let (latency, work) = (Duration::from_millis(1), Duration::from_millis(2));
        let server = Server::with_work(1, latency, work);
        let ends = tokio::time::Instant::now() + TIME;
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..CLIENTS {
            let locks = LockClient::new(server.client());
            clients.spawn(async move {
                let lock = locks.rw_lock("k").expect("a valid key");
                let mut acquired = 0;
                while tokio::time::Instant::now() < ends {
                    let Ok(guard) = lock.read().await else {
                        continue;
                    };
                    let _ = guard.release().await;
                    acquired += 1;
                }
                acquired
            });
        }
        let acquired: u32 = clients.join_all().await.into_iter().sum();
        let refused = server.arrived();
        let refused = refused.iter().filter(|it| it.1 == Written::NotApplied);
        let refused = refused.count() as f64 / f64::from(2 * acquired);
        println!("{acquired} acquisitions, {refused:.1} refused writes for each operation");
        assert!(acquired > 200, "{acquired}");
        assert!(refused < 6.0, "{refused}");
    });
}
