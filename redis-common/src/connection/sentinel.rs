//! Finds the primary through sentinels.
//!
//! Every new connection asks all sentinels at the same time. It connects to each address that one
//! of them names, and uses the server that most of them name, if it says that it is a primary. It
//! doesn't wait for the sentinels whose answers can't change that. A replica is never used.
//!
//! All questions of a backend go over one connection to each sentinel. It is opened again after
//! an error or a silence, at a pace of its own.
//!
//! All connections move to another server if more sentinels name that one than name the server so
//! far. A task keeps asking them.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_api::{
    BackendError, BoxFuture, ConnectError, ConnectPace, Runtime, TokioRuntime, first_of,
};
use tokio::runtime::Handle;

use super::connector::{Connection, Connector};
use super::failure::Failure;
use super::lock;
use super::shared::{Connected, Shared, addresses, no_answer, not_run};
use super::url::{Address, Sentinels, ServerUrl};

/// Asking the sentinels may take this part of the time for connecting. The rest is for the server.
const ASK_PARTS: u32 = 2;

const ASK_EVERY: Duration = Duration::from_millis(500);

pub(crate) struct SentinelSource {
    service: Arc<str>,
    sentinels: Vec<Arc<Sentinel>>,
    /// Drives the connections to the sentinels: the renewal thread, if there is one. A program that
    /// blocks its runtime must not keep renewals from finding the primary.
    pub(crate) handle: Handle,
    /// How to connect to a server, except for its address.
    server: ServerUrl,
    primary: Mutex<Option<Address>>,
}

struct Sentinel {
    address: Address,
    connector: Arc<dyn Connector>,
    /// The connection. Locked while it opens.
    kept: tokio::sync::Mutex<Option<Arc<dyn Connection>>>,
    pace: ConnectPace,
}

enum Step {
    Named(Result<Address, BackendError>),
    Opened(Address, Result<Connected, BackendError>),
}

impl SentinelSource {
    /// Creates a source for the sentinels of `url`. `connector` is one for `url`.
    pub(crate) fn new(
        connector: &dyn Connector,
        url: &ServerUrl,
        sentinels: &Sentinels,
    ) -> Result<Self, ConnectError> {
        let server = ServerUrl {
            sentinels: None,
            ..url.clone()
        };
        let sentinel = |address: &Address| {
            let url = ServerUrl {
                address: address.clone(),
                user: sentinels.user.clone(),
                password: sentinels.password.clone(),
                database: 0,
                sentinels: None,
                cluster: None,
            };
            Ok(Arc::new(Sentinel {
                address: address.clone(),
                connector: connector.at(&url)?,
                kept: tokio::sync::Mutex::default(),
                pace: ConnectPace::default(),
            }))
        };
        let all: Result<_, ConnectError> = sentinels.addresses.iter().map(sentinel).collect();
        Ok(Self {
            service: sentinels.service.as_str().into(),
            sentinels: all?,
            handle: TokioRuntime::renewal_thread().unwrap_or_else(Handle::current),
            server,
            primary: Mutex::default(),
        })
    }

    /// Opens a connection to the primary. `shared` limits its time.
    pub(crate) async fn open(
        &self,
        shared: &Arc<Shared>,
        listens: bool,
    ) -> Result<Connected, BackendError> {
        let mut steps: FuturesUnordered<BoxFuture<'_, Step>> = FuturesUnordered::new();
        for sentinel in &self.sentinels {
            steps.push(Box::pin(async {
                Step::Named(self.ask(shared, sentinel).await)
            }));
        }
        let current = self.primary();
        let (mut votes, mut unheard) = (Votes::default(), self.sentinels.len());
        let (mut no_name, mut no_primary, mut opened) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(step) = steps.next().await {
            match step {
                Step::Named(named) => {
                    unheard -= 1;
                    match named {
                        Ok(address) => {
                            let is_new = votes.of(&address) == 0;
                            votes.0.push(address.clone());
                            if is_new {
                                steps.push(Box::pin(async move {
                                    let opened = self.open_at(shared, &address, listens).await;
                                    Step::Opened(address, opened)
                                }));
                            }
                        }
                        Err(error) => no_name.push(error),
                    }
                }
                Step::Opened(address, Ok(connected)) => opened.push((address, connected)),
                Step::Opened(_, Err(error)) => no_primary.push(error),
            }
            let chosen = opened
                .iter()
                .position(|(address, _)| votes.choose(address, current.as_ref(), unheard));
            if let Some(chosen) = chosen {
                let (address, connected) = opened.swap_remove(chosen);
                return self.reached(shared, current.as_ref(), &address, connected);
            }
        }
        for (address, _) in opened {
            no_primary.push(BackendError::unavailable(format!(
                "primary {address}: more sentinels name another server, or as many the one so far"
            )));
        }
        let found_none = no_primary.is_empty();
        Err(BackendError::of_all(if found_none {
            no_name
        } else {
            no_primary
        }))
    }

    /// Asks the sentinels from time to time, and makes all connections move if they name another
    /// primary. An old primary that still runs doesn't say that it was replaced. After a failover
    /// by hand, sentinels leave it a primary for about 10 s.
    pub(crate) async fn watch(&self, shared: &Arc<Shared>) {
        loop {
            shared.runtime.sleep(ASK_EVERY).await;
            // Before the question. Its answers say nothing about a move that comes meanwhile.
            let Some(known) = self.primary() else {
                continue;
            };
            if shared.pace.pausing(shared.now()).is_some() {
                continue; // Each attempt to connect asks them.
            }
            let asking = self.sentinels.iter().map(|it| self.ask(shared, it));
            let votes = Votes(join_all(asking).await.into_iter().flatten().collect());
            if let Some(address) = votes.most()
                && *address != known
                && votes.choose(address, Some(&known), 0)
            {
                let limit = shared.options.connect_timeout;
                let opening = async {
                    let opened = shared.timeout(limit, self.open_at(shared, address, false));
                    opened.await.unwrap_or_else(|| Err(no_answer(limit)))
                };
                if let Ok(new) = shared.pace.connect(&shared.runtime, limit, opening).await {
                    // If another connection has moved meanwhile, the next question decides.
                    let _ = self.reached(shared, Some(&known), address, new);
                }
            }
        }
    }

    pub(crate) async fn close(&self) {
        for sentinel in &self.sentinels {
            sentinel.kept.lock().await.take();
        }
    }

    async fn ask(
        &self,
        shared: &Arc<Shared>,
        sentinel: &Arc<Sentinel>,
    ) -> Result<Address, BackendError> {
        let limit = shared.options.connect_timeout / ASK_PARTS;
        let (asked, shared) = (Arc::clone(sentinel), Arc::clone(shared));
        let service = Arc::clone(&self.service);
        // In a task, so that it finishes if another sentinel is faster: its connection is kept.
        let asking = self.handle.spawn(async move {
            let asking = asked.primary_of(&service, &shared);
            let answer = shared.timeout(limit, asking).await;
            if answer.is_none() {
                asked.kept.lock().await.take();
            }
            answer
        });
        let error = match asking.await {
            Ok(Some(Ok(Some((host, port))))) => {
                let tls = self.server.uses_tls();
                return Ok(Address::Tcp { host, port, tls });
            }
            Ok(Some(Ok(None))) => BackendError::rejected(format!(
                "it knows no service {:?}; check sentinelServiceName",
                self.service
            )),
            Ok(Some(Err(error))) => error,
            Ok(None) => no_answer(limit),
            Err(ended) => not_run(&ended),
        };
        Err(error.with_context(format_args!("sentinel {}", sentinel.address)))
    }

    async fn open_at(
        &self,
        shared: &Shared,
        address: &Address,
        listens: bool,
    ) -> Result<Connected, BackendError> {
        let url = ServerUrl {
            address: address.clone(),
            ..self.server.clone()
        };
        let opening = async {
            let connector = self.sentinels[0].connector.at(&url);
            let connector = connector.map_err(|it| BackendError::rejected(it.to_string()))?;
            let connected = shared.open_with(&*connector, listens).await?;
            match connected.info.role.as_deref() {
                Some("master") => Ok(connected),
                role => Err(BackendError::unavailable(format!(
                    "it says that it is a {}, not the primary",
                    role.unwrap_or("server without a role")
                ))),
            }
        };
        let opened: Result<_, BackendError> = opening.await;
        opened.map_err(|error| {
            error.with_context(format_args!("primary {address}, named by a sentinel"))
        })
    }

    fn primary(&self) -> Option<Address> {
        lock(&self.primary).clone()
    }

    /// Records that a connection has reached the primary at `address`. If the connections so far
    /// lead to another server, they are to follow.
    ///
    /// `known` is the primary as it was before the sentinels were asked. If the connections have moved since to a
    /// third server, this fails: the sentinels may have answered before.
    fn reached(
        &self,
        shared: &Shared,
        known: Option<&Address>,
        address: &Address,
        connected: Connected,
    ) -> Result<Connected, BackendError> {
        let mut primary = lock(&self.primary);
        if let Some(now) = &*primary
            && Some(now) != known
            && now != address
        {
            let problem = "other connections have moved meanwhile";
            let reason = format!("primary {address}: {problem} to {now}");
            return Err(BackendError::unavailable(reason));
        }
        let before = primary.replace(address.clone());
        if let Some(before) = before.filter(|before| before != address) {
            tracing::event!(
                name: "primary changed",
                target: "leasehold",
                tracing::Level::WARN,
                from = %before,
                to = %address,
                "primary changed"
            );
            shared.move_on();
        }
        Ok(Connected {
            moves: shared.moves(),
            ..connected
        })
    }
}

impl Sentinel {
    /// Asks over the connection that was kept, or over a new one.
    async fn primary_of(
        &self,
        service: &str,
        shared: &Shared,
    ) -> Result<Option<(String, u16)>, BackendError> {
        loop {
            let (connection, is_new) = self.connection(shared).await?;
            match connection.primary_of(service).await {
                Ok(address) => return Ok(address),
                Err(failure) => {
                    self.forget(&connection).await;
                    if is_new {
                        return Err(refused(failure, shared.prefix()));
                    }
                }
            }
        }
    }

    /// Returns the connection that was kept, or opens one. Also returns whether it is new.
    async fn connection(
        &self,
        shared: &Shared,
    ) -> Result<(Arc<dyn Connection>, bool), BackendError> {
        let mut kept = self.kept.lock().await;
        if let Some(connection) = &*kept
            && !connection.is_closed()
        {
            return Ok((Arc::clone(connection), false));
        }
        let (runtime, limit) = (&shared.runtime, shared.options.connect_timeout / ASK_PARTS);
        runtime.sleep(self.pace.pause_left(shared.now())).await;
        let opening = async {
            let refused = |failure| refused(failure, shared.prefix());
            let addresses = addresses(&*self.connector).await.map_err(refused)?;
            let opening = |to| async move {
                let opened = self.connector.open(to, None).await;
                opened.map_err(refused)
            };
            first_of(runtime, limit, addresses.into_iter().map(opening)).await
        };
        let connection = self.pace.connect(runtime, limit, opening).await?;
        *kept = Some(Arc::clone(&connection));
        Ok((connection, true))
    }

    async fn forget(&self, connection: &Arc<dyn Connection>) {
        let mut kept = self.kept.lock().await;
        if kept.as_ref().is_some_and(|it| Arc::ptr_eq(it, connection)) {
            *kept = None;
        }
    }
}

#[derive(Default)]
struct Votes(Vec<Address>);

impl Votes {
    fn most(&self) -> Option<&Address> {
        self.0.iter().max_by_key(|address| self.of(address))
    }

    fn of(&self, address: &Address) -> usize {
        self.0.iter().filter(|named| *named == address).count()
    }

    /// Whether to use this address, however the sentinels vote that are still `unheard`.
    ///
    /// No other address may get more votes. To leave the `current` one, it also needs more votes than
    /// that one may get. To stay there, it doesn't need to know about the unheard sentinels: the task
    /// notices if they name another server.
    fn choose(&self, address: &Address, current: Option<&Address>, unheard: usize) -> bool {
        let others = self.0.iter().filter(|named| *named != address);
        let others = others.map(|named| self.of(named)).max().unwrap_or(0);
        let own = self.of(address);
        match current {
            Some(current) if current == address => own >= others,
            Some(current) => own >= others + unheard && own > self.of(current) + unheard,
            None => own >= others + unheard,
        }
    }
}

impl fmt::Display for SentinelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.sentinels.iter().map(|it| it.address.to_string());
        let addresses = addresses.collect::<Vec<_>>().join(", ");
        write!(f, "{:?} through the sentinels {addresses}", self.service)
    }
}

fn refused(failure: Failure, prefix: &str) -> BackendError {
    let text = failure.to_string();
    if text.contains("unknown command") {
        return BackendError::rejected(
            "it is not a sentinel; write redis://, or the port of a sentinel",
        );
    }
    let error = failure.at_connect(prefix);
    if text.contains("NOAUTH") || text.contains("WRONGPASS") {
        return error.with_context("check sentinelUsername and sentinelPassword");
    }
    error
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::Ordering;

    use futures_util::future::select;
    use tokio::sync::mpsc::unbounded_channel;
    use tokio::time::sleep;

    use super::super::fake::{self, Node, ToNode};
    use super::super::server::{ServerInfo, ServerMode};
    use super::*;

    #[test]
    fn address_with_most_votes_is_chosen() {
        let [a, b, c] = [1, 2, 3].map(fake::tcp);
        // The votes for `a` and `b`, the unheard sentinels, and whether `b` is chosen: at the start,
        // from `a`, from `c`, and from `b` itself.
        let table = [
            ((0, 1), 2, [false, false, false, true]),
            ((0, 2), 1, [true, true, true, true]),
            ((1, 1), 1, [false, false, false, true]),
            ((1, 1), 0, [true, false, true, true]),
            ((0, 1), 1, [true, false, false, true]),
            ((0, 1), 0, [true, true, true, true]),
            ((2, 1), 0, [false, false, false, false]),
            ((1, 2), 0, [true, true, true, true]),
        ];
        for ((for_a, for_b), unheard, expected) in table {
            let votes = Votes([vec![a.clone(); for_a], vec![b.clone(); for_b]].concat());
            let from = [None, Some(&a), Some(&c), Some(&b)];
            let chosen = from.map(|current| votes.choose(&b, current, unheard));
            assert_eq!(chosen, expected, "{for_a} : {for_b}, {unheard} unheard");
        }
    }

    fn source(node: &Arc<Node>) -> SentinelSource {
        let url = "redis-sentinel://a:1?sentinelServiceName=s";
        let url = ServerUrl::parse(url, false).expect("a URL");
        let sentinels = url.sentinels.as_ref().expect("sentinels");
        SentinelSource::new(&ToNode::new(node), &url, sentinels).expect("valid")
    }

    fn connected(node: &Arc<Node>) -> Connected {
        let info = "redis_version:7.0.15\r\nrole:master\r\n";
        Connected {
            connection: Arc::new(ToNode::new(node)),
            info: ServerInfo::parse(info, ServerMode::Standalone).expect("usable"),
            events: unbounded_channel().1,
            moves: 0,
        }
    }

    #[tokio::test]
    async fn attempt_that_began_before_a_move_moves_nothing_back() {
        let node = Arc::new(Node::default());
        let shared = fake::shared(&node, fake::LIMIT);
        let source = source(&node);
        let [old, new] = [1, 2].map(fake::tcp);
        let reached = |known: Option<&Address>, address: &Address| {
            let reached = source.reached(&shared, known, address, connected(&node));
            reached
                .map(|connected| connected.moves)
                .map_err(|error| error.is_transient())
        };
        assert_eq!(reached(None, &old), Ok(0));
        assert_eq!(reached(None, &old), Ok(0), "both for the first time");
        assert_eq!(reached(Some(&old), &new), Ok(1));
        for known in [None, Some(&old)] {
            assert_eq!(reached(known, &old), Err(true), "it began before the move");
        }
        assert_eq!(source.primary().as_ref(), Some(&new));
        assert_eq!(reached(Some(&old), &new), Ok(1), "others follow");
        assert_eq!(reached(Some(&new), &old), Ok(2), "it is named again");
    }

    #[tokio::test]
    async fn sentinel_that_answers_late_moves_nothing_back() {
        let node = Arc::new(Node::default());
        *node.answers_take.lock().expect("no panic") = ASK_EVERY;
        let shared = fake::shared(&node, fake::LIMIT);
        let source = source(&node);
        let [old, new] = [fake::PORT, fake::PORT + 1].map(fake::tcp);
        let reached = |known, address| source.reached(&shared, known, address, connected(&node));
        reached(None, &old).expect("the first one");
        let moving = async {
            // The sentinel has been asked, and names the old one.
            sleep(ASK_EVERY * 3 / 2).await;
            node.primary.store(1, Ordering::SeqCst);
            reached(Some(&old), &new).expect("named by others");
            sleep(ASK_EVERY * 4).await;
        };
        select(pin!(source.watch(&shared)), pin!(moving)).await;
        assert_eq!(shared.moves(), 1);
    }
}
