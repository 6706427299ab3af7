//! Transfers between accounts on many machines at once.
//!
//! Each transfer locks both accounts. The order in which you name them doesn't matter: it cannot
//! cause a deadlock. The accounts refuse late writes by their fencing tokens. The bank is in memory: a transfer reads, checks
//! and writes under one lock of this process, so it needs no claim before that. In SQL, its transaction begins with a
//! claim of both rows (docs/fencing.md).

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use common::Result;
use leasehold::{Error, FencingToken, LockClient, MultiGuard};
use tokio::time::sleep;

const ACCOUNTS: [&str; 3] = ["account:ann", "account:bob", "account:cleo"];

#[derive(Clone, Copy, Debug)]
struct Account {
    balance: i64,
    /// The highest token that has written.
    fence: FencingToken,
}

/// The database. It checks and writes both rows in one step.
#[derive(Debug)]
struct Bank(Mutex<BTreeMap<&'static str, Account>>);

impl Bank {
    fn new() -> Self {
        let account = Account {
            balance: 100,
            fence: FencingToken::new(0),
        };
        Self(Mutex::new(ACCOUNTS.map(|name| (name, account)).into()))
    }

    /// Returns `false` if a token is too old. An account that `guard` doesn't lock is an error.
    fn transfer(
        &self,
        from: &str,
        to: &str,
        amount: i64,
        guard: &MultiGuard,
    ) -> Result<bool, Error> {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let late = |name: &str, token: FencingToken| {
            let account = rows.get(name);
            account.is_some_and(|account| token < account.fence)
        };
        let (token_from, token_to) = (guard.fencing_token(from)?, guard.fencing_token(to)?);
        if late(from, token_from) || late(to, token_to) {
            return Ok(false);
        }
        for (name, change, token) in [(from, -amount, token_from), (to, amount, token_to)] {
            if let Some(account) = rows.get_mut(name) {
                account.balance += change;
                account.fence = token;
            }
        }
        Ok(true)
    }

    fn total(&self) -> i64 {
        let rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rows.values().map(|account| account.balance).sum()
    }
}

/// One machine makes ten transfers between neighbouring accounts, in one of two directions.
async fn machine(locks: LockClient, bank: Arc<Bank>, left: bool) -> Result<u32, Error> {
    let mut done = 0;
    for n in 0..10 {
        let (from, to) = (ACCOUNTS[n % 3], ACCOUNTS[(n + 1) % 3]);
        let (from, to) = if left { (to, from) } else { (from, to) };
        let both = locks.mutexes([from, to])?;
        let written = both.with(async |guard| {
            sleep(Duration::from_millis(20)).await; // checks the transfer
            bank.transfer(from, to, 5, guard)
        });
        done += u32::from(written.await??);
    }
    locks.shutdown().await?;
    Ok(done)
}

fn main() -> Result<()> {
    common::run(async |service| {
        let bank = Arc::new(Bank::new());
        let mut machines = Vec::new();
        for number in 0..6 {
            let locks = service.client(&format!("machine-{number}")).await?;
            let left = number % 2 == 0;
            machines.push(tokio::spawn(machine(locks, Arc::clone(&bank), left)));
        }
        let mut done = 0;
        for machine in machines {
            done += machine.await??;
        }
        let total = bank.total();
        println!("{done} transfers by 6 machines; the accounts total {total}");
        assert_eq!((done, total), (60, 300));
        Ok(())
    })
}
