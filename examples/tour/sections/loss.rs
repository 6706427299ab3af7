//! A holder loses its lock while it works. `with` stops the work, and the resource refuses late
//! writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{Error, FencingToken};

use crate::tour::{Result, Tour};

pub(crate) async fn run(tour: &mut Tour<'_>) -> Result<()> {
    tour.section("6. Loss: the network fails while the lock is in use")?;
    let (ann, bob) = (tour.connect("ann").await?, tour.connect("bob").await?);
    let key = "tour:sync";
    let lease = Duration::from_secs(2);

    let steps = Arc::new(AtomicU32::new(0));
    let mutex = ann.locks.mutex(key)?.lease(lease);
    let counted = Arc::clone(&steps);
    let working = tokio::spawn(async move {
        mutex
            .with(async |_guard| {
                loop {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            })
            .await
    });
    tour.print(
        &ann,
        "works under a lock with a lease of 2 s, which is renewed",
    )?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    tour.check(
        !working.is_finished(),
        "work can take longer than the lease, because the lease is renewed",
    )?;

    tour.print(&ann, "loses the network")?;
    ann.connection.cut();
    let cut = tour.elapsed();
    let result: Result<(), Error> = working.await?;
    let stopped = tour.elapsed() - cut;
    let steps_done = steps.load(Ordering::Relaxed);
    tour.print_untimed(&ann, "stops working")?;
    tour.check(
        matches!(result, Err(Error::Lost { .. })) && stopped <= lease,
        "the work stops before the lease ends, without a word from the server",
    )?;

    let bobs = bob.locks.mutex(key)?.lock().await?;
    tour.print_untimed(&bob, "has the lock")?;
    tour.check(
        steps.load(Ordering::Relaxed) == steps_done,
        "ann's work did not continue",
    )?;
    bobs.release().await?;
    ann.connection.restore();
    ann.disconnect().await?;
    bob.disconnect().await
}

/// The protected resource. It remembers the highest token that it has seen.
#[derive(Debug)]
struct Account {
    highest: FencingToken,
    balance: i64,
}

impl Account {
    /// Returns the balance, unless a later holder has claimed the account.
    fn claim(&mut self, token: FencingToken) -> Option<i64> {
        if token < self.highest {
            return None;
        }
        self.highest = token;
        Some(self.balance)
    }

    /// Returns whether the write was accepted.
    fn write(&mut self, token: FencingToken, balance: i64) -> bool {
        let accepted = token == self.highest;
        if accepted {
            self.balance = balance;
        }
        accepted
    }
}

pub(crate) async fn run_fencing(tour: &mut Tour<'_>) -> Result<()> {
    tour.section("7. Fencing: a late write that no lock can prevent")?;
    let (ann, bob) = (tour.connect("ann").await?, tour.connect("bob").await?);
    let key = "tour:account";
    let mut account = Account {
        highest: FencingToken::default(),
        balance: 100,
    };

    let lease = Duration::from_secs(1);
    let anns_mutex = ann.locks.mutex(key)?.lease(lease).fixed_lease();
    let anns = anns_mutex.lock().await?;
    let read = account.claim(anns.fencing_token());
    tour.print(
        &ann,
        "locks and claims the account, reads 100, and is suspended before she writes 110",
    )?;
    let bobs = bob.locks.mutex(key)?.lock().await?;
    let seen = account.claim(bobs.fencing_token());
    tour.print(&bob, "locks and claims the account, and reads 100")?;
    tour.check(
        read == Some(100) && seen == read,
        "the account accepts bob's token",
    )?;
    let late = account.write(anns.fencing_token(), 110);
    tour.print(&ann, "wakes up and writes 110, without checking her guard")?;
    tour.check(!late, "the account refuses her older token")?;
    let written = account.write(bobs.fencing_token(), 150);
    tour.print(&bob, "writes 150")?;
    tour.check(
        written && account.balance == 150,
        "nobody wrote between his read and his write",
    )?;
    bobs.release().await?;
    drop(anns);
    ann.disconnect().await?;
    bob.disconnect().await
}
