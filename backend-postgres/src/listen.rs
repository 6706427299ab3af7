//! Subscriptions. Each session that listens has a separate connection and task.
//!
//! While it listens, the connection holds an advisory lock that other clients can see. So they know
//! whether a session listens: the server releases the lock with the connection.

use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{select, try_join};
use futures_util::stream::poll_fn;
use leasehold_api::{
    BackendError, ClockId, ConnectPace, Moment, Notification, Notifications, Runtime,
};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_postgres::{Client, Row};

use crate::connection::{Connection, ManagedConnection};
use crate::error::{During, classify};
use crate::message::{self, Channel};
use crate::pooler;
use crate::shared::{Endpoint, Shared, primary, set_up};
use crate::statements::Query;

/// How long a subscription may be silent before it is pinged. Only a ping detects a dead network.
const PING_EVERY: Duration = Duration::from_secs(2);
/// The pause after the server refused the subscription doubles from the first one to the longest. Its administrator
/// may be at work, so this begins short.
const FIRST_PAUSE_AFTER_REFUSAL: Duration = Duration::from_millis(20);
const LONGEST_PAUSE_AFTER_REFUSAL: Duration = Duration::from_secs(5);

/// A confirmed subscription.
struct Subscription {
    client: Client,
    opened: Moment,
    clock: ClockId,
    payloads: UnboundedReceiver<String>,
}

/// Subscribes to a channel and stays subscribed until the stream is dropped or the backend is closed.
pub(crate) async fn listen(
    commands: &Arc<ManagedConnection>,
    channel: Channel,
) -> Result<Notifications, BackendError> {
    let subscription = Subscription::open(commands, &channel).await?;
    let (notifications, mut stream) = unbounded_channel();
    let handle = &commands.handle;
    let task = Task {
        shared: Arc::clone(&commands.shared),
        commands: Arc::clone(commands),
        channel,
        pace: ConnectPace::default(),
        notifications,
    };
    handle.spawn(task.run(subscription));
    Ok(Box::pin(poll_fn(move |cx| stream.poll_recv(cx))))
}

impl Subscription {
    async fn open(
        commands: &Arc<ManagedConnection>,
        channel: &Channel,
    ) -> Result<Self, BackendError> {
        let shared = &commands.shared;
        let (sender, payloads) = unbounded_channel();
        let (client, clock) = shared.open_session(&commands.handle, sender).await?;
        if let Some(direct) = &shared.direct {
            let pooled = commands.get().await?;
            check_same_database(&client, clock, direct, &pooled).await?;
        }
        // The server executes them in this order: the lock announces the subscription.
        let listen = format!("LISTEN {}", channel.name);
        let announce = format!("SELECT pg_advisory_lock_shared({})", channel.lock);
        let endpoint = shared.for_subscriptions();
        let subscribing = async {
            let both = try_join(
                client.batch_execute(&listen),
                client.batch_execute(&announce),
            );
            let failed = |error| classify(error, During::Connect(&endpoint.address()));
            both.await.map_err(failed)
        };
        shared
            .in_time(endpoint, "answer to LISTEN", subscribing)
            .await?;
        Ok(Self {
            client,
            opened: shared.runtime.now(),
            clock,
            payloads,
        })
    }

    async fn is_alive(&self, shared: &Shared) -> bool {
        let ping = self.client.batch_execute("");
        let limit = shared.options.call_timeout;
        matches!(shared.runtime.timeout(limit, ping).await, Some(Ok(())))
    }
}

/// Fails if the direct URL leads to a pooler that shares connections, or to another server or database than the pooler.
pub(crate) async fn check_direct(
    shared: &Shared,
    handle: &Handle,
    pooled: &Connection,
) -> Result<(), BackendError> {
    let Some(direct) = &shared.direct else {
        return Ok(());
    };
    let [(client, _), (second, _)] = pooler::connect_two(shared, direct, [handle; 2]).await?;
    pooler::check(&client, &second, shared, direct).await?;
    let setting_up = set_up(&client, direct);
    let answers = shared.in_time(direct, "answer", setting_up).await?;
    check_same_database(&client, primary(&answers)?.clock, direct, pooled).await
}

/// Nobody sends messages in another database, and nobody looks there for listeners.
async fn check_same_database(
    client: &Client,
    clock: ClockId,
    direct: &Endpoint,
    pooled: &Connection,
) -> Result<(), BackendError> {
    let (query, shared) = (Query::Database, &pooled.shared);
    let address = direct.address();
    let asking = async {
        let own = client.query_typed(query.text(), &[]).await;
        own.map_err(|error| classify(error, During::Connect(&address)))
    };
    let own = shared.in_time(direct, "answer", asking).await?;
    let asking = pooled.query((query, &[]));
    let asking = shared.in_time(&shared.endpoint, "answer", asking);
    let (pooled, pooled_clock) = asking.await?;
    let differs =
        |what| format!("{address}: the direct URL leads to another {what} than the pooler");
    if clock != pooled_clock {
        // Perhaps one of them has followed a failover, and the other not yet.
        return Err(BackendError::unavailable(differs("server")));
    }
    let database = |rows: &[Row]| rows.first().and_then(|row| row.try_get::<_, i64>(0).ok());
    match database(&own) == database(&pooled) {
        true => Ok(()),
        false => Err(BackendError::rejected(differs("database"))),
    }
}

/// The task that keeps one session subscribed.
struct Task {
    shared: Arc<Shared>,
    commands: Arc<ManagedConnection>,
    channel: Channel,
    /// When to subscribe again.
    pace: ConnectPace,
    notifications: UnboundedSender<Notification>,
}

impl Task {
    async fn run(self, subscription: Subscription) {
        let mut closed = self.shared.closed.subscribe();
        let closing = pin!(closed.wait_for(|closed| *closed));
        let dropped = pin!(self.notifications.closed());
        let keeping = pin!(self.keep_open(subscription));
        select(select(closing, dropped), keeping).await;
    }

    async fn keep_open(&self, mut subscription: Subscription) {
        loop {
            self.forward(&mut subscription).await;
            let error = BackendError::unavailable("the subscription has ended");
            let runtime = &self.shared.runtime;
            self.pace.ended(runtime, subscription.opened, &error);
            drop(subscription);
            self.notify(Notification::Missed { listening: false });
            subscription = self.open_again().await;
            self.notify(Notification::Missed { listening: true });
        }
    }

    /// Forwards notifications until the connection is lost, or the address leads to another server.
    async fn forward(&self, subscription: &mut Subscription) {
        while self.shared.is_newest(subscription.clock) {
            let next = subscription.payloads.recv();
            match self.shared.runtime.timeout(PING_EVERY, next).await {
                Some(Some(payload)) => self.deliver(&payload, subscription.clock),
                None if subscription.is_alive(&self.shared).await => {}
                Some(None) | None => return,
            }
        }
    }

    fn deliver(&self, payload: &str, clock: ClockId) {
        match message::decode(payload, clock) {
            Some(notifications) => notifications.into_iter().for_each(|it| self.notify(it)),
            // It may have been a grant.
            None => self.notify(Notification::Missed { listening: true }),
        }
    }

    /// Tries until it succeeds.
    async fn open_again(&self) -> Subscription {
        let runtime = &self.shared.runtime;
        let (mut pause, mut reported) = (self.pace.pause_left(runtime.now()), false);
        let mut after_refusal = FIRST_PAUSE_AFTER_REFUSAL;
        loop {
            runtime.timer(pause).await;
            let opening = Subscription::open(&self.commands, &self.channel);
            let opened = self.pace.connect(runtime, Duration::MAX, opening).await;
            let error = match opened {
                Ok(subscription) => return subscription,
                Err(error) => error,
            };
            // An outage is reported once, not with every attempt.
            if !std::mem::replace(&mut reported, true) && !self.shared.is_closed() {
                report(&error);
            }
            let now = runtime.now();
            let pauses = [&self.pace, &self.shared.for_subscriptions().pace]
                .map(|pace| pace.pause_left(now));
            pause = match error.is_transient() {
                true => pauses[0].max(pauses[1]),
                false => {
                    let refused = jittered(after_refusal, runtime.random_u64());
                    after_refusal = (after_refusal * 2).min(LONGEST_PAUSE_AFTER_REFUSAL);
                    refused
                }
            };
        }
    }

    fn notify(&self, notification: Notification) {
        // Fails if the stream was dropped. The task then ends soon.
        let _ = self.notifications.send(notification);
    }
}

/// Between half of `longest` and `longest`. The listeners of a server that restarts don't all come at once.
fn jittered(longest: Duration, random: u64) -> Duration {
    let half = longest / 2;
    let micros = u64::try_from(half.as_micros()).unwrap_or(u64::MAX);
    half + Duration::from_micros(random % micros.max(1))
}

fn report(error: &BackendError) {
    let causes = std::iter::successors(error.source(), |&error| error.source());
    let causes = causes.map(|cause| format!(": {cause}"));
    let error = error.to_string() + &causes.collect::<String>();
    tracing::event!(
        name: "subscription failed",
        target: "leasehold",
        tracing::Level::WARN,
        error = %error,
        "subscription failed"
    );
}
