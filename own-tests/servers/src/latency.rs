//! A proxy that makes the line to a server longer.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Forwards all bytes in both directions, each of them a fixed time after it has arrived. Bytes that
/// follow each other closely stay that close, unlike through [`FaultProxy`](crate::FaultProxy), and
/// they need not be of the Redis protocol, so replicas can use it too.
///
/// It runs on a separate thread. Dropping it closes all its connections.
#[derive(Debug)]
pub(crate) struct LatencyProxy {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LatencyProxy {
    /// Starts a proxy to the server at `upstream`, on a free port of 127.0.0.1.
    pub(crate) fn start(upstream: SocketAddr, latency: Duration) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("bound");
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, upstream, latency) => {}
                    _ = stopped => {}
                }
            });
        });
        Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// The address for clients.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for LatencyProxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has panicked already if this fails.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, upstream: SocketAddr, latency: Duration) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(serve(client, upstream, latency));
    }
}

/// Forwards in both directions until either side closes the connection.
async fn serve(client: TcpStream, upstream: SocketAddr, latency: Duration) {
    let Ok(server) = TcpStream::connect(upstream).await else {
        return;
    };
    for stream in [&client, &server] {
        // An error only means that small messages may be delayed.
        let _ = stream.set_nodelay(true);
    }
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
