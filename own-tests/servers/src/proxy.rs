//! A proxy that injects faults into connections to Redis or Postgres.
//!
//! Every connection has two halves. The request half splits the client's bytes into requests,
//! drops or forwards each one, and queues the forwarded ones. The reply half splits the server's
//! bytes into replies and pushes. It takes one request from the queue for each reply, and drops or
//! forwards the reply. Requests and replies keep their order on a connection, so each reply belongs
//! to the request at the front of the queue.
//!
//! The proxy closes a connection after a dropped message: without one reply, the client would match
//! all later replies with the wrong requests.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::postgres_wire::{self, Said};
use crate::resp::{self, Frame, Malformed, Request};
use crate::thread_proxy::{accept, connect, listen};

type Matches = Box<dyn Fn(&Request) -> bool + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Request,
    Reply,
}

/// How much of a message is lost. The connection is closed in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    All,
    /// The beginning arrives.
    Rest,
}

/// What to drop once.
struct DropRule {
    direction: Direction,
    matches: Matches,
    loss: Loss,
}

/// The protocol of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Redis,
    Postgres,
}

/// The faults of all connections. A change wakes the connections that wait.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    /// Forwards nothing on any connection.
    black_hole: bool,
    /// Connections with a lower number forward nothing.
    dead_below: u64,
    /// Connections with a lower number are closed.
    cut_below: u64,
    /// The delay of each message.
    delay: Duration,
}

struct Shared {
    protocol: Protocol,
    faults: watch::Sender<Faults>,
    state: Mutex<State>,
}

impl DropRule {
    fn applies(&self, direction: Direction, request: &Request) -> bool {
        self.direction == direction && (self.matches)(request)
    }
}

struct State {
    upstream: SocketAddr,
    /// A text in replies, and the text of the same length that replaces it.
    renamed: Option<(&'static str, &'static str)>,
    rules: Vec<DropRule>,
    dropped_requests: u64,
    dropped_replies: u64,
    connections: u64,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Counts a connection, and returns its number.
    fn next_connection(&self) -> u64 {
        let mut state = self.state();
        state.connections += 1;
        state.connections - 1
    }

    /// Whether to drop this message. Counts dropped messages.
    fn drops_message(&self, direction: Direction, request: &Request) -> Option<Loss> {
        let mut state = self.state();
        let mut rules = state.rules.iter();
        let at = rules.position(|rule| rule.applies(direction, request))?;
        let loss = state.rules.remove(at).loss;
        match direction {
            Direction::Request => state.dropped_requests += 1,
            Direction::Reply => state.dropped_replies += 1,
        }
        Some(loss)
    }

    /// Whether the reply to this request will be dropped as a whole.
    fn will_drop_all(&self, request: &Request) -> bool {
        let state = self.state();
        let mut rules = state.rules.iter();
        let rule = rules.find(|rule| rule.applies(Direction::Reply, request));
        rule.is_some_and(|rule| rule.loss == Loss::All)
    }
}

/// Ignores poisoning: a panic fails the test anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A TCP proxy in front of one server. Dropping it closes all its connections.
///
/// You can set faults at any time. They also apply to open connections.
#[must_use]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl fmt::Debug for FaultProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultProxy")
            .field("address", &self.address)
            .field("upstream", &self.shared.state().upstream)
            .finish_non_exhaustive()
    }
}

impl FaultProxy {
    /// Starts a proxy to the Redis server at `upstream` on a free port of 127.0.0.1.
    pub async fn start(upstream: SocketAddr) -> Self {
        Self::start_for(Protocol::Redis, upstream).await
    }

    /// Starts a proxy to the Postgres server at `upstream`. Its connections must be in plain text. A
    /// [`Request`] is a statement.
    pub async fn start_for_postgres(upstream: SocketAddr) -> Self {
        Self::start_for(Protocol::Postgres, upstream).await
    }

    async fn start_for(protocol: Protocol, upstream: SocketAddr) -> Self {
        let (listener, address) = listen();
        let shared = Arc::new(Shared {
            protocol,
            faults: watch::Sender::default(),
            state: Mutex::new(State {
                upstream,
                renamed: None,
                rules: Vec::new(),
                dropped_requests: 0,
                dropped_replies: 0,
                connections: 0,
            }),
        });
        let accepted = Arc::clone(&shared);
        let serve = move |client| serve(client, accepted.next_connection(), Arc::clone(&accepted));
        let accepting = tokio::spawn(accept(listener, serve));
        Self {
            address,
            shared,
            accepting,
        }
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL for clients, `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Drops the reply to the next request that matches. The server executes the request. The proxy closes
    /// the client's connection instead of forwarding the reply.
    pub fn eat_reply(&self, matches: impl Fn(&Request) -> bool + Send + Sync + 'static) {
        self.eat(Direction::Reply, Loss::All, Box::new(matches));
    }

    /// Drops half of the reply to the next request that matches: the first half arrives. From Postgres, all
    /// arrives but the message that ends the reply.
    pub fn cut_reply(&self, matches: impl Fn(&Request) -> bool + Send + Sync + 'static) {
        self.eat(Direction::Reply, Loss::Rest, Box::new(matches));
    }

    /// Drops the next request that matches. The server never receives it. The proxy closes the client's
    /// connection.
    pub fn eat_request(&self, matches: impl Fn(&Request) -> bool + Send + Sync + 'static) {
        self.eat(Direction::Request, Loss::All, Box::new(matches));
    }

    fn eat(&self, direction: Direction, loss: Loss, matches: Matches) {
        self.shared.state().rules.push(DropRule {
            direction,
            matches,
            loss,
        });
    }

    /// Replaces a text in all later replies, for example the name of a field of `INFO`. The protocol needs a
    /// text of the same length.
    pub fn rename_in_replies(&self, text: &'static str, replacement: &'static str) {
        assert_eq!(text.len(), replacement.len(), "texts of the same length");
        self.shared.state().renamed = Some((text, replacement));
    }

    /// The number of dropped replies. Assert on it: otherwise a test passes even if nothing was dropped.
    pub fn eaten_replies(&self) -> u64 {
        self.shared.state().dropped_replies
    }

    /// The number of dropped requests. Assert on it: otherwise a test passes even if nothing was dropped.
    pub fn eaten_requests(&self) -> u64 {
        self.shared.state().dropped_requests
    }

    /// The number of connections that clients have opened.
    pub fn connections(&self) -> u64 {
        self.shared.state().connections
    }

    /// Delays all messages in both directions by `delay`. Zero turns the delay off.
    pub fn delay(&self, delay: Duration) {
        self.shared.faults.send_modify(|w| w.delay = delay);
    }

    /// Forwards nothing until [`heal`](Self::heal). Connections stay open, and new ones are
    /// accepted. Messages sent in the meantime are forwarded after `heal`.
    pub fn black_hole(&self) {
        self.shared.faults.send_modify(|w| w.black_hole = true);
    }

    /// Stops forwarding on the open connections forever, as if their network had failed. New
    /// connections work.
    pub fn strand_connections(&self) {
        let next = self.shared.state().connections;
        self.shared.faults.send_modify(|w| w.dead_below = next);
    }

    /// Closes all open connections.
    pub fn cut_connections(&self) {
        let next = self.shared.state().connections;
        self.shared.faults.send_modify(|w| w.cut_below = next);
    }

    /// Forwards new connections to another server, like a DNS name after a failover. Open
    /// connections keep their server.
    pub fn lead_to(&self, upstream: SocketAddr) {
        self.shared.state().upstream = upstream;
    }

    /// Ends drops, delays and the black hole. Connections stranded by
    /// [`strand_connections`](Self::strand_connections) stay stranded.
    pub fn heal(&self) {
        self.shared.state().rules.clear();
        self.shared.faults.send_modify(|w| {
            w.black_hole = false;
            w.delay = Duration::ZERO;
        });
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Serves one connection until either side closes it or a fault does.
async fn serve(client: TcpStream, number: u64, shared: Arc<Shared>) {
    let mut gate = Gate {
        number,
        faults: shared.faults.subscribe(),
    };
    let mut cut = gate.clone();
    let in_flight = InFlight::default();
    let served = async {
        if gate.pass().await.is_none() {
            return;
        }
        let upstream = shared.state().upstream;
        let Some(server) = connect(&client, upstream).await else {
            return;
        };
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let mut said = Said::default();
        let on_request = |_: Frame, bytes: &mut [u8]| {
            let read = match shared.protocol {
                Protocol::Redis => resp::request(bytes).map(Some),
                Protocol::Postgres => said.read(bytes),
            };
            of_request(&shared, &in_flight, read)
        };
        let on_reply = |frame: Frame, bytes: &mut [u8]| match shared.protocol {
            Protocol::Redis => of_reply(&shared, &in_flight, frame, bytes),
            Protocol::Postgres => of_postgres_reply(&shared, &in_flight, bytes),
        };
        let frame = match shared.protocol {
            Protocol::Redis => resp::frame,
            Protocol::Postgres => postgres_wire::frame,
        };
        tokio::select! {
            () = forward(from_client, to_server, gate.clone(), frame, on_request) => {}
            () = forward(from_server, to_client, gate.clone(), frame, on_reply) => {}
        }
    };
    tokio::select! {
        () = served => {}
        () = cut.until_cut() => {}
    }
}

/// The requests that the server has not answered yet.
type InFlight = Mutex<VecDeque<Request>>;

/// What happens to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Forward,
    /// It is dropped, but the connection stays.
    Withhold,
    /// The connection is closed after this many of its bytes.
    Close(usize),
}

/// The fate of a client's message, which may be a part of a request that goes on.
fn of_request(
    shared: &Shared,
    in_flight: &InFlight,
    read: Result<Option<Request>, Malformed>,
) -> Fate {
    let request = match read {
        Ok(Some(request)) => request,
        Ok(None) => return Fate::Forward,
        Err(malformed) => panic!("a client sent something other than a request: {malformed:?}"),
    };
    if shared.drops_message(Direction::Request, &request).is_some() {
        return Fate::Close(0);
    }
    if !request.is_subscription() {
        lock(in_flight).push_back(request);
    }
    Fate::Forward
}

fn of_reply(shared: &Shared, in_flight: &InFlight, frame: Frame, bytes: &mut [u8]) -> Fate {
    if frame.is_push {
        return Fate::Forward;
    }
    let renamed = shared.state().renamed;
    if let Some((text, replacement)) = renamed {
        for at in 0..(bytes.len() + 1).saturating_sub(text.len()) {
            if bytes[at..].starts_with(text.as_bytes()) {
                bytes[at..at + text.len()].copy_from_slice(replacement.as_bytes());
            }
        }
    }
    // A reply without a request is an error of the connection, such as too many clients.
    let Some(request) = lock(in_flight).pop_front() else {
        return Fate::Forward;
    };
    match shared.drops_message(Direction::Reply, &request) {
        None => Fate::Forward,
        Some(Loss::All) => Fate::Close(0),
        Some(Loss::Rest) => Fate::Close(bytes.len() / 2),
    }
}

/// A reply of Postgres has several messages. Its transaction is committed before the last one is sent.
fn of_postgres_reply(shared: &Shared, in_flight: &InFlight, bytes: &mut [u8]) -> Fate {
    let mut queue = lock(in_flight);
    if postgres_wire::ends_reply(bytes) {
        let lost = queue
            .pop_front()
            .and_then(|request| shared.drops_message(Direction::Reply, &request));
        return lost.map_or(Fate::Forward, |_| Fate::Close(0));
    }
    match queue.front() {
        Some(request) if shared.will_drop_all(request) => Fate::Withhold,
        _ => Fate::Forward,
    }
}

/// Decides whether a connection forwards messages.
#[derive(Clone)]
struct Gate {
    number: u64,
    faults: watch::Receiver<Faults>,
}

impl Gate {
    /// Waits until a message may pass. Returns its delay, or `None` if the connection was cut or the proxy was dropped.
    async fn pass(&mut self) -> Option<Duration> {
        let number = self.number;
        let open = |w: &Faults| !w.black_hole && number >= w.dead_below;
        let faults = self.faults.wait_for(open).await.ok()?;
        // A message that is sent after a cut must not arrive, even if it is read before the cut is noticed.
        (number >= faults.cut_below).then_some(faults.delay)
    }

    async fn until_cut(&mut self) {
        let number = self.number;
        // An error means that the proxy was dropped, which also closes the connection.
        let _ = self.faults.wait_for(|w| number < w.cut_below).await;
    }
}

/// Finds the first message.
type FrameOf = fn(&[u8]) -> Result<Option<Frame>, Malformed>;

/// Forwards the messages of one direction until the stream ends or a message closes it.
#[expect(
    clippy::disallowed_methods,
    reason = "the proxy delays what it forwards"
)]
async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut gate: Gate,
    frame: FrameOf,
    mut fate: impl FnMut(Frame, &mut [u8]) -> Fate,
) {
    let mut buffer = Vec::with_capacity(4096);
    while let Ok(1..) = from.read_buf(&mut buffer).await {
        let Some(delay) = gate.pass().await else {
            return;
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let (done, open) = whole_messages(&mut buffer, frame, &mut fate);
        if to.write_all(&buffer[..done]).await.is_err() || !open {
            return;
        }
        buffer.drain(..done);
    }
}

/// Removes the messages that are withheld. Returns how many bytes may pass, and whether to keep the
/// connection.
fn whole_messages(
    bytes: &mut Vec<u8>,
    frame: FrameOf,
    fate: &mut impl FnMut(Frame, &mut [u8]) -> Fate,
) -> (usize, bool) {
    let mut done = 0;
    loop {
        match frame(&bytes[done..]) {
            Ok(Some(frame)) => {
                let end = done + frame.length;
                match fate(frame, &mut bytes[done..end]) {
                    Fate::Forward => done = end,
                    Fate::Withhold => drop(bytes.drain(done..end)),
                    Fate::Close(after) => return (done + after, false),
                }
            }
            Ok(None) => return (done, true),
            Err(malformed) => panic!("not the protocol: {malformed:?}"),
        }
    }
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
