//! Tests code that takes locks on the simulator, in virtual time.
//!
//! ```sh
//! cargo test --example unit_test_with_sim
//! ```

use std::sync::Mutex;
use std::time::Duration;

use leasehold::sim::SimServer;
use leasehold::{Error, FencingToken, LockClient};

/// The code under test: charges each order once, even if several machines process it.
#[derive(Debug, Default)]
struct Shop {
    charges: Mutex<Vec<(u32, FencingToken)>>,
}

impl Shop {
    async fn charge(&self, locks: &LockClient, order: u32) -> Result<(), Error> {
        let guard = locks.mutex(format!("order:{order}"))?.lock().await?;
        if !self.is_charged(order) {
            tokio::time::sleep(Duration::from_millis(50)).await; // checks the order
            self.write(order, guard.fencing_token());
        }
        guard.release().await?;
        Ok(())
    }

    fn is_charged(&self, order: u32) -> bool {
        let charges = self.charges.lock().expect("no charge panics");
        charges.iter().any(|(charged, _)| *charged == order)
    }

    /// Charges the order. The lock keeps others from it: this would charge twice.
    fn write(&self, order: u32, token: FencingToken) {
        let mut charges = self.charges.lock().expect("no charge panics");
        charges.push((order, token));
    }
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Error> {
    let server = SimServer::new(1);
    let shop = Shop::default();
    let locks = LockClient::new(server.client("shop"));
    shop.charge(&locks, 7).await?;
    shop.charge(&locks, 7).await?;
    locks.shutdown().await?;
    server.assert_idle();
    print!("{}", server.timeline());
    Ok(())
}

#[cfg(test)]
mod tests {
    use leasehold::sim::{Call, Data, Fault};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn two_machines_charge_once() {
        let server = SimServer::new(1);
        let shop = Shop::default();
        let a = LockClient::new(server.client("a"));
        let b = LockClient::new(server.client("b"));
        let (first, second) = tokio::join!(shop.charge(&a, 7), shop.charge(&b, 7));
        first.expect("a charges");
        second.expect("b finds it charged");
        assert_eq!(shop.charges.lock().expect("unpoisoned").len(), 1);
        server.assert_idle();
    }

    /// The server executes the acquire, but its reply is lost. This is the worst moment for a
    /// failure.
    #[tokio::test(start_paused = true)]
    async fn lost_reply_leaves_no_lock_behind() {
        let server = SimServer::new(1);
        let backend = server.client("a");
        let locks = LockClient::new(backend.clone());
        backend.inject_into(Call::Acquire, Fault::LoseReply);
        let charged = Shop::default().charge(&locks, 7).await;
        charged.expect("the client retries");
        assert_eq!(backend.pending_faults(), 0, "the fault was injected");
        server.assert_idle();
    }

    /// The first machine hangs while it holds the lock.
    #[tokio::test(start_paused = true)]
    async fn lock_of_a_hung_machine_is_free_after_its_lease() {
        let server = SimServer::new(1);
        let shop = Shop::default();
        let (hanging, b) = (server.client("a"), LockClient::new(server.client("b")));
        let a = LockClient::new(hanging.clone());
        let order = a.mutex("order:7").expect("a valid key");
        let _held = order.lock().await.expect("free");
        hanging.pause();
        shop.charge(&b, 7).await.expect("charged after the lease");
        let waited = server.elapsed();
        assert!(
            waited >= Duration::from_secs(30) && waited < Duration::from_secs(32),
            "{waited:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_grow_over_a_restart_without_data() {
        let server = SimServer::new(1);
        let shop = Shop::default();
        let locks = LockClient::new(server.client("a"));
        shop.charge(&locks, 1).await.expect("charged");
        server.restart(Data::Lost);
        shop.charge(&locks, 2).await.expect("charged");
        let charges = shop.charges.lock().expect("unpoisoned");
        assert!(charges[0].1 < charges[1].1, "{charges:?}");
    }
}
