//! The tour, on the simulator and through both client libraries: every claim in it is asserted.

#[path = "../examples/tour/cable.rs"]
mod cable;
#[path = "../examples/tour/scenes/mod.rs"]
mod scenes;
#[path = "../examples/tour/server.rs"]
mod server;
#[path = "../examples/tour/stage.rs"]
mod stage;

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use leasehold::sim::SimServer;
use leasehold_test_servers::RedisServer;

use server::{Client, OnServer, OnSimulator};
use stage::{Connect, Stage};

/// What was printed, in memory.
#[derive(Clone, Debug, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Page {
    fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Write for Page {
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

async fn play(connect: impl Connect + 'static) -> String {
    let page = Page::default();
    let mut stage = Stage::new(Box::new(connect), Box::new(page.clone()));
    let played = scenes::play(&mut stage).await;
    if let Err(error) = played {
        panic!("the tour ends early: {error}\n{}", page.text());
    }
    page.text()
}

#[tokio::test(start_paused = true)]
async fn on_the_simulator() {
    let server = SimServer::new(1);
    let text = play(OnSimulator(server.clone())).await;
    server.assert_idle();
    insta::assert_snapshot!(text);
}

async fn on_redis(client: Client) {
    let server = RedisServer::start();
    let text = play(OnServer::new(server.url(), client)).await;
    assert!(text.ends_with("claims hold.\n"), "{text}");
}

#[tokio::test]
async fn on_a_server_with_redis_rs() {
    on_redis(Client::RedisRs).await;
}

#[tokio::test]
async fn on_a_server_with_fred() {
    on_redis(Client::Fred).await;
}
