//! Keys that are spread over nodes with separate clocks, as in a cluster.
//!
//! There are more nodes than a small fixed number of clocks, and neighbours are 5 s apart. A client
//! must be served exactly as by a single server. Each test runs on both and compares the virtual
//! times.

use std::slice::from_ref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::select_all;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Capabilities, ClockId, Key, LockBackend, LockClient, Loss,
    MutexGuard, Notification, Notifications, Outcome, Poll, PollReply, Release, ReleaseReply,
    Renew, RenewReply, Runtime, SessionId, Stamp, Stamped,
};
use leasehold_sim::{SimBackend, SimServer};

use crate::support::{assert_is, ms, secs};

const KEYS: usize = 12;

/// A client of all nodes. A key's number names its node.
#[derive(Debug)]
struct Spread {
    nodes: Vec<SimServer>,
    links: Vec<SimBackend>,
    /// Whether it names the clock of each key. Otherwise, the lock client takes the last reply's.
    names_clocks: bool,
    sent: Mutex<Vec<Sent>>,
    too_late: Mutex<usize>,
}

/// The times in an acquire, counted from the time on its node when it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sent {
    key: usize,
    deliver_before: Duration,
    wait_until: Option<Duration>,
}

fn number(key: &Key) -> usize {
    key.as_str().parse().expect("the key is a number")
}

/// All nodes number their clocks alike, so the stamps need other ids.
fn clock_of(node: usize) -> ClockId {
    ClockId::new(u64::try_from(node).expect("small"))
}

type Reply<T> = Result<Stamped<T>, BackendError>;

fn stamped<T>(node: usize, result: Reply<T>) -> Reply<T> {
    result.map(|mut stamped| {
        stamped.stamp.clock = clock_of(node);
        stamped
    })
}

fn notified(node: usize, mut notification: Notification) -> Notification {
    if let Notification::Granted { stamp, .. } = &mut notification {
        stamp.clock = clock_of(node);
    }
    notification
}

/// Sends each element of a batch to its node.
macro_rules! spread {
    ($spread:ident.$method:ident($batch:ident)) => {
        join_all($batch.iter().map(|request| async {
            let node = $spread.node_of(&request.key);
            let mut results = $spread.links[node].$method(from_ref(request)).await;
            stamped(node, results.remove(0))
        }))
        .await
    };
}

impl Spread {
    fn node_of(&self, key: &Key) -> usize {
        number(key) % self.nodes.len()
    }

    async fn read_node(&self, node: usize) -> Result<Stamp, BackendError> {
        let at = self.links[node].hello().await?.at;
        let clock = clock_of(node);
        Ok(Stamp { clock, at })
    }

    fn note(&self, request: &Acquire) {
        let now = self.nodes[self.node_of(&request.key)].server_time();
        let wait_until = request.wait.and_then(|wait| wait.wait_until);
        self.sent.lock().expect("no panic").push(Sent {
            key: number(&request.key),
            deliver_before: request.deliver_before.saturating_since(now),
            wait_until: wait_until.map(|until| until.saturating_since(now)),
        });
    }

    fn too_late(&self) -> usize {
        *self.too_late.lock().expect("no panic")
    }

    /// Cuts all connections of this client.
    fn isolate(&self) {
        self.links.iter().for_each(SimBackend::isolate);
    }
}

#[async_trait]
impl LockBackend for Spread {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full();
        capabilities.convert = false;
        capabilities.inspect = false;
        capabilities.force_release = false;
        capabilities
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        self.links[0].runtime()
    }

    async fn hello(&self) -> Result<Stamp, BackendError> {
        self.read_node(0).await
    }

    fn clock(&self, key: &Key) -> Option<ClockId> {
        self.names_clocks.then(|| clock_of(self.node_of(key)))
    }

    async fn read_clock(&self, key: &Key) -> Result<Stamp, BackendError> {
        self.read_node(self.node_of(key)).await
    }

    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        let listening = self.links.iter().map(|link| link.listen(session));
        let mut streams = Vec::new();
        for (node, stream) in join_all(listening).await.into_iter().enumerate() {
            streams.push(stream?.map(move |it| notified(node, it)).boxed());
        }
        Ok(select_all(streams).boxed())
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        batch.iter().for_each(|request| self.note(request));
        let replies = spread!(self.acquire(batch));
        let too_late = AcquireReply::TooLate;
        let refused = replies.iter().flatten().filter(|it| it.reply == too_late);
        *self.too_late.lock().expect("no panic") += refused.count();
        replies
    }

    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        spread!(self.poll(batch))
    }

    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        spread!(self.renew(batch))
    }

    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>> {
        spread!(self.release(batch))
    }

    async fn close(&self) -> Result<(), BackendError> {
        let closed = join_all(self.links.iter().map(LockBackend::close)).await;
        closed.into_iter().collect()
    }
}

/// Nodes of which each is 5 s ahead of the one before.
struct Nodes(Vec<SimServer>);

impl Nodes {
    fn start(count: usize) -> Self {
        let node = |number: usize| {
            let server = SimServer::new(u64::try_from(number).expect("small"));
            server.step_clock_forward(secs(5) * u32::try_from(number).expect("small"));
            server
        };
        Self((0..count).map(node).collect())
    }

    /// A client that has locked each key once, so that it has samples of all clocks.
    async fn client(&self, name: &str, names_clocks: bool) -> (Arc<Spread>, LockClient) {
        let spread = Arc::new(Spread {
            nodes: self.0.clone(),
            links: self.0.iter().map(|node| node.client(name)).collect(),
            names_clocks,
            sent: Mutex::default(),
            too_late: Mutex::default(),
        });
        let locks = LockClient::new(Arc::clone(&spread));
        for guard in hold_each(&locks, secs(1)).await {
            guard.release().await.expect("served");
        }
        self.0[0].advance(ms(10)).await;
        (spread, locks)
    }

    fn elapsed(&self) -> Duration {
        self.0[0].elapsed()
    }

    /// Waits for each key by a task. Returns what the tasks measured at the end of their waits.
    fn waiters<T: Send + 'static>(
        &self,
        locks: &LockClient,
        limit: Duration,
        measure: impl Fn(usize, Duration, Option<&MutexGuard>) -> T + Clone + Send + 'static,
    ) -> Vec<tokio::task::JoinHandle<T>> {
        (0..KEYS)
            .map(|key| {
                let (server, measure) = (self.0[0].clone(), measure.clone());
                let mutex = locks.mutex(key.to_string()).expect("a valid key");
                tokio::spawn(async move {
                    let outcome = mutex.try_lock_for(limit).await;
                    let guard = outcome.ok().and_then(Outcome::into_guard);
                    measure(key, server.elapsed(), guard.as_ref())
                })
            })
            .collect()
    }
}

async fn hold_each(locks: &LockClient, lease: Duration) -> Vec<MutexGuard> {
    let mut guards = Vec::new();
    for key in 0..KEYS {
        let mutex = locks.mutex(key.to_string()).expect("a valid key");
        guards.push(mutex.lease(lease).lock().await.expect("served"));
    }
    guards
}

async fn results<T>(tasks: Vec<tokio::task::JoinHandle<T>>) -> Vec<T> {
    let results = join_all(tasks).await.into_iter();
    results.map(|it| it.expect("no panic")).collect()
}

/// When the waiters of each key were served and how long their guards were valid then; what the
/// waiting client sent; how many acquires were too late.
type Served = (Vec<(Duration, Duration)>, Vec<Sent>, usize);

async fn served(nodes: usize, names_clocks: bool) -> Served {
    let nodes = Nodes::start(nodes);
    let (_, a) = nodes.client("a", true).await;
    let (spread, b) = nodes.client("b", names_clocks).await;
    let guards = hold_each(&a, secs(30)).await;
    spread.sent.lock().expect("no panic").clear();
    let waiters = nodes.waiters(&b, secs(60), |_, at, guard| {
        (at, guard.expect("it was released").valid_for())
    });
    nodes.0[0].advance(ms(2_500)).await;
    let begun = nodes.elapsed();
    for guard in guards {
        guard.release().await.expect("served");
        nodes.0[0].advance(ms(98)).await;
    }
    let times = results(waiters).await.into_iter();
    let times = times.map(|(at, valid)| (at - begun, valid)).collect();
    let sent = spread.sent.lock().expect("no panic").clone();
    (times, sent, spread.too_late())
}

#[tokio::test(start_paused = true)]
async fn waiters_of_all_nodes_are_served_as_by_one_server() {
    let (times, sent, too_late) = served(KEYS, true).await;
    for (key, (at, valid)) in (0..).zip(&times) {
        // The request to release and the push take 1 ms each.
        assert_eq!(*at, ms(100) * key + ms(2), "key {key}");
        // An offer, which is confirmed at once.
        assert!(*valid > secs(3), "key {key}: {valid:?}");
    }
    for sent in &sent {
        // Two call timeouts and the wait, and the server's time may be 1 ms ahead of its estimate.
        assert!(sent.deliver_before >= ms(1_999) && sent.deliver_before <= secs(2));
        let wait = sent.wait_until.expect("a deadline");
        assert!(wait >= ms(59_999) && wait <= secs(60), "{sent:?}");
    }
    assert_eq!(too_late, 0);
    let (times_of_one, sent_to_one, _) = served(1, true).await;
    assert_eq!(sent, sent_to_one);
    for ((at, valid), (at_one, valid_at_one)) in times.into_iter().zip(times_of_one) {
        // One server's clock has newer samples: each reply is one. The allowance for drift since the
        // last poll is 10 ms at most.
        assert_eq!(at, at_one);
        assert!(valid <= valid_at_one && valid + ms(10) >= valid_at_one);
    }
}

/// The test above finds a client that counts from the last reply of any node.
#[tokio::test(start_paused = true)]
async fn clock_of_the_last_reply_is_not_enough() {
    let (_, sent, too_late) = served(KEYS, false).await;
    assert!(too_late >= KEYS - 1, "{too_late}");
    assert!(sent.iter().any(|sent| sent.deliver_before.is_zero()));
    let (_, _, too_late) = served(1, false).await;
    assert_eq!(too_late, 0);
}

/// When the waits for each key ended, and when its waiter was gone from its node.
async fn timed_out(nodes: usize) -> Vec<(Duration, Duration)> {
    let nodes = Nodes::start(nodes);
    let (_, a) = nodes.client("a", true).await;
    let (spread, b) = nodes.client("b", true).await;
    let _guards = hold_each(&a, secs(30)).await;
    let begun = nodes.elapsed();
    let waiters = nodes.waiters(&b, ms(2_500), move |_, at, guard| {
        assert!(guard.is_none());
        at - begun
    });
    nodes.0[0].advance(ms(100)).await;
    // Without a release from the client, the server must end the wait by its own clock.
    spread.isolate();
    nodes.0[0].advance(ms(2_390)).await;
    let mut gone = vec![None; KEYS];
    while gone.contains(&None) && nodes.elapsed() < begun + secs(20) {
        nodes.0[0].advance(ms(1)).await;
        for (key, gone) in gone.iter_mut().enumerate() {
            let left = nodes.0[key % nodes.0.len()].left_behind();
            let key = format!("\"{key}\": ");
            let waits = |line: &str| line.contains(&key) && line.contains("waits for it");
            if gone.is_none() && !left.lines().any(waits) {
                *gone = Some(nodes.elapsed() - begun);
            }
        }
    }
    let gone = gone.into_iter().map(|it| it.expect("the wait has ended"));
    results(waiters).await.into_iter().zip(gone).collect()
}

#[tokio::test(start_paused = true)]
async fn waits_end_on_all_nodes_as_on_one_server() {
    let times = timed_out(KEYS).await;
    for (key, (ended, gone)) in times.iter().enumerate() {
        assert_eq!(*ended, ms(2_500), "key {key}");
        let due = ms(2_499)..=ms(2_502);
        assert!(due.contains(gone), "key {key}: {gone:?}");
    }
    assert_eq!(times, timed_out(1).await);
}

/// When the guards of a client that can't be reached ended, and when the waiter of each key was
/// served.
async fn expired(nodes: usize) -> Vec<(Duration, Duration)> {
    let nodes = Nodes::start(nodes);
    let (spread, a) = nodes.client("a", true).await;
    let (_, b) = nodes.client("b", true).await;
    let begun = nodes.elapsed();
    let guards = hold_each(&a, secs(10)).await;
    let waiters = nodes.waiters(&b, secs(60), move |_, at, guard| {
        assert!(guard.is_some());
        at - begun
    });
    spread.isolate();
    let lost = guards.into_iter().map(|guard| {
        let server = nodes.0[0].clone();
        tokio::spawn(async move {
            assert_eq!(guard.lost().await, Loss::Deadline);
            server.elapsed() - begun
        })
    });
    let lost = results(lost.collect()).await;
    lost.into_iter().zip(results(waiters).await).collect()
}

#[tokio::test(start_paused = true)]
async fn leases_of_all_nodes_expire_as_on_one_server() {
    let times = expired(KEYS).await;
    for (key, (lost, served)) in (0..).zip(&times) {
        // Each acquire took 2 ms and reached its node after 1 ms. The drift allowance is 110 ms.
        let sent = ms(2) * key;
        assert_eq!(*lost, sent + secs(10) - ms(110), "key {key}");
        let free = sent + ms(1) + secs(10);
        let due = free..=free + ms(1_004);
        assert!(due.contains(served), "key {key}: {served:?}");
    }
    assert_eq!(times, expired(1).await);
}

#[tokio::test(start_paused = true)]
async fn step_of_one_clock_ends_the_holds_of_its_node_alone() {
    let nodes = Nodes::start(KEYS);
    let (spread, a) = nodes.client("a", true).await;
    let guards = hold_each(&a, secs(30)).await;
    nodes.0[7].step_clock_forward(secs(60));
    nodes.0[0].advance(secs(60)).await;
    for (key, guard) in guards.iter().enumerate() {
        assert_eq!(guard.is_valid(), key != 7, "key {key}");
    }
    // The new samples of that clock serve new acquires.
    assert_is!(a.mutex("7").expect("a valid key").try_lock().await => Ok(Outcome::Acquired(_)));
    assert_eq!(spread.too_late(), 0);
}
