//! A distant server, and one that refuses connections, behind a proxy that counts them.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_api::bounds::MAX_CALL_TIMEOUT;
use leasehold_api::{
    AcquireReply, BackendError, Key, LockClient, Notification, ReleaseReply, Wait,
};
use leasehold_postgres::Options;
use leasehold_test_servers::{PostgresOptions, Stopwatch, eventually, throughout};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::Instant;

use crate::connections::{LONG, kill, next};
use crate::events;
use crate::requests::{self, Backend, acquire, mutex, operation, release, session, soon};
use crate::support::{Server, connect_to, connect_with, hold, patient};

/// Forwards connections to a server.
struct Proxy {
    port: u16,
    /// The delay of each message, in ms.
    delay: AtomicU64,
    connections: AtomicU64,
}

impl Proxy {
    async fn start(server: &Server) -> Arc<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port");
        let proxy = Arc::new(Self {
            port: listener.local_addr().expect("an address").port(),
            delay: AtomicU64::new(0),
            connections: AtomicU64::new(0),
        });
        tokio::spawn(Arc::clone(&proxy).accept(listener, server.postgres.port()));
        proxy
    }

    fn url(&self) -> String {
        let port = self.port;
        format!("postgres://locks@127.0.0.1:{port}/shop?sslmode=disable")
    }

    /// Sets how long each message takes, in each direction.
    fn set_distance(&self, ms: u64) {
        self.delay.store(ms, Ordering::Relaxed);
    }

    fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    async fn accept(self: Arc<Self>, listener: TcpListener, upstream: u16) {
        while let Ok((client, _)) = listener.accept().await {
            self.connections.fetch_add(1, Ordering::Relaxed);
            let server = TcpStream::connect((Ipv4Addr::LOCALHOST, upstream)).await;
            let (from_server, to_server) = server.expect("the server runs").into_split();
            let (from_client, to_client) = client.into_split();
            tokio::spawn(forward(from_client, to_server, Arc::clone(&self)));
            tokio::spawn(forward(from_server, to_client, Arc::clone(&self)));
        }
    }
}

/// Messages travel at the same time: one doesn't wait until the one before it has arrived.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, proxy: Arc<Proxy>) {
    let (sender, mut travelling) = unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((arrives, bytes)) = travelling.recv().await {
            tokio::time::sleep_until(arrives).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 65_536];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let delay = Duration::from_millis(proxy.delay.load(Ordering::Relaxed));
        let arrives = Instant::now() + delay;
        if sender.send((arrives, buffer[..read].to_vec())).is_err() {
            return;
        }
    }
}

/// A server on a port, a proxy, and a backend that is connected through it.
async fn start(call_timeout: Duration) -> (Server, Arc<Proxy>, Backend) {
    let server = Server::start_with(PostgresOptions::default().with_access("trust"));
    let proxy = Proxy::start(&server).await;
    let options = patient().call_timeout(call_timeout);
    let backend = connect_with(&proxy.url(), options).await;
    (server, proxy, Arc::new(backend))
}

fn key() -> Key {
    requests::key("a")
}

/// Acquires the key, or queues for it.
async fn enter(backend: &Backend, number: u8) {
    let request = mutex(&key(), operation(session(number), 1), soon(backend).await);
    let answer = acquire(backend, &request.with_wait(Wait::new(false))).await;
    let reply = answer.expect("a reply").reply;
    assert_matches!(reply, AcquireReply::Acquired(_) | AcquireReply::Queued(_));
}

/// A call takes one round trip, which is in time. Connecting takes several, which are not.
#[tokio::test]
async fn attempt_to_connect_outlives_its_callers() {
    let (server, proxy, backend) = start(Duration::from_millis(400)).await;
    proxy.set_distance(80);
    kill(&server, "true");
    let mut late = false;
    eventually("it is connected", async || {
        let seen = backend.inspect(&key()).await;
        late |= seen
            .as_ref()
            .is_err_and(|error| error.to_string().contains("in time"));
        seen.is_ok()
    })
    .await;
    assert!(late, "connecting takes longer than a call");
}

/// The read that follows a refused write is sent together with it: read, write, and write again.
#[tokio::test]
async fn refused_release_takes_three_round_trips() {
    let (server, proxy, backend) = start(Duration::from_secs(5)).await;
    let near: Backend = Arc::new(connect_to(&server.tcp_url()).await);
    enter(&backend, 1).await;
    // From now on, the client reads before it writes: another one has written the row.
    enter(&near, 2).await;
    // So far that half of it is more than a busy machine is late.
    proxy.set_distance(400);
    let round_trip = Duration::from_millis(800);
    let (begun, without_stalls) = (Instant::now(), Stopwatch::start());
    let releasing = async {
        let released = release(&backend, &key(), operation(session(1), 1)).await;
        let took = (begun.elapsed(), without_stalls.elapsed());
        (released.expect("a reply").reply, took)
    };
    let queueing = async {
        #[expect(
            clippy::disallowed_methods,
            reason = "after the read has arrived, and before the write that it leads to"
        )]
        tokio::time::sleep(round_trip).await;
        enter(&near, 3).await;
    };
    let ((released, took), ()) = tokio::join!(releasing, queueing);
    let expected = ReleaseReply::Released {
        holds_left: 0,
        holder: None,
    };
    assert_eq!(released, expected);
    let are_three = took.0 > round_trip * 5 / 2 && took.1 < round_trip * 7 / 2;
    assert!(are_three, "{took:?}, {round_trip:?} each");
}

#[tokio::test]
async fn closing_ends_an_attempt_to_connect() {
    let (server, proxy, backend) = start(Duration::from_secs(1)).await;
    let before = proxy.connections();
    proxy.set_distance(100);
    kill(&server, "true");
    let caller = Arc::clone(&backend);
    let calling = tokio::spawn(async move {
        while !matches!(caller.inspect(&key()).await, Err(BackendError::Closed)) {}
    });
    eventually("it connects", async || proxy.connections() > before).await;
    backend.close().await.expect("closes");
    let closed = tokio::time::timeout(LONG, calling).await;
    closed.expect("in time").expect("no panic");
    let open = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold'";
    server.wait_for(open, "0").await;
    // Connecting takes less than this.
    let connects = Duration::from_millis(1_500);
    throughout(connects, "nothing is open", async || {
        server.execute(open) == "0"
    })
    .await;
}

/// There and back takes 300 ms, and to connect takes a dozen round trips.
#[tokio::test]
async fn distant_server_is_connected_and_heard_by_default() {
    connected_and_heard(150, Options::new()).await;
}

/// The other side of the world. A call takes two round trips or more.
#[tokio::test]
async fn very_distant_server_needs_longer_limits() {
    let limit = MAX_CALL_TIMEOUT;
    let options = Options::new().call_timeout(limit).connect_timeout(limit);
    connected_and_heard(280, options).await;
}

async fn connected_and_heard(there_ms: u64, options: Options) {
    let server = Server::start_with(PostgresOptions::default().with_access("trust"));
    let proxy = Proxy::start(&server).await;
    proxy.set_distance(there_ms);
    let mut clients = Vec::new();
    for _ in 0..2 {
        let backend = connect_with(&proxy.url(), options.clone()).await;
        let client = LockClient::builder(backend).call_timeout(options.call_timeout);
        clients.push(client.build().expect("good settings"));
    }
    let guard = hold(&clients[0], "a").await;
    let waiting = clients[1].mutex("a").expect("valid");
    let waiting = tokio::spawn(async move { waiting.lock().await });
    let listens = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    server.wait_for(listens, "1").await;
    guard.release().await.expect("released");
    let guard = waiting.await.expect("no panic").expect("a lock");
    guard.release().await.expect("released");
}

#[tokio::test]
async fn refused_subscription_is_reported_once_and_tried_ever_less_often() {
    events::record();
    let (server, proxy, backend) = start(Duration::from_secs(1)).await;
    let mut stream = backend.listen(session(7)).await.expect("a stream");
    let before = proxy.connections();
    server.execute("ALTER ROLE locks NOLOGIN");
    assert_eq!(kill(&server, "query LIKE 'SELECT pg_advisory%'"), "1");
    let missed = |listening| Notification::Missed { listening };
    assert_eq!(next(&mut stream).await, missed(false));
    let begun = Instant::now();
    // The pauses grow from 20 ms: after ten attempts, they have taken 5 s or more together.
    eventually("it is tried again", async || {
        proxy.connections() - before >= 10
    })
    .await;
    assert!(
        begun.elapsed() > Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
    server.execute("ALTER ROLE locks LOGIN");
    assert_eq!(next(&mut stream).await, missed(true));
    let lines = events::lines("WARN subscription failed", &format!(":{}: ", proxy.port));
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("not permitted to log in"), "{lines:?}");
}
