//! Locks in one SQLite file, for the programs of one machine. `store.rs` beside this file is the
//! store, and lists its limits. It passes the conformance suite (`tests/conformance.rs`).
//!
//! ```sh
//! cd examples/sqlite
//! cargo run                  # a temporary file
//! cargo run -- locks.db      # this file; start it twice to see one wait
//! ```

mod store;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::store::StoreBackend;
use leasehold::{LockClient, Outcome};
use store::SqliteStore;

fn client(path: &Path) -> rusqlite::Result<LockClient> {
    Ok(LockClient::new(StoreBackend::new(SqliteStore::open(path)?)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let named = std::env::args_os().nth(1).map(PathBuf::from);
    let temporary = std::env::temp_dir().join(format!("leasehold-{}.db", std::process::id()));
    let path = named.clone().unwrap_or_else(|| temporary.clone());
    // Two clients, as two programs would have.
    let (locks, other) = (client(&path)?, client(&path)?);

    let guard = locks.mutex("report")?.lock().await?;
    println!("held, with the fencing token {}", guard.fencing_token());
    match other.mutex("report")?.try_lock().await? {
        Outcome::Acquired(_) => return Err("two clients hold the lock".into()),
        Outcome::Contended(contention) => println!("the other client: {contention}"),
    }

    let waiting = tokio::spawn({
        let mutex = other.mutex("report")?;
        async move { mutex.try_lock_for(Duration::from_secs(10)).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    guard.release().await?;
    let next = waiting
        .await??
        .into_guard()
        .ok_or("the lock was released")?;
    assert!(next.fencing_token() > guard.fencing_token());
    println!(
        "ok: the waiter got it, with the token {}",
        next.fencing_token()
    );
    next.release().await?;

    let permits = locks.semaphore("downloads", 2)?;
    let (one, two) = (permits.acquire().await?, permits.acquire().await?);
    let full = !other
        .semaphore("downloads", 2)?
        .try_acquire()
        .await?
        .is_acquired();
    assert!(full);
    println!("ok: two permits of two are taken");
    drop((one, two));

    locks.shutdown().await?;
    other.shutdown().await?;
    if named.is_none() {
        for suffix in ["", "-wal", "-shm"] {
            let mut file = temporary.clone().into_os_string();
            file.push(suffix);
            // SQLite removes the last two itself.
            let _ = std::fs::remove_file(file);
        }
    }
    Ok(())
}
