//! Runs the tour on the simulator and through both client libraries. The tour contains its own
//! assertions.

#[path = "../examples/tour/connection.rs"]
mod connection;
#[path = "../examples/tour/sections/mod.rs"]
mod sections;
#[path = "../examples/tour/server.rs"]
mod server;
#[path = "../examples/tour/tour.rs"]
mod tour;

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use leasehold::sim::SimServer;
use leasehold_test_servers::RedisServer;

use server::{Client, OnServer, OnSimulator};
use tour::{Connect, Tour};

/// A writer to memory.
#[derive(Clone, Debug, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl Output {
    fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn run(connect: impl Connect + 'static) -> String {
    let output = Output::default();
    let mut tour = Tour::new(Box::new(connect), Box::new(output.clone()));
    let finished = sections::run(&mut tour).await;
    if let Err(error) = finished {
        panic!("the tour failed: {error}\n{}", output.text());
    }
    output.text()
}

#[tokio::test(start_paused = true)]
async fn on_the_simulator() {
    let server = SimServer::new(1);
    let text = run(OnSimulator(server.clone())).await;
    server.assert_idle();
    insta::assert_snapshot!(text);
}

async fn on_redis(client: Client) {
    let server = RedisServer::start();
    let text = run(OnServer::new(server.url(), client)).await;
    assert!(text.ends_with("checks passed.\n"), "{text}");
}

#[tokio::test]
async fn on_a_server_with_redis_rs() {
    on_redis(Client::RedisRs).await;
}

#[tokio::test]
async fn on_a_server_with_fred() {
    on_redis(Client::Fred).await;
}
