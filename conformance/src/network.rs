//! A TCP proxy with which a harness cuts and freezes the connections of a real server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use futures_util::future::select;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// A proxy in front of a server, on a free port of 127.0.0.1. It knows no protocol. Give each environment one of its own,
/// between the backends and the server, and the suite can run its cases of [`Abilities::cut`](crate::Abilities::cut) and
/// [`Abilities::freeze`](crate::Abilities::freeze).
///
/// Dropping it closes its connections.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// use leasehold_conformance::TcpProxy;
///
/// let proxy = TcpProxy::start("127.0.0.1:3306".parse().expect("an address")).await?;
/// let url = format!("mysql://locks@{}/shop", proxy.address());
/// // In `Environment::cut`:
/// proxy.cut();
/// // In `Environment::freeze`:
/// proxy.freeze(true);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the proxy ends when it is dropped"]
pub struct TcpProxy {
    address: SocketAddr,
    faults: watch::Sender<Faults>,
    accepting: JoinHandle<()>,
}

/// What happens to all connections.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    /// How often the connections were cut.
    cuts: u64,
    frozen: bool,
    delay: Duration,
}

impl TcpProxy {
    /// Starts a proxy to the server at `upstream`, as a task of the current tokio runtime.
    ///
    /// # Errors
    /// If there is no free port.
    ///
    /// # Cancel safety
    /// If you drop the future, there is no proxy.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn start(upstream: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let faults = watch::Sender::default();
        let accepting = tokio::spawn(accept(listener, upstream, faults.clone()));
        Ok(Self {
            address,
            faults,
            accepting,
        })
    }

    /// The address for clients.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes the connections that are open now. New ones work.
    pub fn cut(&self) {
        self.faults.send_modify(|faults| faults.cuts += 1);
    }

    /// Forwards nothing in either direction, until it is called with `false`. Connections stay open, new ones are
    /// accepted, and what was sent meanwhile is forwarded then.
    pub fn freeze(&self, frozen: bool) {
        self.faults.send_modify(|faults| faults.frozen = frozen);
    }

    /// Delays what is sent, in both directions. Zero is no delay.
    pub fn delay(&self, delay: Duration) {
        self.faults.send_modify(|faults| faults.delay = delay);
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Serves clients. All connections are closed when this future is dropped.
async fn accept(listener: TcpListener, upstream: SocketAddr, faults: watch::Sender<Faults>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let faults = faults.subscribe();
        let mut watching = faults.clone();
        let cuts = watching.borrow_and_update().cuts;
        connections.spawn(async move {
            let cut = pin!(watching.wait_for(|faults| faults.cuts > cuts));
            select(pin!(serve(client, upstream, faults)), cut).await;
        });
    }
}

/// Serves a client until one side closes the connection.
async fn serve(client: TcpStream, upstream: SocketAddr, mut faults: watch::Receiver<Faults>) {
    if faults.wait_for(|faults| !faults.frozen).await.is_err() {
        return;
    }
    let Ok(server) = TcpStream::connect(upstream).await else {
        return;
    };
    for stream in [&client, &server] {
        // Without it, small messages may be late.
        let _ = stream.set_nodelay(true);
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let requests = forward(from_client, to_server, faults.clone());
    let replies = forward(from_server, to_client, faults);
    select(pin!(requests), pin!(replies)).await;
}

/// Forwards bytes until either side is closed.
async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut faults: watch::Receiver<Faults>,
) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let delay = match faults.wait_for(|faults| !faults.frozen).await {
            Ok(faults) => faults.delay,
            Err(_) => return,
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Sends every byte back.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (mut from, mut to) = client.into_split();
                tokio::spawn(async move { tokio::io::copy(&mut from, &mut to).await });
            }
        });
        address
    }

    async fn answer(client: &mut TcpStream) -> u8 {
        client.read_u8().await.expect("an answer")
    }

    #[tokio::test]
    async fn proxy_freezes_delays_and_cuts() {
        let proxy = TcpProxy::start(echo().await).await.expect("started");
        let mut client = TcpStream::connect(proxy.address())
            .await
            .expect("it listens");
        client.write_u8(1).await.expect("sent");
        assert_eq!(answer(&mut client).await, 1);

        proxy.freeze(true);
        client.write_u8(2).await.expect("sent");
        let mut new = TcpStream::connect(proxy.address())
            .await
            .expect("it listens");
        new.write_u8(3).await.expect("sent");
        let silence = Duration::from_millis(50);
        assert!(
            tokio::time::timeout(silence, answer(&mut client))
                .await
                .is_err()
        );
        assert!(
            tokio::time::timeout(silence, answer(&mut new))
                .await
                .is_err()
        );
        proxy.freeze(false);
        assert_eq!(answer(&mut client).await, 2);
        assert_eq!(answer(&mut new).await, 3);

        let delay = Duration::from_millis(20);
        proxy.delay(delay);
        let began = Instant::now();
        client.write_u8(4).await.expect("sent");
        assert_eq!(answer(&mut client).await, 4);
        assert!(began.elapsed() >= delay * 2);

        proxy.cut();
        client.read_u8().await.expect_err("closed");
        let mut client = TcpStream::connect(proxy.address())
            .await
            .expect("it listens");
        client.write_u8(5).await.expect("sent");
        assert_eq!(answer(&mut client).await, 5);
        drop(proxy);
        client.read_u8().await.expect_err("closed");
    }
}
