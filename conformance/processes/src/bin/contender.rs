//! One process that takes a lock again and again, and prints what happens, a line for each event:
//!
//! - `ready` once it is connected; it goes on when it reads a line;
//! - `granted TICKET TOKEN`: it has the lock; the server's time in µs when it got its place, and
//!   the fencing token;
//! - `lost REASON`: it lost the lock while it held it.
//!
//! It ends after its last round, and when its standard input ends: it does not outlive a test.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use leasehold_api::{Label, LockClient, Release};
use leasehold_processes::{Library, RecordingBackend};
use tokio::sync::oneshot;

/// Takes a lock again and again.
#[derive(Parser)]
struct Arguments {
    /// The library to use.
    #[arg(long)]
    client: Library,
    /// The server.
    #[arg(long)]
    url: String,
    /// The lock's name.
    #[arg(long)]
    key: String,
    /// What others see of this process.
    #[arg(long)]
    label: String,
    /// How often to take it.
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// How long to keep it, in ms.
    #[arg(long, default_value_t = 0)]
    hold_ms: u64,
    /// How long a place in the queue outlives this process, in ms.
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
    say("ready")?;
    told_to_go().await?;
    for _ in 0..arguments.rounds {
        let guard = mutex.lock().await?;
        let (_, ticket) = recording.ticket().ok_or("granted without an answer")?;
        let token = guard.fencing_token().expect("tokens").get();
        say(&format!("granted {} {token}", ticket.as_micros()))?;
        if arguments.hold_ms > 0 {
            tokio::time::sleep(Duration::from_millis(arguments.hold_ms)).await;
        }
        if let Release::NotHeld(why) = guard.release().await? {
            say(&format!("lost {why:?}"))?;
        }
    }
    locks.shutdown().await?;
    Ok(())
}

fn say(line: &str) -> Result<(), std::io::Error> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Waits for the first line of the input; the end of the input ends the process, now or later.
async fn told_to_go() -> Result<(), Failure> {
    let (go, told) = oneshot::channel();
    std::thread::spawn(move || {
        let mut go = Some(go);
        for _ in std::io::stdin().lock().lines() {
            if let Some(go) = go.take() {
                // Fails only when the process is ending.
                let _ = go.send(());
            }
        }
        std::process::exit(2);
    });
    Ok(told.await?)
}
