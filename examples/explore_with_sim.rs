//! How to find out that code is wrong: run it in thousands of ways.
//!
//! Two workers add to a balance that a database keeps. Both take the lock. One version forgets the
//! fencing token, and once in a while an addition is lost: when a worker is stopped for longer than
//! its lease, with its write on the way.
//!
//! ```sh
//! cargo run --example explore_with_sim     # prints a run in which an addition is lost
//! cargo test --example explore_with_sim
//! ```

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::api::{LockBackend as _, Runtime};
use leasehold::sim::{Exploration, SimServer, Troubles};
use leasehold::{Error, FencingToken, LockClient};

/// A row of the database: what is in it, and the highest token that wrote it.
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
        self.row.lock().expect("nobody panics inside").0
    }

    /// `UPDATE account SET balance = …`, which takes some time to get there.
    async fn write(&self, runtime: &dyn Runtime, balance: u32) {
        runtime.sleep(Duration::from_millis(50)).await;
        self.row.lock().expect("nobody panics inside").0 = balance;
    }

    /// `UPDATE account SET balance = …, fence = … WHERE fence <= …`; whether a row was changed.
    async fn write_fenced(&self, runtime: &dyn Runtime, balance: u32, token: FencingToken) -> bool {
        runtime.sleep(Duration::from_millis(50)).await;
        let mut row = self.row.lock().expect("nobody panics inside");
        let accepted = row.1 <= token;
        if accepted {
            *row = (balance, token);
        }
        accepted
    }
}

/// Takes the lock and adds 1; returns once it is added.
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
        runtime.sleep(Duration::from_millis(100)).await; // computes
        let written = if !guard.is_valid() {
            false
        } else if fenced {
            let token = guard.fencing_token()?;
            account.write_fenced(runtime, balance + 1, token).await
        } else {
            // The guard was valid just now. Is it still when the write arrives?
            account.write(runtime, balance + 1).await;
            true
        };
        drop(guard); // its release goes on in the background, whatever the network does
        if written {
            return Ok(());
        }
    }
}

/// Two machines add 1 each; then the balance must be 2.
async fn scenario(sim: SimServer, fenced: bool) -> Result<(), String> {
    let account = Arc::new(Account::new());
    let workers = ["ann", "bob"].map(|name| {
        let machine = sim.client(name);
        let account = Arc::clone(&account);
        sim.spawn(async move {
            let (locks, runtime) = (LockClient::new(machine.clone()), machine.runtime());
            // The worker's code stands still when its machine is paused.
            let work = machine.run(add(&locks, &*runtime, &account, fenced));
            let added = work.await.map_err(|error| error.to_string());
            machine.note(format!("is done; the balance is {}", account.balance()));
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

/// How many runs the mistake may hide from.
const SEEDS: u64 = 5_000;

fn exploration() -> Exploration {
    Exploration::new()
        .with_seeds(0..SEEDS)
        .with_troubles(Troubles::all())
}

fn main() {
    let failure = exploration()
        .find(|sim| scenario(sim, false))
        .expect("forgetting the token is found");
    println!("{failure}");
    match failure.save() {
        Ok(page) => println!("as a picture: {}", page.display()),
        Err(error) => println!("no picture: {error}"),
    }
    exploration().check(|sim| scenario(sim, true));
    println!("\nwith the token, {SEEDS} runs are right");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forgotten_token_is_found() {
        let failure = exploration().find(|sim| scenario(sim, false));
        let failure = failure.expect("it is found");
        assert!(failure.why.contains("an addition is lost"), "{failure}");
    }

    #[test]
    fn with_the_token_no_addition_is_lost() {
        exploration().check(|sim| scenario(sim, true));
    }

    /// Every order there is, of a small scope: two workers that try once.
    #[test]
    fn one_of_two_that_try_at_once_gets_it() {
        let runs = Exploration::new().check_all(|sim| async move {
            let tries = ["ann", "bob"].map(|name| {
                let locks = LockClient::new(sim.client(name));
                sim.spawn(async move {
                    let outcome = locks.mutex("job")?.try_lock().await?;
                    Ok::<_, Error>(outcome.acquired())
                })
            });
            let mut guards = Vec::new();
            for attempt in tries {
                guards.extend(attempt.await.expect("the server answers"));
            }
            assert_eq!(guards.len(), 1, "one, and only one");
        });
        println!("{runs} runs");
    }
}
