//! A request takes the lock and answers at once; a worker in another process does the long part
//! under the same lock, which is never let go in between.

mod common;

use std::time::Duration;

use common::Result;
use leasehold::{Handoff, LockClient, MutexGuard, Outcome};
use tokio::sync::mpsc;
use tokio::time::sleep;

/// What goes through the queue of jobs. The hand-off is a secret: this queue must be a private one.
struct Job {
    report: u32,
    handoff: String,
}

/// The web server: checks what must be checked under the lock, and passes the rest on.
async fn request(locks: &LockClient, jobs: &mpsc::Sender<Job>) -> Result<&'static str> {
    let guard = match locks.mutex("report")?.try_lock().await? {
        Outcome::Acquired(guard) => guard,
        Outcome::Held(_) | Outcome::TimedOut(_) => return Ok("409: it is being made already"),
    };
    // If that fails the guard comes back with the error; dropping it releases the lock.
    let handoff = guard.into_handoff().await?.to_secret_text();
    jobs.send(Job { report: 7, handoff }).await?;
    Ok("202: it is being made")
}

/// The worker, in a process of its own.
async fn work(locks: LockClient, mut jobs: mpsc::Receiver<Job>) -> Result<u32> {
    let mut made = 0;
    while let Some(Job { report, handoff }) = jobs.recv().await {
        let handoff: Handoff = handoff.parse()?;
        let guard: MutexGuard = match locks.adopt(handoff).await {
            Ok(guard) => guard,
            Err(failed) => {
                println!("report {report} is not made: {failed}");
                continue;
            }
        };
        guard.protect(sleep(Duration::from_millis(300))).await?;
        println!("report {report} made, token {}", guard.fencing_token()?);
        guard.release().await?;
        made += 1;
    }
    locks.shutdown().await?;
    Ok(made)
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

        // A job that was delivered twice is done once.
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
