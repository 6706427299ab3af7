//! What proxies have in common, and one that runs on a separate thread.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// A running proxy. Soon after it is dropped, all its connections are closed.
#[derive(Debug)]
#[must_use = "the proxy ends when it is dropped"]
pub struct ThreadProxy {
    address: SocketAddr,
    /// Taken by the drop.
    runtime: Option<Runtime>,
}

impl ThreadProxy {
    /// Starts a proxy on a free port of 127.0.0.1. It runs `serve` for each connection of a client.
    pub fn start<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (listener, address) = listen();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.spawn(accept(listener, serve));
        Self {
            address,
            runtime: Some(runtime),
        }
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ThreadProxy {
    fn drop(&mut self) {
        // A test that runs on another runtime may not wait for the end of this one.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Listens on a free port of 127.0.0.1.
pub(crate) fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.set_nonblocking(true).expect("a socket");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

/// Runs `serve` for each connection. All connections are closed when this future is dropped.
pub(crate) async fn accept<F>(listener: TcpListener, serve: impl Fn(TcpStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(serve(client));
    }
}

/// Connects to the server of a client, if that answers. Small messages are not delayed.
pub async fn connect(client: &TcpStream, upstream: SocketAddr) -> Option<TcpStream> {
    let server = TcpStream::connect(upstream).await.ok()?;
    for stream in [client, &server] {
        // An error only means that small messages may be delayed.
        let _ = stream.set_nodelay(true);
    }
    Some(server)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::time::{Duration, Instant};

    use crate::{RedisServer, latency};

    #[test]
    fn bytes_arrive_late_and_a_drop_closes_the_connection() {
        let (server, late) = (RedisServer::start(), Duration::from_millis(20));
        let proxy = latency::at_a_distance(server.address(), late);
        let mut client = std::net::TcpStream::connect(proxy.address()).expect("it listens");
        let begun = Instant::now();
        client.write_all(b"PING\r\n").expect("connected");
        let mut reply = [0; 7];
        client.read_exact(&mut reply).expect("answered");
        assert_eq!(&reply, b"+PONG\r\n");
        assert!(begun.elapsed() >= late * 2, "{:?}", begun.elapsed());
        drop(proxy);
        assert!(matches!(client.read(&mut reply), Ok(0) | Err(_)));
    }
}
