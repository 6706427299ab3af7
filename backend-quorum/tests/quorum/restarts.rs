//! A server that comes back without its data must wait.

use leasehold_api::BackendError;
use leasehold_sim::Data;

use crate::support::{Process, Servers, granted, ms, secs};

/// A process takes the lock from the first two servers and dies. Its guard is valid for 30 s.
async fn dead_holder(servers: &Servers) -> (Process, leasehold_api::MutexGuard) {
    let a = servers.acquainted("a").await;
    a.links[2].isolate();
    let guard = a.lock("k").await;
    a.kill();
    (a, guard)
}

/// A client that knew the server notices the restart. Until the leases that the server may have
/// forgotten have ended, it doesn't count the server's grants.
#[tokio::test(start_paused = true)]
async fn client_that_notices_a_restart_waits() {
    let servers = Servers::start(21);
    let b = servers.acquainted("b").await;
    let (_a, guard) = dead_holder(&servers).await;
    let locked = servers.elapsed();
    servers.all[1].restart(Data::Lost);
    assert!(!b.gets("k").await);
    assert!(guard.is_valid());
    let next = b.lock("k").await;
    assert!(!guard.is_valid());
    let waited = servers.elapsed() - locked;
    // The first server's lease ends 1 ms before the reply to it came, and 30 s later.
    assert!((ms(29_999)..ms(30_350)).contains(&waited), "{waited:?}");
    next.release().await.expect("released");
    servers.advance(ms(10)).await;
    servers.assert_idle();
}

/// The server's grants count again once all forgotten leases have ended.
#[tokio::test(start_paused = true)]
async fn restarted_server_counts_after_the_delay() {
    let servers = Servers::start(22);
    let b = servers.acquainted("b").await;
    servers.all[1].restart(Data::Lost);
    b.quorum.hello().await.expect("a quorum");
    servers.advance(ms(10)).await;
    servers.all[0].stop();
    // 30 s, 1 % and 10 ms for drift, and the delivery window of 10 s. The restart was noticed 10 ms ago.
    servers.advance(ms(40_310 - 10 - 1)).await;
    assert!(b.ask("k", 1).await.is_err());
    assert!(b.gets("k").await);
}

/// An error says which servers don't count, and for how long.
#[tokio::test(start_paused = true)]
async fn error_says_when_a_restarted_server_counts() {
    let servers = Servers::start(26);
    let a = servers.acquainted("a").await;
    servers.all[0].restart(Data::Kept);
    servers.advance(secs(12)).await;
    a.quorum.hello().await.expect("a quorum");
    servers.all[2].restart(Data::Kept);
    servers.advance(secs(5)).await;
    a.quorum.hello().await.expect("a quorum");
    servers.advance(secs(1)).await;
    let answer = a.ask("k", 1).await;
    let Err(error @ BackendError::OutcomeUnknown { .. }) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(
        error.to_string(),
        "outcome unknown: server 1 restarted and counts in 35 s, server 3 restarted and counts in 40 s: \
         2 of 3 servers failed"
    );
    servers.advance(secs(40)).await;
    assert!(granted(&a.ask("k", 2).await));
}

/// A client that meets the server after the restart cannot notice it. So the server itself must stay
/// down for the delay. This is the overlap without it.
#[tokio::test(start_paused = true)]
async fn newcomer_overlaps_if_the_server_does_not_wait() {
    let servers = Servers::start(23);
    let (_a, guard) = dead_holder(&servers).await;
    servers.all[1].restart(Data::Lost);
    let newcomer = servers.process("c");
    let second = newcomer.lock("k").await;
    assert!(guard.is_valid() && second.is_valid(), "two valid guards");
    assert!(
        second.fencing_token() > guard.fencing_token(),
        "fencing tells them apart"
    );
}

#[tokio::test(start_paused = true)]
async fn server_that_stays_down_for_the_delay_is_safe() {
    let servers = Servers::start(24);
    let (_a, guard) = dead_holder(&servers).await;
    servers.all[1].stop();
    let newcomer = servers.process("c");
    assert!(!newcomer.gets("k").await);
    servers.advance(ms(40_310)).await;
    servers.all[1].start(Data::Lost);
    let second = servers.process("d").lock("k").await;
    assert!(!guard.is_valid() && second.is_valid());
}

/// With their data kept, servers may restart one after the other.
#[tokio::test(start_paused = true)]
async fn holds_survive_restarts_with_data() {
    let servers = Servers::start(25);
    let a = servers.process("a");
    let guard = a.lock("k").await;
    for server in &servers.all {
        servers.advance(secs(15)).await;
        server.restart(Data::Kept);
    }
    servers.advance(secs(60)).await;
    assert!(guard.is_valid());
}
