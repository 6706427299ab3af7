//! Two instances as processes, on real servers that stop, under load: each deposit counts once. Prints the statuses.

mod common;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use leasehold_test_servers::{PostgresServer, RedisServer, block_until};
use leasehold_web_example::accounts::SCHEMA;

use crate::common::{Instance, deposit, free_address, get};

const ACCOUNTS: i64 = 4;

/// A caller: each deposit is sent again, to any instance, until it has an answer that says "done".
fn deposit_until(
    stop: &AtomicBool,
    next: &AtomicI64,
    addresses: &[SocketAddr],
    seen: &Mutex<BTreeMap<String, u32>>,
) {
    while !stop.load(Ordering::Relaxed) {
        let request = next.fetch_add(1, Ordering::Relaxed);
        for attempt in request.. {
            let to = addresses[attempt as usize % addresses.len()];
            let status = deposit(to, request % ACCOUNTS, request, 1)
                .map_or_else(|error| error.kind().to_string(), |it| it.to_string());
            let done = status == "200";
            *seen.lock().expect("no panic").entry(status).or_default() += 1;
            if done {
                break;
            }
            thread::sleep(Duration::from_millis(50)); // as a caller does that was asked to try again
        }
    }
}

#[test]
fn no_deposit_is_lost_or_counted_twice() {
    let mut redis = RedisServer::start();
    let mut postgres = PostgresServer::start();
    postgres.execute("postgres", SCHEMA);
    for account in 0..ACCOUNTS {
        postgres.execute(
            "postgres",
            &format!("INSERT INTO account VALUES ({account}, 0)"),
        );
    }
    let (locks, database) = (redis.url(), postgres.url("owner", "postgres"));
    let addresses = [(); 2].map(|()| free_address());
    let start = |address| Instance::start(address, &locks, &database);
    let mut instances = addresses.map(start);
    let (stop, next) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicI64::new(1)),
    );
    let seen: Arc<Mutex<BTreeMap<String, u32>>> = Arc::default();
    let callers: Vec<_> = (0..16)
        .map(|_| {
            let (stop, next, seen) = (Arc::clone(&stop), Arc::clone(&next), Arc::clone(&seen));
            thread::spawn(move || deposit_until(&stop, &next, &addresses, &seen))
        })
        .collect();
    let count = |status: &str| {
        seen.lock()
            .expect("no panic")
            .get(status)
            .copied()
            .unwrap_or(0)
    };
    let goes_on = || {
        let before = count("200");
        block_until("deposits go on", || count("200") > before + 50);
    };

    goes_on();
    let killed = instances[0].address;
    instances[0].process.kill().expect("killed");
    goes_on();
    instances[0] = start(killed);
    goes_on();

    redis.kill();
    let refused = count("503");
    block_until("an outage of the locks is 503", || {
        count("503") > refused + 50
    });
    assert_eq!(get(killed, "/readyz"), 503);
    assert_eq!(get(killed, "/livez"), 200);
    redis.start_again();
    goes_on();

    postgres.stop();
    let refused = count("503");
    block_until("an outage of the database is 503", || {
        count("503") > refused + 10
    });
    postgres.restart();
    goes_on();

    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.join().expect("no panic");
    }
    println!("{:?}", seen.lock().expect("no panic"));
    let sum = postgres.execute("postgres", "SELECT sum(balance) FROM account");
    assert_eq!(sum, (next.load(Ordering::Relaxed) - 1).to_string());
}
