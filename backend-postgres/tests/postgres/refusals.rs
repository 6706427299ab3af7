//! A server that refuses its client for a while: rights, a password, the limit of connections.

use std::time::{Duration, Instant};

use leasehold_api::{Error, LockClient};
use leasehold_test_servers::{PostgresOptions, eventually, throughout};

use crate::connections::{LONG, kill};
use crate::support::{Server, connect_to};

/// How the server refuses the user, and how it stops that.
const REFUSALS: [[&str; 2]; 3] = [
    [
        "REVOKE ALL ON leasehold.locks FROM locks",
        include_str!("../../src/privileges.sql"),
    ],
    [
        "ALTER USER locks PASSWORD 'other'",
        "ALTER USER locks PASSWORD 'hunter2'",
    ],
    [
        "ALTER USER locks CONNECTION LIMIT 0",
        "ALTER USER locks CONNECTION LIMIT -1",
    ],
];

/// What a client lets go while it is refused is free soon after, and not at the end of its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_free_soon_after_a_refusal() {
    let lease = LONG * 6;
    let server = Server::start_with(PostgresOptions::default().with_access("scram-sha-256"));
    let [_, [_, password], _] = REFUSALS;
    server.execute(password);
    let url = server.tcp_url().replace("locks@", "locks:hunter2@");
    let locks = LockClient::new(connect_to(&url).await);
    let others = LockClient::new(connect_to(&server.postgres.url("owner", "shop")).await);
    for [refuse, admit] in REFUSALS {
        let mutex = |key| locks.mutex(key).expect("valid").lease(lease);
        let released = mutex("released").lock().await.expect("free");
        let dropped = mutex("dropped").lock().await.expect("free");
        server.execute(refuse);
        // New connections need the password, and count.
        kill(&server, "usename = 'locks'");
        let told = released.release().await;
        assert!(told.is_err(), "{refuse}: {told:?}");
        drop(dropped);
        throughout(Duration::from_secs(1), refuse, async || {
            let told = released.release().await;
            matches!(
                told,
                Err(Error::Rejected { .. }
                    | Error::Unavailable { .. }
                    | Error::OutcomeUnknown { .. })
            )
        })
        .await;
        server.execute(admit);
        let admitted = Instant::now();
        for key in ["released", "dropped"] {
            let mutex = others.mutex(key).expect("valid");
            let outcome = mutex.try_lock_for(LONG).await.expect("an answer");
            let guard = outcome.into_guard();
            let guard = guard.unwrap_or_else(|| panic!("{refuse}: {key}"));
            // If it was dropped, the next guard of this key might come from the queue, and end unless it is renewed.
            guard.release().await.expect("released");
        }
        println!("{refuse}: free after {:?}", admitted.elapsed());
        let mut last = String::new();
        eventually("the release is known", async || {
            let told = released.release().await;
            let text = format!("{refuse}: then {told:?}");
            if text != last {
                println!("{text}");
                last = text;
            }
            told.is_ok()
        })
        .await;
    }
}
