//! A minority that is dead or frozen changes nothing.

use leasehold_sim::{Call, Data, Fault, Latency, SimBackend, SimServer};

use crate::support::{Process, Servers, ms, secs};

/// Locks, renews and releases, and asserts that it takes as long as with three servers.
async fn works_in_usual_time(servers: &Servers, a: &Process, b: &Process) {
    let (guard, took) = servers.timed(a.lock("k")).await;
    assert_eq!(took, ms(4), "the clocks, then the votes");
    servers.advance(secs(60)).await;
    assert!(guard.is_valid(), "renewed");
    let (free, _) = servers.timed(b.gets("k")).await;
    assert!(!free);
    let (released, took) = servers.timed(guard.release()).await;
    released.expect("released");
    assert_eq!(took, ms(2));
    let (guard, took) = servers.timed(b.lock("k")).await;
    assert_eq!(took, ms(2));
    guard.release().await.expect("released");
}

#[tokio::test(start_paused = true)]
async fn three_servers_answer_in_one_round_trip() {
    let servers = Servers::start(1);
    works_in_usual_time(&servers, &servers.process("a"), &servers.process("b")).await;
    servers.advance(ms(10)).await;
    servers.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn dead_or_frozen_minority_changes_nothing() {
    for (server, is_dead) in [0, 1, 2].into_iter().flat_map(|n| [(n, true), (n, false)]) {
        let servers = Servers::start(2);
        if is_dead {
            servers.all[server].stop();
        }
        let processes = [servers.process("a"), servers.process("b")];
        let links = || processes.iter().map(|process| &process.links[server]);
        if !is_dead {
            links().for_each(SimBackend::isolate);
        }
        works_in_usual_time(&servers, &processes[0], &processes[1]).await;
        if is_dead {
            servers.all[server].start(Data::Kept);
        } else {
            links().for_each(SimBackend::rejoin);
        }
        servers.advance(secs(2)).await;
        servers.assert_idle();
    }
}

/// The release overtakes the acquire, follows it, or the acquire comes after its window.
#[tokio::test(start_paused = true)]
async fn server_that_thaws_late_keeps_nothing() {
    for (acquire, all) in [
        (ms(400), ms(1)),
        (ms(1), ms(700)),
        (secs(3), ms(1)),
        (ms(1), secs(4)),
    ] {
        let (servers, a, b) = Servers::start_with_two(4).await;
        a.links[2].set_latency(Latency::fixed(all));
        a.links[2].inject_into(Call::Acquire, Fault::DelayRequest(acquire));
        let (guard, took) = servers.timed(a.lock("k")).await;
        assert_eq!(took, ms(2));
        let (_, took) = servers.timed(guard.release()).await;
        assert_eq!(took, ms(2));
        assert!(b.gets("k").await, "while the server is frozen");
        a.links[2].set_latency(Latency::fixed(ms(1)));
        servers.advance(secs(9)).await;
        assert_eq!(a.links[2].pending_faults(), 0);
        servers.assert_idle();
    }
}

/// A server that missed the release gets it later, long before the lease ends.
#[tokio::test(start_paused = true)]
async fn server_that_missed_a_release_gets_it() {
    let servers = Servers::start(5);
    let a = servers.process("a");
    let guard = a.lock("k").await;
    servers.advance(ms(10)).await;
    a.links[1].isolate();
    guard.release().await.expect("released");
    servers.advance(secs(5)).await;
    assert_ne!(servers.all[1].left_behind(), "");
    a.links[1].rejoin();
    servers.advance(secs(3)).await;
    servers.assert_idle();
}

/// The password of one server is wrong for a while, or that of all.
#[tokio::test(start_paused = true)]
async fn server_that_refused_a_release_gets_it() {
    for (denied, is_released) in [(1..2, true), (0..3, false)] {
        let servers = Servers::start(5);
        let a = servers.process("a");
        let guard = a.lock("k").await;
        servers.advance(ms(10)).await;
        a.links[denied.clone()].iter().for_each(SimBackend::deny);
        assert_eq!(guard.release().await.is_ok(), is_released);
        servers.advance(secs(5)).await;
        assert_ne!(servers.all[1].left_behind(), "");
        a.links[denied].iter().for_each(SimBackend::admit);
        servers.advance(secs(3)).await;
        servers.assert_idle();
    }
}

/// Without a quorum nothing is granted, and a guard ends at its deadline.
#[tokio::test(start_paused = true)]
async fn dead_majority_ends_everything() {
    let (servers, a, b) = Servers::start_with_two(6).await;
    let guard = a.lock("k").await;
    let locked = servers.elapsed();
    servers.all[1..].iter().for_each(SimServer::stop);
    let mutex = b.locks.mutex("other").expect("a valid key");
    let error = mutex.try_lock().await.expect_err("no quorum");
    assert!(error.is_transient(), "{error:?}");
    servers.lost(&guard).await;
    // 30 s, less the drift allowance of 310 ms, from the moment when the acquire was sent.
    assert_eq!(servers.elapsed(), locked - ms(2) + ms(29_690));
    for server in &servers.all[1..] {
        server.start(Data::Kept);
    }
    servers.advance(secs(41)).await;
    assert!(b.gets("k").await);
}

/// Two servers that have lost the hold decide, whatever the third says.
#[tokio::test(start_paused = true)]
async fn hold_that_a_majority_lost_is_lost_at_the_next_renewal() {
    let servers = Servers::start(7);
    let a = servers.process("a");
    let guard = a.lock("k").await;
    servers.all[0].remove_key("k");
    servers.advance(secs(11)).await;
    assert!(guard.is_valid(), "a minority changes nothing");
    servers.all[0].remove_key("k");
    servers.all[1].remove_key("k");
    servers.advance(secs(11)).await;
    assert!(!guard.is_valid());
    let b = servers.acquainted("b").await;
    assert!(b.gets("k").await, "nothing gives it back to the servers");
}
