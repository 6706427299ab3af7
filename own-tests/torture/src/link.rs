//! The network between one client and one server: a TCP proxy that knows no protocol.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use leasehold_test_servers::{ThreadProxy, connect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;

/// Where new connections lead to. It may change.
pub(crate) type Upstream = watch::Receiver<SocketAddr>;

/// An address that stays.
pub(crate) fn fixed(address: SocketAddr) -> Upstream {
    watch::channel(address).1
}

/// Which directions are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    None,
    Requests,
    Replies,
    Both,
    /// Connections are closed, with all that is under way in them, and new ones are refused at once.
    Refused,
}

impl Cut {
    fn cuts_requests(self) -> bool {
        !matches!(self, Self::None | Self::Replies)
    }

    fn cuts_replies(self) -> bool {
        !matches!(self, Self::None | Self::Requests)
    }
}

/// A proxy in front of one server, for one client. What is sent while a direction is cut arrives after it is
/// healed, as TCP does it: up to as long again as it has waited, because TCP doubles its pauses before it sends
/// again. A new connection may be faster.
#[derive(Debug)]
pub(crate) struct Link {
    proxy: ThreadProxy,
    cut: watch::Sender<Cut>,
}

impl Link {
    pub(crate) fn start(upstream: Upstream) -> Self {
        let (cut, watching) = watch::channel(Cut::None);
        let serve = move |client| serve(client, upstream.clone(), watching.clone());
        let proxy = ThreadProxy::start(serve);
        Self { proxy, cut }
    }

    /// The address for the client.
    pub(crate) fn address(&self) -> SocketAddr {
        self.proxy.address()
    }

    /// Cuts these directions, and no others.
    pub(crate) fn set(&self, cut: Cut) {
        self.cut.send_replace(cut);
    }
}

async fn serve(client: TcpStream, upstream: Upstream, cut: watch::Receiver<Cut>) {
    let (mut connecting, mut closing) = (cut.clone(), cut.clone());
    // A connection is made only if both directions are there.
    let decided = connecting.wait_for(|cut| matches!(cut, Cut::Refused | Cut::None));
    if decided.await.is_ok_and(|cut| *cut == Cut::Refused) {
        return;
    }
    let address = *upstream.borrow();
    let Some(server) = connect(&client, address).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = forward(from_client, to_server, cut.clone(), Cut::cuts_requests) => {}
        () = forward(from_server, to_client, cut, Cut::cuts_replies) => {}
        _ = closing.wait_for(|cut| *cut == Cut::Refused) => {}
    }
}

/// Forwards bytes until the connection ends.
async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut cut: watch::Receiver<Cut>,
    is_cut: fn(Cut) -> bool,
) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let (was_cut, began) = (is_cut(*cut.borrow()), Instant::now());
        let open = cut.wait_for(|cut| !is_cut(*cut)).await.is_ok();
        if was_cut {
            tokio::time::sleep(resend_after(began.elapsed())).await;
        }
        if !open || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// When TCP sends again what has waited for so long: any time up to that. The clock is random enough.
fn resend_after(waited: Duration) -> Duration {
    waited * (waited.subsec_nanos() % 1_000) / 1_000
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const SOON: Duration = Duration::from_millis(100);
    const IN_TIME: Duration = Duration::from_secs(10);

    async fn read(stream: &mut TcpStream, within: Duration) -> Option<Vec<u8>> {
        let mut buffer = [0; 16];
        let count = tokio::time::timeout(within, stream.read(&mut buffer)).await;
        // An error is the end of the connection, too.
        Some(buffer[..count.ok()?.unwrap_or(0)].to_vec())
    }

    #[tokio::test]
    async fn refused_connections_end_and_lose_what_is_under_way() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let link = Link::start(fixed(address));
        let mut client = TcpStream::connect(link.address()).await.expect("open");
        let (mut server, _) = listener.accept().await.expect("a connection");
        client.write_all(b"one").await.expect("sent");
        assert_eq!(read(&mut server, IN_TIME).await, Some(b"one".to_vec()));
        link.set(Cut::Requests);
        client.write_all(b"two").await.expect("sent");
        assert_eq!(read(&mut server, SOON).await, None, "held back");
        link.set(Cut::Refused);
        assert_eq!(read(&mut client, IN_TIME).await, Some(Vec::new()));
        assert_eq!(read(&mut server, IN_TIME).await, Some(Vec::new()), "lost");
        let mut refused = TcpStream::connect(link.address()).await.expect("open");
        assert_eq!(read(&mut refused, IN_TIME).await, Some(Vec::new()));
        link.set(Cut::None);
        let mut again = TcpStream::connect(link.address()).await.expect("open");
        let (mut server, _) = listener.accept().await.expect("a connection");
        again.write_all(b"three").await.expect("sent");
        assert_eq!(read(&mut server, IN_TIME).await, Some(b"three".to_vec()));
    }
}
