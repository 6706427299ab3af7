//! A web request takes a lock and answers at once. A worker in another process does the long part
//! under the same lock. Nobody else can take the lock in between.

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::Result;
use leasehold::{Handoff, LockClient, MutexGuard, Outcome};
use tokio::sync::mpsc;
use tokio::time::sleep;

/// An entry of the job queue. The hand-off is a secret, so the queue must be private.
struct Job {
    report: u32,
    handoff: String,
}

/// The web server: takes the lock, then hands it off to the worker together with the job.
async fn request(locks: &LockClient, jobs: &mpsc::Sender<Job>) -> Result<&'static str> {
    let guard = match locks.mutex("report")?.try_lock().await? {
        Outcome::Acquired(guard) => guard,
        Outcome::Contended(_) => {
            return Ok("409: the report is already being made");
        }
    };
    // On failure, the error contains the guard; dropping it releases the lock.
    let handoff = guard.into_handoff().await?.to_secret_text();
    jobs.send(Job { report: 7, handoff }).await?;
    Ok("202: the report is being made")
}

/// The worker, in another process.
async fn work(locks: LockClient, mut jobs: mpsc::Receiver<Job>) -> Result<usize> {
    // In a database, so that all workers see it.
    let mut made = BTreeSet::new();
    while let Some(Job { report, handoff }) = jobs.recv().await {
        let handoff: Handoff = handoff.parse()?;
        let guard = adopt_or_lock(&locks, report, handoff).await?;
        if made.contains(&report) {
            println!("report {report} is made already");
            continue;
        }
        // A lost lock ends this report, not the worker.
        match guard.protect(sleep(Duration::from_millis(300))).await {
            Ok(()) => {
                println!("report {report} made, token {}", guard.fencing_token());
                made.insert(report);
            }
            Err(lost) => println!("report {report} is not made: {lost}"),
        }
    }
    locks.shutdown().await?;
    Ok(made.len())
}

/// Adopts the lock, also through an outage. If somebody has adopted it, or its lease is over, takes it anew: who has
/// adopted it may have died, so the job may have to be done all the same.
async fn adopt_or_lock(
    locks: &LockClient,
    report: u32,
    mut handoff: Handoff,
) -> Result<MutexGuard> {
    loop {
        match locks.adopt(handoff).await {
            Ok(guard) => return Ok(guard),
            Err(failed) if failed.error().is_transient() => {
                println!("report {report} is tried again: {failed}");
                sleep(Duration::from_millis(500)).await;
                handoff = failed.given_back();
            }
            Err(failed) => {
                println!("report {report}: {failed}");
                return Ok(locks.mutex("report")?.lock().await?);
            }
        }
    }
}

fn main() -> Result<()> {
    common::run(async |service| {
        let (send, receive) = mpsc::channel(8);
        let worker = service.client("worker").await?;
        let worker = tokio::spawn(work(worker, receive));
        let web = service.client("web").await?;

        let answers = [request(&web, &send).await?, request(&web, &send).await?];
        println!("{answers:?}");
        assert!(answers[0].starts_with("202") && answers[1].starts_with("409"));

        // The queue delivers the next job twice, but the report is made once.
        sleep(Duration::from_millis(600)).await;
        let guard = web.mutex("report")?.lock().await?;
        let handoff = guard.into_handoff().await?.to_secret_text();
        for report in [8, 8] {
            let handoff = handoff.clone();
            send.send(Job { report, handoff }).await?;
        }
        drop(send);
        assert_eq!(worker.await??, 2);
        web.shutdown().await?;
        Ok(())
    })
}
