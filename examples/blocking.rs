//! Locks without an async runtime: threads that share a counter, and a job that one machine runs.
//!
//! ```sh
//! cargo run --example blocking                         # with a temporary file
//! cargo run --example blocking -- redis://localhost    # with a server
//! ```

use std::error::Error;
use std::path::Path;
use std::thread;
use std::time::Duration;

use leasehold::blocking::{self, LockClient};
use leasehold::{ConnectOptions, JobOutcome, Outcome, RedisLibrary};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = format!("sqlite:{}", folder.path().join("locks.db").display());
    let url = std::env::args().nth(1).unwrap_or(file);
    let options = ConnectOptions::new().redis_library(RedisLibrary::RedisRs);
    let locks = blocking::connect_with(&url, options)?;
    let worked = work(&locks, &folder.path().join("counter"));
    // Nothing sends a release after the end of the process.
    locks.shutdown()?;
    worked
}

fn work(locks: &LockClient, counter: &Path) -> Result<(), Box<dyn Error>> {
    std::fs::write(counter, "0")?;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| add(locks, counter).map_err(|error| error.to_string())))
            .collect();
        let ended = threads.into_iter();
        let ended = ended.map(|thread| thread.join().expect("no panic"));
        ended.collect::<Result<(), String>>()
    })?;
    println!("the counter is {}", std::fs::read_to_string(counter)?);

    // Another machine that calls this now gets `AlreadyDone`.
    let nightly = locks.once("report")?.not_within(Duration::from_secs(60));
    match nightly.run(|job| write_report(job.attempt()))? {
        JobOutcome::Done(()) => println!("this machine wrote the report"),
        other => println!("{other:?}"),
    }
    Ok(())
}

/// Adds 1 to the number in a file that all threads share.
fn add(locks: &LockClient, counter: &Path) -> Result<(), Box<dyn Error>> {
    let mutex = locks.mutex("counter")?;
    match mutex.try_lock_for(Duration::from_secs(10))? {
        Outcome::Acquired(guard) => {
            let number: u32 = std::fs::read_to_string(counter)?.parse()?;
            std::fs::write(counter, (number + 1).to_string())?;
            Ok(guard.release()?)
        }
        Outcome::Contended(contention) => Err(contention.to_string().into()),
    }
}

fn write_report(attempt: u32) -> std::io::Result<()> {
    println!("attempt {attempt} writes the report");
    Ok(())
}
