//! Finds a concurrency bug by running code thousands of times with different faults.
//!
//! Two workers add to a balance in a database, and both take the lock. One version of the worker
//! ignores the fencing token. That version occasionally loses an addition: when a worker is paused
//! for longer than its lease while its write is in flight.
//!
//! ```sh
//! cargo run --example explore_with_sim     # prints a run that loses an addition
//! cargo test --example explore_with_sim
//! ```

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::api::{LockBackend as _, Runtime};
use leasehold::sim::{Exploration, FaultMix, SimServer};
use leasehold::{Error, FencingToken, LockClient};

/// A row of the database: the balance, and the highest token that wrote it.
#[derive(Debug)]
struct Account {
    row: Mutex<(u32, FencingToken)>,
}

impl Account {
    fn new() -> Self {
        let row = Mutex::new((0, FencingToken::new(0)));
        Self { row }
    }

    fn balance(&self) -> u32 {
        self.row.lock().expect("no panic while locked").0
    }

    /// `UPDATE account SET balance = …`, which arrives after 50 ms.
    async fn write(&self, runtime: &dyn Runtime, balance: u32) {
        runtime.sleep(Duration::from_millis(50)).await;
        self.row.lock().expect("no panic while locked").0 = balance;
    }

    /// `UPDATE account SET balance = …, fence = … WHERE fence <= …`. Returns whether a row changed.
    async fn write_fenced(&self, runtime: &dyn Runtime, balance: u32, token: FencingToken) -> bool {
        runtime.sleep(Duration::from_millis(50)).await;
        let mut row = self.row.lock().expect("no panic while locked");
        let accepted = row.1 <= token;
        if accepted {
            *row = (balance, token);
        }
        accepted
    }
}

/// Takes the lock and adds 1. Retries until the addition is written.
async fn add(
    locks: &LockClient,
    runtime: &dyn Runtime,
    account: &Account,
    fenced: bool,
) -> Result<(), Error> {
    loop {
        let lease = Duration::from_secs(3);
        let guard = locks.mutex("account:7")?.lease(lease).lock().await?;
        let balance = account.balance();
        runtime.sleep(Duration::from_millis(100)).await; // computes the new balance
        let written = if !guard.is_valid() {
            false
        } else if fenced {
            let token = guard.fencing_token();
            account.write_fenced(runtime, balance + 1, token).await
        } else {
            // The bug: the guard is valid now, but it may expire before the write arrives.
            account.write(runtime, balance + 1).await;
            true
        };
        drop(guard); // releases in the background, even if the network fails
        if written {
            return Ok(());
        }
    }
}

/// Two machines add 1 each, so the balance must be 2.
async fn scenario(sim: SimServer, fenced: bool) -> Result<(), String> {
    let account = Arc::new(Account::new());
    let workers = ["ann", "bob"].map(|name| {
        let machine = sim.client(name);
        let account = Arc::clone(&account);
        sim.spawn(async move {
            let (locks, runtime) = (LockClient::new(machine.clone()), machine.runtime());
            // `run` pauses the worker's code together with its machine.
            let work = machine.run(add(&locks, &*runtime, &account, fenced));
            let added = work.await.map_err(|error| error.to_string());
            machine.note(format!("finishes; the balance is {}", account.balance()));
            added
        })
    });
    for worker in workers {
        worker.await?;
    }
    match account.balance() {
        2 => Ok(()),
        balance => Err(format!(
            "an addition is lost: the balance is {balance}, not 2"
        )),
    }
}

/// The number of runs to explore.
const SEEDS: u64 = 2_000;

fn exploration() -> Exploration {
    Exploration::new()
        .seeds(0..SEEDS)
        .fault_mix(FaultMix::all())
}

fn main() {
    let failure = exploration()
        .find(|sim| scenario(sim, false))
        .expect("the bug is found");
    println!("{failure}");
    match failure.save() {
        Ok(page) => println!("as a page: {}", page.display()),
        Err(error) => println!("could not save the page: {error}"),
    }
    exploration().check(|sim| scenario(sim, true));
    println!("\nwith the token, all {SEEDS} runs are correct");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_token_is_found() {
        let failure = exploration().find(|sim| scenario(sim, false));
        let failure = failure.expect("the bug is found");
        assert!(failure.reason.contains("an addition is lost"), "{failure}");
    }

    #[test]
    fn token_prevents_lost_additions() {
        exploration().check(|sim| scenario(sim, true));
    }

    /// Checks every possible order of a small scenario: two workers that try once.
    #[test]
    fn one_of_two_concurrent_tries_succeeds() {
        let runs = Exploration::new().check_all(|sim| async move {
            let tries = ["ann", "bob"].map(|name| {
                let locks = LockClient::new(sim.client(name));
                sim.spawn(async move {
                    let outcome = locks.mutex("job")?.try_lock().await?;
                    Ok::<_, Error>(outcome.into_guard())
                })
            });
            let mut guards = Vec::new();
            for attempt in tries {
                guards.extend(attempt.await.expect("the server answers"));
            }
            assert_eq!(guards.len(), 1, "exactly one worker gets the lock");
        });
        println!("{runs} runs");
    }
}
