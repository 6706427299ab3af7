//! A proxy that injects faults into Redis connections.
//!
//! Every connection has two halves. The request half cuts the client's bytes into requests,
//! decides whether to drop one, and adds the others to a queue. The reply half cuts the
//! server's bytes into replies and pushes, takes one request from the queue for each reply, and
//! decides whether to drop that reply. Requests and replies keep their order on a connection,
//! so each reply matches its request, however many are in flight.
//!
//! The proxy closes a connection after a dropped message: without one reply, the client would match
//! all later replies with the wrong requests.

use std::collections::VecDeque;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::resp::{self, Frame, Request};

type Matches = Box<dyn Fn(&Request) -> bool + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Request,
    Reply,
}

struct Meal {
    what: What,
    matches: Matches,
    left: u64,
}

/// The faults of all connections. A change wakes the connections that wait.
#[derive(Clone, Copy, Debug, Default)]
struct Weather {
    /// Forwards nothing on any connection.
    silent: bool,
    /// Connections with a lower number forward nothing any more.
    dead_below: u64,
    /// Connections with a lower number are closed.
    cut_below: u64,
    /// The delay of each message.
    delay: Duration,
}

struct Shared {
    upstream: Mutex<SocketAddr>,
    weather: watch::Sender<Weather>,
    menu: Mutex<Menu>,
}

#[derive(Default)]
struct Menu {
    meals: Vec<Meal>,
    eaten_requests: u64,
    eaten_replies: u64,
    connections: u64,
}

impl Shared {
    fn upstream(&self) -> SocketAddr {
        *self.upstream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn menu(&self) -> MutexGuard<'_, Menu> {
        self.menu.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether to drop this message. Counts the dropped ones.
    fn eats(&self, what: What, request: &Request) -> bool {
        let mut menu = self.menu();
        let wanted =
            |meal: &&mut Meal| meal.what == what && meal.left > 0 && (meal.matches)(request);
        let Some(meal) = menu.meals.iter_mut().find(wanted) else {
            return false;
        };
        meal.left -= 1;
        match what {
            What::Request => menu.eaten_requests += 1,
            What::Reply => menu.eaten_replies += 1,
        }
        true
    }
}

/// A TCP proxy in front of one server. Dropping it closes all its connections.
///
/// You can set faults at any time. They also apply to open connections.
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl fmt::Debug for FaultProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultProxy")
            .field("address", &self.address)
            .field("upstream", &self.shared.upstream())
            .finish_non_exhaustive()
    }
}

impl FaultProxy {
    /// Starts a proxy to the server at `upstream` on a free port of 127.0.0.1.
    ///
    /// # Panics
    /// Outside a tokio runtime, or if no port can be had.
    pub async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a port of 127.0.0.1 can be had");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            upstream: Mutex::new(upstream),
            weather: watch::Sender::new(Weather::default()),
            menu: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self {
            address,
            shared,
            accepting,
        }
    }

    /// The address for clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `redis://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Drops the replies to the next `count` requests that match. The server executes these
    /// requests; the client's connection is closed instead of a reply.
    pub fn eat_replies(
        &self,
        count: u64,
        matches: impl Fn(&Request) -> bool + Send + Sync + 'static,
    ) {
        self.eat(What::Reply, count, Box::new(matches));
    }

    /// Drops the next `count` requests that match. The server never receives them; the client's
    /// connection is closed.
    pub fn eat_requests(
        &self,
        count: u64,
        matches: impl Fn(&Request) -> bool + Send + Sync + 'static,
    ) {
        self.eat(What::Request, count, Box::new(matches));
    }

    fn eat(&self, what: What, count: u64, matches: Matches) {
        let mut menu = self.shared.menu();
        menu.meals.retain(|meal| meal.left > 0);
        menu.meals.push(Meal {
            what,
            matches,
            left: count,
        });
    }

    /// The number of dropped replies. Check it, so that the test can't miss its fault.
    #[must_use]
    pub fn eaten_replies(&self) -> u64 {
        self.shared.menu().eaten_replies
    }

    /// The number of dropped requests. Check it, so that the test can't miss its fault.
    #[must_use]
    pub fn eaten_requests(&self) -> u64 {
        self.shared.menu().eaten_requests
    }

    /// The number of connections that clients have opened.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.menu().connections
    }

    /// Delays all messages in both directions by `delay`; zero turns it off.
    pub fn delay(&self, delay: Duration) {
        self.shared.weather.send_modify(|w| w.delay = delay);
    }

    /// A black hole: connections stay open and new ones are accepted, but the proxy forwards
    /// nothing until [`heal`](Self::heal). Messages sent in the meantime arrive then.
    pub fn black_hole(&self) {
        self.shared.weather.send_modify(|w| w.silent = true);
    }

    /// Stops forwarding on the open connections forever, as if their network were gone. New ones
    /// work.
    pub fn strand_connections(&self) {
        let next = self.shared.menu().connections;
        self.shared.weather.send_modify(|w| w.dead_below = next);
    }

    /// Closes all open connections.
    pub fn cut_connections(&self) {
        let next = self.shared.menu().connections;
        self.shared.weather.send_modify(|w| w.cut_below = next);
    }

    /// Forwards new connections to another server, as a name does after a failover. Open
    /// connections keep their server.
    pub fn lead_to(&self, upstream: SocketAddr) {
        let current = self.shared.upstream.lock();
        *current.unwrap_or_else(PoisonError::into_inner) = upstream;
    }

    /// Ends all faults: drops, delays and holds back nothing more.
    /// Connections that were silenced forever stay silent.
    pub fn heal(&self) {
        self.shared.menu().meals.clear();
        self.shared.weather.send_modify(|w| {
            w.silent = false;
            w.delay = Duration::ZERO;
        });
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Ends all connections when the task is aborted.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let number = {
            let mut menu = shared.menu();
            menu.connections += 1;
            menu.connections - 1
        };
        connections.spawn(serve(client, number, Arc::clone(&shared)));
    }
}

/// Serves one connection until either side closes it or a fault does.
async fn serve(client: TcpStream, number: u64, shared: Arc<Shared>) {
    let mut gate = Gate {
        number,
        weather: shared.weather.subscribe(),
    };
    let mut cut = gate.clone();
    let under_way = Mutex::new(VecDeque::new());
    let served = async {
        if gate.pass().await.is_none() {
            return;
        }
        let Ok(server) = TcpStream::connect(shared.upstream()).await else {
            return;
        };
        for stream in [&client, &server] {
            // Without it, small messages are delayed, but not lost.
            let _ = stream.set_nodelay(true);
        }
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let requests = Half::new(from_client, to_server, gate.clone());
        let replies = Half::new(from_server, to_client, gate);
        tokio::select! {
            () = requests.run(|frame, bytes| passes_request(&shared, &under_way, frame, bytes)) => {}
            () = replies.run(|frame, _| passes_reply(&shared, &under_way, frame)) => {}
        }
    };
    tokio::select! {
        () = served => {}
        () = cut.until_cut() => {}
    }
}

type UnderWay = Mutex<VecDeque<Request>>;

fn passes_request(shared: &Shared, under_way: &UnderWay, _: Frame, bytes: &[u8]) -> bool {
    let request = match resp::request(bytes) {
        Ok(request) => request,
        Err(malformed) => panic!("a client sent no request: {malformed:?}"),
    };
    if shared.eats(What::Request, &request) {
        return false;
    }
    if !request.is_subscription() {
        let mut queue = under_way.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(request);
    }
    true
}

fn passes_reply(shared: &Shared, under_way: &UnderWay, frame: Frame) -> bool {
    if frame.is_push {
        return true;
    }
    let mut queue = under_way.lock().unwrap_or_else(PoisonError::into_inner);
    // A reply without a request is an error of the connection itself, such as too many
    // clients.
    queue
        .pop_front()
        .is_none_or(|request| !shared.eats(What::Reply, &request))
}

/// Decides whether a connection forwards messages.
#[derive(Clone)]
struct Gate {
    number: u64,
    weather: watch::Receiver<Weather>,
}

impl Gate {
    /// Waits until a message may pass. Returns its delay, or `None` when the proxy
    /// is gone.
    async fn pass(&mut self) -> Option<Duration> {
        let number = self.number;
        let open = |w: &Weather| !w.silent && number >= w.dead_below;
        Some(self.weather.wait_for(open).await.ok()?.delay)
    }

    async fn until_cut(&mut self) {
        let number = self.number;
        // An error means that the proxy is gone: closed, too.
        let _ = self.weather.wait_for(|w| number < w.cut_below).await;
    }
}

/// One direction of a connection.
struct Half {
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    gate: Gate,
    buffer: Vec<u8>,
}

impl Half {
    fn new(from: OwnedReadHalf, to: OwnedWriteHalf, gate: Gate) -> Self {
        Self {
            from,
            to,
            gate,
            buffer: Vec::with_capacity(4096),
        }
    }

    /// Copies messages until the stream ends or `passes` refuses one, which is not copied.
    async fn run(mut self, mut passes: impl FnMut(Frame, &[u8]) -> bool) {
        while let Ok(1..) = self.from.read_buf(&mut self.buffer).await {
            let Some(delay) = self.gate.pass().await else {
                return;
            };
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            let (done, goes_on) = whole_messages(&self.buffer, &mut passes);
            if self.to.write_all(&self.buffer[..done]).await.is_err() || !goes_on {
                return;
            }
            self.buffer.drain(..done);
        }
    }
}

/// The number of bytes of whole messages that may pass, and whether the connection continues.
fn whole_messages(bytes: &[u8], passes: &mut impl FnMut(Frame, &[u8]) -> bool) -> (usize, bool) {
    let mut done = 0;
    loop {
        match resp::frame(&bytes[done..]) {
            Ok(Some(frame)) => {
                if !passes(frame, &bytes[done..done + frame.length]) {
                    return (done, false);
                }
                done += frame.length;
            }
            Ok(None) => return (done, true),
            Err(malformed) => panic!("this is not the Redis protocol: {malformed:?}"),
        }
    }
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
