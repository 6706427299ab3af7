//! Finds a concurrency bug by running code thousands of times with different faults.
//!
//! Two workers add to a balance in a database, and both take the lock. A worker may be paused for longer than
//! its lease while its write is in flight, and the database may roll a claim back. Then three versions of the
//! worker lose an addition now and then: one that ignores the fencing token, one that sends it only with the
//! write, and one that claims the row before it reads but doesn't check at the write that its claim still
//! stands. The fourth does both. It loses none.
//!
//! ```sh
//! cargo run --example explore_with_sim     # prints runs that lose an addition
//! cargo test --example explore_with_sim
//! LEASEHOLD_SEEDS=300000 cargo test --release --example explore_with_sim
//! ```

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leasehold::sim::{Exploration, FaultMix, SimServer};
use leasehold::{Error, FencingToken, LockClient};
use leasehold_api::{LockBackend as _, Runtime};

/// A row of the table.
#[derive(Debug)]
struct Account {
    balance: u32,
    /// The highest token that the row has seen.
    fence: FencingToken,
}

/// A worker's connection to the database. Each statement takes 200 ms to arrive.
struct Connection {
    account: Arc<Mutex<Account>>,
    runtime: Arc<dyn Runtime>,
}

impl Connection {
    async fn arrive(&self) -> MutexGuard<'_, Account> {
        self.runtime.sleep(Duration::from_millis(200)).await;
        self.account.lock().expect("no panic while locked")
    }

    /// `SELECT balance FROM account`
    async fn read(&self) -> u32 {
        self.arrive().await.balance
    }

    /// `UPDATE account SET fence = $1 WHERE fence <= $1 RETURNING balance`. Every second
    /// transaction is rolled back after this.
    async fn claim(&self, token: FencingToken) -> Option<u32> {
        let rolls_back = self.runtime.random_u64().is_multiple_of(2);
        let mut account = self.arrive().await;
        if account.fence > token {
            return None;
        }
        if !rolls_back {
            account.fence = token;
        }
        Some(account.balance)
    }

    /// `UPDATE account SET balance = $1`
    async fn write(&self, balance: u32) {
        self.arrive().await.balance = balance;
    }

    /// `UPDATE account SET balance = $1, fence = $2 WHERE fence <= $2`. Returns whether a row changed.
    async fn write_fenced(&self, balance: u32, token: FencingToken) -> bool {
        let mut account = self.arrive().await;
        let accepted = account.fence <= token;
        if accepted {
            *account = Account {
                balance,
                fence: token,
            };
        }
        accepted
    }

    /// `UPDATE account SET balance = $1 WHERE fence = $2`. Returns whether a row changed.
    async fn write_claimed(&self, balance: u32, token: FencingToken) -> bool {
        let mut account = self.arrive().await;
        let accepted = account.fence == token;
        if accepted {
            account.balance = balance;
        }
        accepted
    }
}

/// What a worker does with its fencing token.
#[derive(Clone, Copy, Debug)]
enum Fencing {
    /// It checks that its guard is valid. But the guard may expire before the write arrives.
    None,
    /// It sends the token with its write. But the late write of an earlier holder may arrive after it has read.
    WriteOnly,
    /// It claims the row before it reads. But if the claim is rolled back, an earlier holder may write after all.
    LostClaim,
    /// It claims the row before it reads, and writes only if the row still has its claim.
    Claim,
}

/// Takes the lock and adds 1. Retries until the addition is written.
async fn add(locks: &LockClient, database: &Connection, fencing: Fencing) -> Result<(), Error> {
    loop {
        let lease = Duration::from_secs(3);
        let guard = locks.mutex("account:7")?.lease(lease).lock().await?;
        let token = guard.fencing_token();
        let balance = match fencing {
            Fencing::None | Fencing::WriteOnly => Some(database.read().await),
            Fencing::LostClaim | Fencing::Claim => database.claim(token).await,
        };
        let Some(balance) = balance else {
            continue; // a later holder has the row
        };
        database.runtime.sleep(Duration::from_secs(1)).await; // computes the new balance
        if !guard.is_valid() {
            continue;
        }
        let written = match fencing {
            Fencing::None => {
                database.write(balance + 1).await;
                true
            }
            Fencing::WriteOnly | Fencing::LostClaim => {
                database.write_fenced(balance + 1, token).await
            }
            Fencing::Claim => database.write_claimed(balance + 1, token).await,
        };
        drop(guard); // releases in the background, even if the network fails
        if written {
            return Ok(());
        }
    }
}

/// Two machines add 1 each, so the balance must be 2.
async fn scenario(sim: SimServer, fencing: Fencing) -> Result<(), String> {
    let account = Arc::new(Mutex::new(Account {
        balance: 0,
        fence: FencingToken::default(),
    }));
    let workers = ["ann", "bob"].map(|name| {
        let machine = sim.client(name);
        let database = Connection {
            account: Arc::clone(&account),
            runtime: machine.runtime(),
        };
        sim.spawn(async move {
            let locks = LockClient::new(machine.clone());
            // `run` pauses the worker's code together with its machine.
            let work = machine.run(add(&locks, &database, fencing));
            let added = work.await.map_err(|error| error.to_string());
            let balance = database.account.lock().expect("unpoisoned").balance;
            machine.note(format!("finishes; the balance is {balance}"));
            added
        })
    });
    for worker in workers {
        worker.await?;
    }
    let balance = account.lock().expect("no panic while locked").balance;
    match balance {
        2 => Ok(()),
        _ => Err(format!(
            "an addition is lost: the balance is {balance}, not 2"
        )),
    }
}

fn exploration() -> Exploration {
    Exploration::new()
        .seeds(0..2_000)
        .fault_mix(FaultMix::all())
}

fn main() {
    for fencing in [Fencing::None, Fencing::WriteOnly, Fencing::LostClaim] {
        let failure = exploration()
            .seeds(0..10_000)
            .find(|sim| scenario(sim, fencing))
            .expect("the bug is found");
        println!("{fencing:?}: {failure}");
        match failure.save() {
            Ok(page) => println!("as a page: {}\n", page.display()),
            Err(error) => println!("could not save the page: {error}\n"),
        }
    }
    let explored = exploration().check(|sim| scenario(sim, Fencing::Claim));
    println!("with the claim, all {} runs are correct", explored.runs);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_token_is_found() {
        lost_addition_is_found(Fencing::None);
    }

    #[test]
    fn missing_claim_is_found() {
        lost_addition_is_found(Fencing::WriteOnly);
    }

    #[test]
    fn lost_claim_is_found() {
        lost_addition_is_found(Fencing::LostClaim);
    }

    /// The first of them fails at run 70, the others at run 328.
    fn lost_addition_is_found(fencing: Fencing) {
        let failure = exploration()
            .seeds(0..10_000)
            .find(|sim| scenario(sim, fencing));
        let failure = failure.expect("the bug is found");
        assert!(failure.reason.contains("an addition is lost"), "{failure}");
    }

    #[test]
    fn claim_prevents_lost_additions() {
        let explored = exploration().check(|sim| scenario(sim, Fencing::Claim));
        assert!(explored.second_holders > 0, "{explored}");
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
