//! Repeatedly acquires a lock and prints one line per event:
//!
//! - `ready`: it is connected, and starts when it reads a line;
//! - `granted TICKET TOKEN`: it holds the lock, with the server's time in µs when it was queued,
//!   and the fencing token;
//! - `lost REASON`: it lost the lock.
//!
//! It exits after its last round, or when its standard input closes, so it doesn't outlive a test.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use leasehold_api::{Label, LockClient, ReleaseOutcome};
use leasehold_processes::{Library, RecordingBackend};
use tokio::sync::oneshot;

/// Repeatedly acquires a lock.
#[derive(Parser)]
struct Arguments {
    /// The client library.
    #[arg(long)]
    client: Library,
    /// The URL of the server.
    #[arg(long)]
    url: String,
    /// The name of the lock.
    #[arg(long)]
    key: String,
    /// The label that other processes see.
    #[arg(long)]
    label: String,
    /// The number of acquisitions.
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// How long to hold the lock, in ms.
    #[arg(long, default_value_t = 0)]
    hold_ms: u64,
    /// The waiter lease, in ms.
    #[arg(long, default_value_t = 5_000)]
    waiter_lease_ms: u64,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let backend = arguments.client.connect(&arguments.url).await?;
    let recording = Arc::new(RecordingBackend::new(backend));
    let locks = LockClient::builder(Arc::clone(&recording))
        .label(Label::new(&arguments.label)?)
        .call_timeout(Duration::from_secs(5))
        .build()?;
    let mutex = locks
        .mutex(&arguments.key)?
        .waiter_lease(Duration::from_millis(arguments.waiter_lease_ms));
    print("ready")?;
    wait_for_start().await?;
    for _ in 0..arguments.rounds {
        let guard = mutex.lock().await?;
        let (_, ticket) = recording.ticket().ok_or("granted without a ticket")?;
        let token = guard.fencing_token().get();
        print(&format!("granted {} {token}", ticket.as_micros()))?;
        if arguments.hold_ms > 0 {
            tokio::time::sleep(Duration::from_millis(arguments.hold_ms)).await;
        }
        if let ReleaseOutcome::NotHeld(reason) = guard.release().await? {
            print(&format!("lost {reason:?}"))?;
        }
    }
    locks.shutdown().await?;
    Ok(())
}

fn print(line: &str) -> Result<(), std::io::Error> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Waits for the first line of the input. The process exits when the input closes.
async fn wait_for_start() -> Result<(), Failure> {
    let (start, started) = oneshot::channel();
    std::thread::spawn(move || {
        let mut start = Some(start);
        for _ in std::io::stdin().lock().lines() {
            if let Some(start) = start.take() {
                // Fails only while the process exits.
                let _ = start.send(());
            }
        }
        std::process::exit(2);
    });
    Ok(started.await?)
}
