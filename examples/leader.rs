//! Leader election: the process that holds the lock is the leader.
//!
//! Candidates wait in a queue. The first one takes over immediately when the leader resigns, or
//! after one lease when the leader crashes. `with` stops a leader that has lost its lock.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::Result;
use leasehold::{Error, FencingToken, LockClient};
use tokio::time::sleep;

async fn run_for_leader(
    locks: LockClient,
    name: &'static str,
    leaders: Arc<AtomicU32>,
) -> Result<()> {
    let election = locks
        .mutex("election:scheduler")?
        .lease(Duration::from_secs(10));
    let led = election
        .with(async |guard| lead(name, guard.fencing_token(), &leaders).await)
        .await;
    match led {
        Ok(Ok(())) => println!("{name} resigns"),
        // Another process may lead now. Followers ignore late commands of this one, because their
        // term is lower.
        Err(Error::Lost { reason, .. }) => println!("{name} loses the leadership: {reason}"),
        Ok(Err(other)) | Err(other) => return Err(other.into()),
    }
    locks.shutdown().await?;
    Ok(())
}

/// Leads for a while. The token is the leader's term: followers ignore commands of a lower term.
async fn lead(name: &str, term: FencingToken, leaders: &AtomicU32) -> Result<(), Error> {
    println!("{name} leads, term {term}");
    assert_eq!(
        leaders.fetch_add(1, Ordering::SeqCst),
        0,
        "one leader at a time"
    );
    sleep(Duration::from_secs(3)).await;
    leaders.fetch_sub(1, Ordering::SeqCst);
    Ok(())
}

fn main() -> Result<()> {
    common::run(async |service| {
        let leaders = Arc::new(AtomicU32::new(0));
        let mut candidates = Vec::new();
        for name in ["ann", "bob", "eve"] {
            let locks = service.client(name).await?;
            candidates.push(tokio::spawn(run_for_leader(
                locks,
                name,
                Arc::clone(&leaders),
            )));
        }
        for candidate in candidates {
            candidate.await??;
        }
        Ok(())
    })
}
