//! A proxy that makes the line to a server longer.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::thread_proxy::{ThreadProxy, connect};

/// Starts a proxy that forwards all bytes in both directions, each of them a fixed time after it has
/// arrived. Bytes that follow each other closely stay that close, unlike through
/// [`FaultProxy`](crate::FaultProxy), and they need not be of the Redis protocol, so replicas can use it too.
pub fn at_a_distance(upstream: SocketAddr, latency: Duration) -> ThreadProxy {
    ThreadProxy::start(move |client| serve(client, upstream, latency))
}

/// Forwards in both directions until either side closes the connection.
async fn serve(client: TcpStream, upstream: SocketAddr, latency: Duration) {
    let Some(server) = connect(&client, upstream).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = forward(from_client, to_server, latency) => {}
        () = forward(from_server, to_client, latency) => {}
    }
}

/// Forwards one direction until the sender closes it.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, latency: Duration) {
    let (sender, mut on_the_way) = mpsc::unbounded_channel();
    let read = async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let due = Instant::now() + latency;
            if sender.send((due, buffer[..length].to_vec())).is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((due, bytes)) = on_the_way.recv().await {
            tokio::time::sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(read, write);
}
