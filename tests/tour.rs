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

use leasehold::sim::SimServer;
use leasehold_test_servers::RedisServer;

use server::{Client, Service};
use tour::Tour;

async fn run(service: Service) -> String {
    let mut out = Vec::new();
    let finished = sections::run(&mut Tour::new(service, &mut out)).await;
    let text = String::from_utf8(out).expect("text");
    if let Err(error) = finished {
        panic!("the tour failed: {error}\n{text}");
    }
    text
}

#[tokio::test(start_paused = true)]
async fn on_the_simulator() {
    let server = SimServer::new(1);
    let text = run(Service::Simulator(server.clone())).await;
    server.assert_idle();
    insta::assert_snapshot!(text);
}

async fn on_redis(client: Client) {
    let server = RedisServer::start();
    let text = run(Service::Redis(server.url(), client)).await;
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
