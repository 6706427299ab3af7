//! Exclusion: one holder at a time. Every backend must pass these cases.

use futures_util::future::join_all;
use leasehold_api::{AcquireReply, ServerTime, bounds};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, ensure, want, want_eq};
use crate::world::{Attempt, Lock, World, one};

pub(super) const CASES: &[Case] = cases!("exclusion";
    free_key_is_granted: ["S1", "rule 2"], [];
    held_key_is_refused_to_others: ["S1"], [];
    held_key_is_refused_to_the_same_session: ["S1", "rule 5"], [];
    release_frees_the_key: ["S1", "S3"], [];
    keys_are_independent: ["S1"], [];
    one_of_many_at_once_wins: ["S1"], [];
    held_says_when_it_may_change: ["rule 3"], [];
    capabilities_are_as_declared: ["trait contract"], [];
    stamps_advance_on_one_clock: ["rule 1"], [];
    calls_end_in_time: ["L4"], [];
    holds_follow_each_other_on_the_servers_clock: ["rule 1", "S1"], [];
);

async fn free_key_is_granted(world: &World) -> Verdict {
    let a = world.session().await?;
    let lease = world.units(20);
    let held = a.ask(&Lock::mutex("k")).lease(lease).acquired("S1").await?;
    want_eq!(held.holds(), 1).promised("rule 5: the first acquire has one hold")?;
    world
        .ends_at(held.left(), held.stamp.at.saturating_add(lease))
        .promised("rule 2: a grant reports the remaining time, which is the lease")
}

async fn held_key_is_refused_to_others(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    for _ in 0..3 {
        b.ask(&lock).finds_contention("S1").await?;
    }
    held.released("S3").await
}

async fn held_key_is_refused_to_the_same_session(world: &World) -> Verdict {
    let (a, _, lock, held) = world.held(Lock::mutex("k")).await?;
    // Another owner: two plain handles of one program exclude each other.
    a.ask(&lock).finds_contention("S1").await?;
    held.released("S3").await
}

async fn release_frees_the_key(world: &World) -> Verdict {
    let sessions = world.sessions::<2>().await?;
    let lock = Lock::mutex("k");
    for turn in 0..6 {
        let held = sessions[turn % 2].ask(&lock).acquired("S1").await?;
        sessions[(turn + 1) % 2]
            .ask(&lock)
            .finds_contention("S1")
            .await?;
        held.released("S3").await?;
    }
    Ok(())
}

async fn keys_are_independent(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let first = a.ask(&Lock::mutex("k1")).acquired("S1").await?;
    let second = b.ask(&Lock::mutex("k2")).acquired("S1").await?;
    first.released("S3").await?;
    b.ask(&Lock::mutex("k2")).finds_contention("S1").await?;
    second.released("S3").await
}

async fn one_of_many_at_once_wins(world: &World) -> Verdict {
    let mut sessions = Vec::new();
    for _ in 0..world.at_once(8, 3) {
        sessions.push(world.session().await?);
    }
    for round in 0..8 {
        let lock = Lock::mutex(&format!("k{round}"));
        let sent = sessions.iter().map(|session| session.ask(&lock).send());
        let mut won = 0;
        for answer in join_all(sent).await {
            match answer?.1 {
                AcquireReply::Acquired(_) => won += 1,
                other => want!(other, AcquireReply::Contended(_))
                    .promised("S1: all other attempts learn that the key is held")?,
            }
        }
        // The votes of several servers may be split.
        ensure!(won == 1 || (won == 0 && world.several_servers()), won)
            .promised("S1: exactly one of many concurrent attempts is granted")?;
    }
    Ok(())
}

async fn held_says_when_it_may_change(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let (lock, lease) = (Lock::mutex("k"), world.units(20));
    a.ask(&lock).lease(lease).acquired("S1").await?;
    let retry_after = b.ask(&lock).contended("S1").await?.retry_after;
    ensure!(!retry_after.is_zero() && retry_after <= lease, retry_after).promised(
        "rule 3: `Contended` has the time to the earliest change, here the end of the lease",
    )
}

async fn capabilities_are_as_declared(world: &World) -> Verdict {
    let declared = world.capabilities();
    for _ in 0..2 {
        want_eq!(world.backend().await?.capabilities(), declared).promised(
            "trait contract: a backend always has the capabilities that its harness declares",
        )?;
    }
    Ok(())
}

async fn stamps_advance_on_one_clock(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let before = a.backend.hello().await?;
    world.pass(2).await;
    let after = b.backend.hello().await?;
    want_eq!(after.clock, before.clock)
        .promised("rule 1: all clients of one server read the same clock")?;
    let elapsed = after.at.saturating_since(before.at);
    ensure!(elapsed >= world.units(2), elapsed).promised("rule 1: the server's clock advances")
}

async fn calls_end_in_time(world: &World) -> Verdict {
    let a = world.session().await?;
    let lock = Lock::mutex("k");
    let clock = a.backend.runtime();
    let mut began = clock.now();
    for _ in 0..5 {
        let held = a.ask(&lock).acquired("S1").await?;
        a.ask(&lock).finds_contention("S1").await?;
        held.renewed(world.units(5), "rule 2").await?;
        held.released("S3").await?;
        // Six calls, including those that read the time.
        let took = clock.now().saturating_since(began);
        ensure!(took <= bounds::CALL_TIMEOUT * 6, took)
            .promised(format!("L4: a call ends within {:?}", bounds::CALL_TIMEOUT))?;
        began = clock.now();
    }
    Ok(())
}

/// Acquires and releases the key several times. Returns the stamps of each hold's two replies.
async fn spans(world: &World) -> Result<Vec<(ServerTime, ServerTime)>, Failure> {
    let (session, lock) = (world.session().await?, Lock::mutex("k"));
    let mut spans = Vec::new();
    let mut deliverable = session.now().await?;
    for _ in 0..60 {
        let request = session.ask(&lock).build_from(deliverable)?;
        let (attempt, reply) = Attempt::send(session.clone(), request).await?;
        deliverable = attempt.stamp.at;
        if matches!(reply, AcquireReply::Acquired(_)) {
            let release = one(session.backend.release(&[attempt.release_request()]).await)?;
            spans.push((attempt.stamp.at, release.stamp.at));
            if spans.len() == 12 {
                break;
            }
        }
        // On a store with compare-and-set, the writes of clients that never pause can outlast a call's time limit.
        world.pass_for(world.units(1) / 10).await;
    }
    Ok(spans)
}

/// A step that reads the clock and then waits for the lock of the store may be executed after the
/// release of another holder, and yet be stamped before it.
async fn holds_follow_each_other_on_the_servers_clock(world: &World) -> Verdict {
    let mut all = Vec::new();
    for spans in join_all((0..world.at_once(5, 3)).map(|_| spans(world))).await {
        all.extend(spans?);
    }
    all.sort_unstable();
    for pair in all.windows(2) {
        let ((_, released), (acquired, _)) = (pair[0], pair[1]);
        ensure!(
            acquired.saturating_add(world.skew()) >= released,
            (acquired, released)
        )
        .promised("rule 1: no hold begins, by the clock in its step, before the last has ended")?;
    }
    ensure!(all.len() > 5, all.len())
        .promised("S1: clients that compete for a key acquire it one after the other")
}
