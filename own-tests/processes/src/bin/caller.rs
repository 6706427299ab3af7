//! Takes many free locks at the same time, each once. Prints `ready` when it is connected; after a line of input it takes the
//! locks; `served` when it has had all of them.

use std::io::stdin;
use std::sync::Arc;

use clap::Parser;
use leasehold_api::{LockBackend, LockClient};
use leasehold_postgres::PostgresBackend;
use leasehold_processes::{Failure, Library};
use tokio::task::{JoinSet, spawn_blocking};

/// Takes many free locks.
#[derive(Parser)]
struct Arguments {
    /// The client library. Without one, the server is Postgres.
    #[arg(long)]
    client: Option<Library>,
    /// The URL of the server.
    #[arg(long)]
    url: String,
    /// The number of locks.
    #[arg(long)]
    calls: u32,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let Arguments { client, url, calls } = Arguments::parse();
    let backend: Arc<dyn LockBackend> = match client {
        Some(library) => library.connect(&url).await?,
        None => Arc::new(PostgresBackend::connect(&url).await?),
    };
    let locks = LockClient::new(backend);
    println!("ready");
    spawn_blocking(|| stdin().read_line(&mut String::new())).await??;
    let mut waiting = JoinSet::new();
    for number in 0..calls {
        let mutex = locks.mutex(format!("{}-{number}", std::process::id()))?;
        waiting.spawn(async move { mutex.lock().await.map(drop) });
    }
    while let Some(served) = waiting.join_next().await {
        served??;
    }
    println!("served");
    locks.shutdown().await?;
    Ok(())
}
