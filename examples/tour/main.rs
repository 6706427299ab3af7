//! What leasehold does, scene by scene. Every claim that is printed is checked.
//!
//! ```sh
//! cargo run --example tour                                             # simulator, no server
//! cargo run --example tour -- --redis redis://127.0.0.1:6379           # a real server
//! cargo run --example tour -- --redis redis://127.0.0.1:6379 --client fred
//! ```

mod cable;
mod scenes;
mod server;
mod stage;

use clap::Parser;
use leasehold::sim::SimServer;

use server::{Client, OnServer, OnSimulator};
use stage::{Result, Stage};

/// A tour of leasehold, on the simulator unless a server is named.
#[derive(Debug, Parser)]
struct Arguments {
    /// URL of a Redis server, such as redis://127.0.0.1:6379.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// Client library to reach it with.
    #[arg(long, value_enum, default_value = "redis-rs", requires = "redis")]
    client: Client,
}

fn main() -> Result<()> {
    let Arguments { redis, client } = Arguments::parse();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    // The simulator runs in virtual time, a server does not.
    let runtime = builder.enable_all().start_paused(redis.is_none()).build()?;
    runtime.block_on(async {
        let out = Box::new(std::io::stdout());
        match redis {
            None => {
                println!("leasehold on the simulator, in virtual time");
                let server = SimServer::new(1);
                let mut stage = Stage::new(Box::new(OnSimulator(server.clone())), out);
                scenes::play(&mut stage).await?;
                server.assert_idle();
            }
            Some(url) => {
                println!("leasehold on {client:?}");
                let on_server = OnServer::new(url, client);
                let mut stage = Stage::new(Box::new(on_server), out);
                scenes::play(&mut stage).await?;
            }
        }
        Ok(())
    })
}
