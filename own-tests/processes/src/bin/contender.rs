//! Repeatedly acquires a lock, with one or more waiters that share a client. Prints one line per event:
//!
//! - `ready`: it is connected. Each line that it reads starts a waiter;
//! - `granted TIME POSITION TOKEN`: a waiter holds the lock, with the server's time in µs when it was
//!   queued, its position in the batch of acquires, and the fencing token;
//! - `lost REASON`: a waiter lost the lock.
//!
//! It exits after the last round of all waiters, or when its standard input closes, so it doesn't
//! outlive a test.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use leasehold_api::{Error, Label, LockClient, Mutex};
use leasehold_processes::{Failure, Library, RecordingBackend, Ticket};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::JoinSet;

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
    /// The number of waiters.
    #[arg(long, default_value_t = 1)]
    waiters: u32,
    /// The number of acquisitions of each waiter.
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// The waiter lease, in ms.
    #[arg(long, default_value_t = 5_000)]
    waiter_lease_ms: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let backend = arguments.client.connect(&arguments.url).await?;
    let waiter_lease = Duration::from_millis(arguments.waiter_lease_ms);
    let recording = Arc::new(RecordingBackend::new(backend).waiter_lease(waiter_lease));
    let locks = LockClient::builder(Arc::clone(&recording))
        .label(Label::new(&arguments.label)?)
        .call_timeout(Duration::from_secs(5))
        .build()?;
    let mutex = locks.mutex(&arguments.key)?;
    let mut starts = read_starts();
    print("ready")?;
    let mut waiters = JoinSet::new();
    for _ in 0..arguments.waiters {
        starts.recv().await.ok_or("the input has ended")?;
        waiters.spawn(acquire(
            Arc::clone(&recording),
            mutex.clone(),
            arguments.rounds,
        ));
    }
    while let Some(ended) = waiters.join_next().await {
        ended??;
    }
    locks.shutdown().await?;
    Ok(())
}

async fn acquire(
    recording: Arc<RecordingBackend>,
    mutex: Mutex,
    rounds: u32,
) -> Result<(), Failure> {
    for _ in 0..rounds {
        let guard = mutex.lock().await?;
        let token = guard.fencing_token();
        let ticket = recording.ticket(token);
        let Ticket { at, position } = ticket.ok_or("granted without a ticket")?;
        let (at, token) = (at.as_micros(), token.get());
        print(&format!("granted {at} {position} {token}"))?;
        match guard.release().await {
            Err(Error::Lost { reason, .. }) => print(&format!("lost {reason:?}"))?,
            released => drop(released?),
        }
    }
    Ok(())
}

fn print(line: &str) -> Result<(), std::io::Error> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Returns an item for each line of the input. The process exits when the input closes.
fn read_starts() -> UnboundedReceiver<()> {
    let (sender, starts) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for _ in std::io::stdin().lock().lines() {
            // Fails only while the process exits.
            let _ = sender.send(());
        }
        std::process::exit(2);
    });
    starts
}
