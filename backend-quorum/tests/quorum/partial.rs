//! An attempt that no quorum grants leaves nothing behind.

use futures_util::future::{join, join_all};
use leasehold_api::{AcquireReply, BackendError, MutexGuard, Renew, RenewReply};
use leasehold_sim::{Call, Fault, Latency};

use crate::support::{Process, Servers, ms, secs};

fn assert_unknown(answer: &Result<AcquireReply, BackendError>) {
    let is_unknown = matches!(answer, Err(BackendError::OutcomeUnknown { .. }));
    assert!(is_unknown, "{answer:?}");
}

/// One server grants, two are silent. The grant is taken back before the answer.
#[tokio::test(start_paused = true)]
async fn grant_of_a_minority_is_taken_back() {
    let servers = Servers::start(11);
    let a = servers.acquainted("a").await;
    a.links[1].isolate();
    a.links[2].isolate();
    let (answer, took) = servers.timed(a.ask("k", 1)).await;
    assert_unknown(&answer);
    // Half of the call timeout, then the release.
    assert_eq!(took, ms(500 + 2));
    servers.all[0].assert_idle();
}

/// Each of three processes reaches another server first. Nobody gets two votes.
#[tokio::test(start_paused = true)]
async fn split_vote_leaves_nothing() {
    let servers = Servers::start(12);
    let mut processes = Vec::new();
    for near in 0..3 {
        let process = servers.acquainted("p").await;
        for (server, link) in process.links.iter().enumerate() {
            link.set_latency(Latency::fixed(ms(if server == near { 1 } else { 5 })));
        }
        processes.push(process);
    }
    let asks = processes.iter().map(|process| process.ask("k", 1));
    let (answers, took) = servers.timed(join_all(asks)).await;
    for answer in &answers {
        let is_contended = matches!(answer, Ok(AcquireReply::Contended(_)));
        assert!(is_contended, "{answer:?}");
    }
    // The votes of the far servers, then the release.
    assert_eq!(took, ms(10 + 2));
    servers.assert_idle();

    // Pauses of random length end the tie.
    let work = processes.iter().map(async |process| {
        for _ in 0..5 {
            let guard = process.lock("k").await;
            servers.advance(ms(3)).await;
            assert!(guard.is_valid());
            guard.release().await.expect("released");
        }
    });
    let (_, took) = servers.timed(join_all(work)).await;
    assert!(took < secs(10), "{took:?}");
    servers.advance(secs(1)).await;
    servers.assert_idle();
}

/// The reply of the only grant is lost, and the first release too.
#[tokio::test(start_paused = true)]
async fn release_of_a_minority_is_sent_again() {
    let servers = Servers::start(13);
    let a = servers.acquainted("a").await;
    a.links[1].isolate();
    a.links[2].isolate();
    a.links[0].inject_into(Call::Acquire, Fault::LoseReply);
    a.links[0].inject_into(Call::Release, Fault::LoseRequest);
    let (answer, took) = servers.timed(a.ask("k", 1)).await;
    assert_unknown(&answer);
    assert_eq!(took, ms(500));
    assert_ne!(servers.all[0].left_behind(), "");
    servers.advance(ms(1_000 + 5)).await;
    assert_eq!(a.links[0].pending_faults(), 0);
    servers.all[0].assert_idle();
}

/// Two servers are silent. The one that has granted it refuses to take it back for a while.
#[tokio::test(start_paused = true)]
async fn refused_release_of_a_minority_is_sent_again() {
    let servers = Servers::start(13);
    let a = servers.acquainted("a").await;
    a.links[1].isolate();
    a.links[2].isolate();
    let deny = async {
        servers.advance(ms(100)).await;
        a.links[0].deny();
    };
    let (answer, ()) = join(a.ask("k", 1), deny).await;
    assert_unknown(&answer);
    servers.advance(secs(3)).await;
    assert_ne!(servers.all[0].left_behind(), "");
    a.links[0].admit();
    servers.advance(secs(3)).await;
    servers.all[0].assert_idle();
}

/// Two servers miss the acquire, and the attempt is taken back. Its releases are late at these servers.
/// The client tries again before that, and the releases must not end the guard that it gets.
#[tokio::test(start_paused = true)]
async fn attempt_that_is_taken_back_never_wins() {
    let (servers, a, b) = Servers::start_with_two(15).await;
    for link in &a.links[1..] {
        link.inject_into(Call::Acquire, Fault::LoseRequest);
        link.inject_into(Call::Release, Fault::DelayRequest(secs(3)));
    }
    let guard = a.lock("k").await;
    assert!(servers.elapsed() < secs(1), "the second try is granted");
    for _ in 0..50 {
        servers.advance(ms(100)).await;
        assert!(guard.is_valid() && !b.gets("k").await);
    }
    assert_eq!(a.links[1].pending_faults() + a.links[2].pending_faults(), 0);
    guard.release().await.expect("released");
    servers.advance(secs(1)).await;
    servers.assert_idle();
}

/// Futures are dropped at every millisecond of an acquire and a release.
#[tokio::test(start_paused = true)]
async fn dropped_futures_leave_nothing() {
    for slow in 0..3 {
        for after in 0..12 {
            let servers = Servers::start(100 + after);
            let a = servers.process("a");
            a.links[slow].set_latency(Latency::fixed(ms(3)));
            let whole = async {
                a.lock("k").await.release().await.expect("released");
            };
            servers.within(ms(after), whole).await;
            servers.advance(secs(3)).await;
            servers.assert_idle();
        }
    }
}

/// A straggler that grants after the guard was handed out keeps its grant, as one more vote.
#[tokio::test(start_paused = true)]
async fn late_grant_counts_for_renewals() {
    let servers = Servers::start(14);
    let a = servers.acquainted("a").await;
    a.links[2].inject_into(Call::Acquire, Fault::DelayRequest(ms(300)));
    let guard = a.lock("k").await;
    servers.advance(secs(1)).await;
    servers.all[0].stop();
    servers.advance(secs(60)).await;
    // Renewed by the second and the third server.
    assert!(guard.is_valid());
    servers.all[0].start(leasehold_sim::Data::Kept);
    guard.release().await.expect("released");
    servers.advance(secs(2)).await;
    servers.assert_idle();
}

/// Split votes cost time, but somebody always gets on.
#[tokio::test(start_paused = true)]
async fn contenders_acquire_one_after_the_other() {
    for seed in 0..20 {
        let servers = Servers::start(seed);
        let clients = ["a", "b", "c"].map(|name| {
            let process = servers.process(name);
            async move {
                for _ in 0..10 {
                    let guard = process.lock("k").await;
                    guard.release().await.expect("released");
                }
            }
        });
        let (_, took) = servers.timed(join_all(clients)).await;
        assert!(took < secs(1), "seed {seed}: {took:?} for 30 acquisitions");
        servers.assert_idle();
    }
}

/// A process that holds a lock at the first two servers only. The third server missed the acquire.
async fn bare_majority(servers: &Servers) -> (Process, MutexGuard) {
    let a = servers.acquainted("a").await;
    a.links[2].inject_into(Call::Acquire, Fault::LoseRequest);
    let guard = a.lock("k").await;
    assert_eq!(servers.all[2].left_behind(), "");
    (a, guard)
}

/// A hold of a bare majority would end if one of its servers forgot it. A renewal also gives it to the server that
/// missed the acquire, so it survives.
#[tokio::test(start_paused = true)]
async fn renewal_reaches_for_the_server_that_missed_the_hold() {
    for forgets in [0, 1] {
        let servers = Servers::start(16);
        let b = servers.acquainted("b").await;
        let (_a, guard) = bare_majority(&servers).await;
        servers.advance(secs(11)).await;
        servers.all[forgets].step_clock_forward(secs(3_600));
        for _ in 0..100 {
            assert!(!b.gets("k").await && guard.is_valid());
            servers.advance(secs(1)).await;
        }
        guard.release().await.expect("released");
        servers.advance(secs(2)).await;
        servers.assert_idle();
    }
}

/// Each server loses the hold in turn, and gets it back. The token stays the same, although those that got
/// it late have a higher one.
#[tokio::test(start_paused = true)]
async fn hold_survives_servers_that_lose_it_one_after_the_other() {
    let servers = Servers::start(17);
    let b = servers.acquainted("b").await;
    let (_a, guard) = bare_majority(&servers).await;
    let token = guard.fencing_token();
    for _ in 0..2 {
        for server in &servers.all {
            servers.advance(secs(11)).await;
            assert!(!b.gets("k").await && guard.is_valid());
            server.remove_key("k");
        }
    }
    servers.advance(secs(11)).await;
    assert!(guard.is_valid());
    assert_eq!(guard.fencing_token(), token);
    guard.release().await.expect("released");
    assert!(b.token("k").await > token);
}

/// The late message that gives the hold to a server arrives after the release.
#[tokio::test(start_paused = true)]
async fn server_that_gets_the_hold_after_its_release_keeps_nothing() {
    for late in [ms(10), ms(500), ms(990), secs(5)] {
        let servers = Servers::start(18);
        let (a, guard) = bare_majority(&servers).await;
        a.links[2].inject_into(Call::Acquire, Fault::DelayRequest(late));
        let sent = async {
            while a.links[2].pending_faults() > 0 {
                servers.advance(ms(1)).await;
            }
        };
        let sent = servers.within(secs(15), sent).await;
        assert!(sent.is_some(), "the first renewal is after 10 s");
        guard.release().await.expect("released");
        servers.advance(secs(6)).await;
        servers.assert_idle();
    }
}

/// An earlier call of the attempt reached one server only, with a lower floor, and its caller is gone. So that
/// server has the hold under a lower token. It is no vote for a renewal, and nothing gives it the hold's token,
/// so the hold bears the loss of no other server. Nobody else gets the lock meanwhile, and tokens grow
/// (decision 0060).
#[tokio::test(start_paused = true)]
async fn server_with_a_lower_token_is_one_vote_less() {
    let (servers, a, b) = Servers::start_with_two(19).await;
    for link in &a.links[..2] {
        link.inject_into(Call::Acquire, Fault::LoseRequest);
    }
    let first = servers.within(ms(10), a.ask("k", 1)).await;
    assert!(first.is_none(), "two servers are silent");
    servers.advance(ms(100)).await;
    let Ok(AcquireReply::Acquired(hold)) = a.ask("k", 1).await else {
        panic!("two servers grant it anew");
    };
    let request = a.request("k", 1);
    let renew = [Renew::new(request.key, request.operation, request.lease).expect("valid")];
    let renewed = async || a.quorum.renew(&renew).await.remove(0);
    for _ in 0..3 {
        servers.advance(secs(5)).await;
        let reply = renewed().await.expect("answered").reply;
        assert!(matches!(reply, RenewReply::Renewed { token, .. } if token == hold.token));
    }
    assert!(servers.all.iter().all(|it| !it.left_behind().is_empty()));

    servers.all[0].stop();
    let reply = renewed().await;
    assert!(reply.is_err(), "the other two disagree: {reply:?}");
    // The failed renewal has renewed it there all the same, for 30 s.
    for _ in 0..29 {
        assert!(!b.gets("k").await);
        servers.advance(secs(1)).await;
    }
    assert!(b.token("k").await > hold.token);
}

/// A server that got the hold late has another epoch, with a higher token. The next holder gets the lock at once,
/// with a greater one.
#[tokio::test(start_paused = true)]
async fn epoch_of_one_server_delays_nobody() {
    let servers = Servers::start(20);
    let (_a, guard) = bare_majority(&servers).await;
    let b = servers.acquainted("b").await;
    servers.advance(secs(25)).await;
    let token = guard.fencing_token();
    guard.release().await.expect("released");
    servers.advance(ms(10)).await;
    let (next, took) = servers.timed(b.token("k")).await;
    assert!(next > token);
    assert!(took < ms(100), "{took:?}");
}
