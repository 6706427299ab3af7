//! Leader election: candidates wait in a queue, and followers find the leader.
//!
//! The next candidate leads immediately when the leader resigns, or after one lease when it crashes. `run` stops
//! a leader that has lost its term, and stands again.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::Result;
use leasehold::{Election, Error, LockClient, Term};
use tokio::time::sleep;

fn election(locks: &LockClient) -> Result<Election, Error> {
    let election = locks.election("election:scheduler")?;
    Ok(election.lease(Duration::from_secs(10)))
}

async fn candidate(locks: LockClient, name: &'static str, leaders: Arc<AtomicU32>) -> Result<()> {
    let standing = election(&locks)?.info(format!("{name}.example:80"))?;
    let led = standing
        .run(async |term| lead(name, &term, &leaders).await)
        .await
        .inspect(|()| println!("{name} has resigned"));
    locks.shutdown().await?; // also after an error
    Ok(led?)
}

/// Leads for a while. Receivers of orders ignore those with a lower term than they have seen.
async fn lead(name: &str, term: &Term, leaders: &AtomicU32) {
    println!("{name} leads, term {}", term.number());
    let others = leaders.fetch_add(1, Ordering::SeqCst);
    assert_eq!(others, 0, "one leader at a time");
    sleep(Duration::from_secs(3)).await;
    leaders.fetch_sub(1, Ordering::SeqCst);
}

/// Asks three times who leads.
async fn follower(locks: LockClient) -> Result<u32> {
    let election = election(&locks)?;
    let mut found = 0;
    for _ in 0..3 {
        sleep(Duration::from_secs(2)).await;
        if let Some(leader) = election.leader().await? {
            let address = String::from_utf8_lossy(&leader.info);
            println!(
                "a follower finds the leader of term {} at {address}",
                leader.term
            );
            found += 1;
        }
    }
    Ok(found)
}

fn main() -> Result<()> {
    common::run(async |service| {
        let leaders = Arc::new(AtomicU32::new(0));
        let mut candidates = Vec::new();
        for name in ["ann", "bob", "eve"] {
            let locks = service.client(name).await?;
            candidates.push(tokio::spawn(candidate(locks, name, Arc::clone(&leaders))));
        }
        let follower = tokio::spawn(follower(service.client("follower").await?));
        for candidate in candidates {
            candidate.await??;
        }
        assert!(follower.await?? > 0, "the follower finds a leader");
        Ok(())
    })
}
