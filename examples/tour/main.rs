//! A tour of leasehold in seven sections. Each line that starts with "ok" is checked.
//!
//! ```sh
//! cargo run --example tour                                             # simulator, no server
//! cargo run --example tour -- --redis redis://127.0.0.1:6379           # a real server
//! cargo run --example tour -- --redis redis://127.0.0.1:6379 --client fred
//! ```

mod connection;
mod sections;
mod server;
mod tour;

use clap::Parser;
use leasehold::sim::SimServer;

use server::{Client, Service};
use tour::{Result, Tour};

/// A tour of leasehold, on the simulator or on a Redis server.
#[derive(Debug, Parser)]
struct Arguments {
    /// URL of a Redis server, such as redis://127.0.0.1:6379.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// Client library for that server.
    #[arg(long, value_enum, default_value = "redis-rs", requires = "redis")]
    client: Client,
}

fn main() -> Result<()> {
    let Arguments { redis, client } = Arguments::parse();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    // The simulator runs in virtual time, a Redis server in real time.
    let runtime = builder.enable_all().start_paused(redis.is_none()).build()?;
    runtime.block_on(async {
        let out = &mut std::io::stdout();
        match redis {
            None => {
                println!("leasehold on the simulator, in virtual time");
                let server = SimServer::new(1);
                let service = Service::Simulator(server.clone());
                sections::run(&mut Tour::new(service, out)).await?;
                server.assert_idle();
            }
            Some(url) => {
                println!("leasehold on {client:?}");
                let service = Service::Redis(url, client);
                sections::run(&mut Tour::new(service, out)).await?;
            }
        }
        Ok(())
    })
}
