//! Tokens strictly increase, whichever servers make the quorum.

use leasehold_api::{AcquireReply, FencingToken};

use crate::support::{Process, Servers, ms};

/// A process that reaches only two of the servers.
fn pair(servers: &Servers, missing: usize) -> Process {
    let process = servers.process("p");
    process.links[missing].isolate();
    process
}

/// The greatest token of a majority may step back. The clocks of A, B and C show 0 h, 1 h and 5 h: {B, C} grants with 1 h
/// and 5 h, and then {A, B} with 0 h and 1 h.
#[tokio::test(start_paused = true)]
async fn tokens_increase_over_all_pairs() {
    let servers = Servers::start(41);
    let mut last = FencingToken::default();
    for missing in [0, 2, 1, 2, 0, 1, 0, 2, 2, 1, 1, 0] {
        let token = pair(&servers, missing).token("k").await;
        assert!(token > last, "{token:?} after {last:?}");
        last = token;
    }
}

/// Servers that grant different tokens grant nothing together. The next attempt brings the floor for all.
#[tokio::test(start_paused = true)]
async fn servers_that_disagree_are_raised() {
    let servers = Servers::start(42);
    let high = pair(&servers, 0).token("k").await;
    servers.advance(ms(10)).await;
    let process = pair(&servers, 2);
    process.quorum.hello().await.expect("a quorum");
    let (answer, took) = servers.timed(process.ask("k", 1)).await;
    let stale = AcquireReply::Stale;
    assert_eq!(answer.expect("an answer"), stale);
    // The servers answer after 2 ms, the release takes 2 ms. The silent server had half of the time.
    assert_eq!(took, ms(500 + 2));
    servers.all[0].assert_idle();
    servers.all[1].assert_idle();
    match process.ask("k", 2).await.expect("an answer") {
        AcquireReply::Acquired(acquired) => assert_eq!(acquired.token.get(), high.get() + 2),
        other => panic!("{other:?}"),
    }
}
