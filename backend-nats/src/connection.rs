//! Connections, and calls over them.

use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use async_nats::client::{Request, RequestErrorKind};
use async_nats::{
    Auth, AuthError, Client, ConnectErrorKind, ConnectOptions, Event, HeaderMap, Message,
    ServerAddr, Subscriber, rustls,
};
use bytes::Bytes;
use futures_util::future::{Either, select};
use leasehold_api::{
    BackendError, ConnectPace, InvalidInput, Moment, Runtime, TokioRuntime, bounds, first_of,
};
use percent_encoding::percent_decode_str;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::{broadcast, watch};

/// A connection has ended if this many times the interval brings no answer: after 3 s.
const PING_EVERY: Duration = Duration::from_secs(1);
/// How long one address of a name may take.
const ADDRESS_WITHIN: Duration = Duration::from_secs(1);
/// The bucket of a URL that names none.
const DEFAULT_BUCKET: &str = "leasehold";
/// How many complaints wait for those who listen to them.
const COMPLAINTS: usize = 128;

/// What a URL says.
#[derive(Clone)]
pub(crate) struct Place {
    servers: Vec<ServerAddr>,
    login: Auth,
    pub(crate) bucket: String,
}

impl Place {
    /// Reads `nats://user:password@host:port,host:port/bucket`. A user without a password is a token.
    pub(crate) fn of_url(url: &str) -> Result<Self, InvalidInput> {
        // The URL may contain a password, so no error quotes it.
        let invalid =
            || InvalidInput::setting("URL", "it is not nats://user:password@host:port/bucket");
        let (scheme, rest) = url.split_once("://").ok_or_else(invalid)?;
        if !["nats", "tls"].contains(&scheme) {
            return Err(invalid());
        }
        let (rest, bucket) = rest.split_once('/').unwrap_or((rest, ""));
        let bucket = if bucket.is_empty() {
            DEFAULT_BUCKET
        } else {
            bucket
        };
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !bucket.chars().all(is_part) {
            return Err(InvalidInput::setting(
                "URL",
                "a bucket's name has letters, digits, - and _",
            ));
        }
        let (login, hosts) = rest.rsplit_once('@').unwrap_or(("", rest));
        if login.contains('@') {
            // Perhaps a second host has a login too: all hosts but the last one would be a part of the password.
            let problem = "there is one login, for all hosts; write an @ in it as %40";
            return Err(InvalidInput::setting("URL", problem));
        }
        let decoded = |text: &str| {
            let text = percent_decode_str(text).decode_utf8();
            text.map(String::from).map_err(|_| invalid())
        };
        let mut auth = Auth::new();
        match login.split_once(':') {
            Some((user, password)) => {
                auth.username = Some(decoded(user)?);
                auth.password = Some(decoded(password)?);
            }
            None if login.is_empty() => {}
            None => auth.token = Some(decoded(login)?),
        }
        let server = |host: &str| match format!("{scheme}://{host}").parse::<ServerAddr>() {
            Ok(server) if !server.host().is_empty() => Ok(server),
            _ => Err(invalid()),
        };
        Ok(Self {
            servers: hosts.split(',').map(server).collect::<Result<_, _>>()?,
            login: auth,
            bucket: bucket.to_owned(),
        })
    }
}

/// A connection. It never sends again what it could not send before it was lost.
#[derive(Clone)]
pub(crate) struct Link {
    client: Client,
    lost: watch::Receiver<bool>,
    /// Errors that the server tells without being asked: which subject this user may not use.
    complaints: broadcast::Sender<String>,
    made: Moment,
}

/// Makes a connection, and another one when it is lost.
pub(crate) struct Links {
    place: Place,
    /// The tokio runtime that they work on.
    home: Handle,
    runtime: TokioRuntime,
    pace: Arc<ConnectPace>,
    current: Mutex<Current>,
    turn: tokio::sync::Mutex<()>,
}

enum Current {
    None,
    Open(Link),
    Closed,
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The place contains a password.
        f.debug_struct("Links").finish_non_exhaustive()
    }
}

impl Links {
    pub(crate) fn new(place: Place, home: Handle, pace: Arc<ConnectPace>) -> Self {
        Self {
            place,
            runtime: TokioRuntime::new(home.clone()),
            home,
            pace,
            current: Mutex::new(Current::None),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// The connection, or a new one. If a caller gives up, the attempt goes on.
    pub(crate) async fn link(self: &Arc<Self>) -> Result<Link, BackendError> {
        if let Some(link) = self.open_one()? {
            return Ok(link);
        }
        let links = Arc::clone(self);
        let opening = self.home.spawn(async move {
            let _turn = links.turn.lock().await;
            if let Some(link) = links.open_one()? {
                return Ok(link);
            }
            let (runtime, limit) = (&links.runtime, bounds::CONNECT_TIMEOUT);
            let opening = async {
                let late = || Err(BackendError::unavailable("no connection in time"));
                let opened = runtime.timeout(limit, links.open());
                opened.await.unwrap_or_else(late)
            };
            let link = links.pace.connect(runtime, limit, opening).await?;
            match &mut *links.current() {
                Current::Closed => Err(BackendError::Closed),
                current => {
                    *current = Current::Open(link.clone());
                    Ok(link)
                }
            }
        });
        opening.await.unwrap_or(Err(BackendError::Closed))
    }

    fn open_one(&self) -> Result<Option<Link>, BackendError> {
        let mut current = self.current();
        match &*current {
            Current::Closed => return Err(BackendError::Closed),
            Current::Open(link) if !link.is_lost() => return Ok(Some(link.clone())),
            Current::Open(link) => {
                let error = BackendError::unavailable("the connection was lost");
                self.pace.ended(&self.runtime, link.made, &error);
                *current = Current::None;
            }
            Current::None => {}
        }
        Ok(None)
    }

    /// Connects to one of the servers.
    async fn open(&self) -> Result<Link, BackendError> {
        let mut servers = self.place.servers.clone();
        let first = self.runtime.random_u64() % servers.len() as u64;
        servers.rotate_left(usize::try_from(first).unwrap_or_default());
        let attempts = servers.into_iter().map(|server| self.open_at(server));
        first_of(&self.runtime, bounds::CONNECT_TIMEOUT, attempts).await
    }

    async fn open_at(&self, server: ServerAddr) -> Result<Link, BackendError> {
        let (loss, lost) = watch::channel(false);
        let complaints = broadcast::Sender::new(COMPLAINTS);
        let told = complaints.clone();
        let (used, login) = (Arc::new(AtomicBool::new(false)), self.place.login.clone());
        let was_used = Arc::clone(&used);
        // The library keeps what is published while it has no connection, and sends it over the next one. A write may then
        // come much too late. So there is no next one: without a login the library gives up, and drops what it kept.
        let log_in = move |_| {
            let login = match was_used.load(Ordering::SeqCst) {
                true => Err(AuthError::new("a connection is used once")),
                false => Ok(login.clone()),
            };
            async move { login }
        };
        let note = move |event: Event| {
            match event {
                Event::Disconnected | Event::Closed => _ = loss.send_replace(true),
                // Nobody may be listening.
                Event::ServerError(error) => _ = told.send(error.to_string()),
                _ => {}
            }
            async {}
        };
        let options = ConnectOptions::with_auth_callback(log_in)
            .event_callback(note)
            .max_reconnects(1)
            .ignore_discovered_servers()
            .connection_timeout(ADDRESS_WITHIN)
            .ping_interval(PING_EVERY)
            .request_timeout(None)
            .name("leasehold");
        let client = options.connect(server).await.map_err(not_connected)?;
        used.store(true, Ordering::SeqCst);
        let made = self.runtime.now();
        Ok(Link {
            client,
            lost,
            complaints,
            made,
        })
    }

    pub(crate) fn runtime(&self) -> &TokioRuntime {
        &self.runtime
    }

    pub(crate) fn close(&self) {
        *self.current() = Current::Closed;
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn not_connected(error: async_nats::ConnectError) -> BackendError {
    use rustls::Error::{InvalidCertificate, InvalidMessage, PeerIncompatible};
    let source = error.source().and_then(<dyn Error>::downcast_ref);
    let inner = source.and_then(io::Error::get_ref);
    let tls = inner.and_then(|inner| inner.downcast_ref());
    let refused = match (error.kind(), tls) {
        (ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication, _) => {
            "the server refuses this client".to_owned()
        }
        (_, Some(tls @ (InvalidCertificate(_) | InvalidMessage(_) | PeerIncompatible(_)))) => {
            format!("no TLS with the server: {tls}")
        }
        _ => return BackendError::unavailable("the server can't be reached").with_source(error),
    };
    BackendError::rejected(refused).with_source(error)
}

/// The error number that a server answers with, and what it says.
pub(crate) struct Refusal {
    pub(crate) code: u64,
    pub(crate) reason: String,
}

impl Link {
    /// Sends a request once, and waits for the answer: without a limit, but not beyond the loss of the connection.
    pub(crate) async fn ask(
        &self,
        subject: String,
        headers: HeaderMap,
        payload: impl Into<Bytes>,
    ) -> Result<Result<Value, Refusal>, BackendError> {
        let request = Request::new().headers(headers).payload(payload.into());
        let lost = BackendError::outcome_unknown("the connection was lost");
        let named = format!("\"{subject}\"");
        let asking = self.until_lost(self.client.send_request(subject, request));
        let message = match self.unless_refused(&named, asking).await? {
            None => return Err(lost),
            Some(Ok(message)) => message,
            Some(Err(error)) => {
                return Err(match error.kind() {
                    RequestErrorKind::NoResponders => {
                        BackendError::unavailable("JetStream does not answer")
                    }
                    RequestErrorKind::MaxPayloadExceeded => BackendError::rejected(
                        "the state of the key is larger than the server's max_payload",
                    ),
                    _ => lost,
                }
                .with_source(error));
            }
        };
        answer_in(&message).ok_or_else(|| BackendError::outcome_unknown("the answer can't be read"))
    }

    /// Awaits a future, unless the server complains of what is `named`, a subject in quotes. It doesn't tell that in an answer.
    pub(crate) async fn unless_refused<T>(
        &self,
        named: &str,
        future: impl Future<Output = T>,
    ) -> Result<T, BackendError> {
        let mut complaints = self.complaints.subscribe();
        let refused = async {
            loop {
                // An error says that some were missed. The channel isn't closed: this link has a sender.
                if let Ok(complaint) = complaints.recv().await
                    && complaint.contains(named)
                {
                    return complaint;
                }
            }
        };
        match select(pin!(future), pin!(refused)).await {
            Either::Left((done, _)) => Ok(done),
            Either::Right((complaint, _)) => Err(BackendError::rejected(complaint)),
        }
    }

    /// Sends a message that nobody answers.
    pub(crate) async fn tell(&self, subject: String, text: String) {
        // A lost message is no error.
        let _ = self.client.publish(subject, text.into()).await;
    }

    /// Subscribes. The server has confirmed it when it answers the next request.
    pub(crate) async fn subscribe(&self, subject: String) -> Result<Subscriber, BackendError> {
        let subscribed = self.client.subscribe(subject).await;
        let failed = |error| BackendError::unavailable("no subscription").with_source(error);
        subscribed.map_err(failed)
    }

    /// The library may drop the event. It ends the channel when it gives up.
    fn is_lost(&self) -> bool {
        *self.lost.borrow() || self.lost.has_changed().is_err()
    }

    /// Awaits a future, unless the connection is lost before.
    pub(crate) async fn until_lost<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut lost = self.lost.clone();
        let lost = lost.wait_for(|is_lost| *is_lost);
        match select(pin!(future), pin!(lost)).await {
            Either::Left((done, _)) => Some(done),
            Either::Right(_) => None,
        }
    }
}

fn answer_in(message: &Message) -> Option<Result<Value, Refusal>> {
    let answer: Value = serde_json::from_slice(&message.payload).ok()?;
    let Some(error) = answer.get("error") else {
        return Some(Ok(answer));
    };
    Some(Err(Refusal {
        code: error["err_code"].as_u64()?,
        reason: error["description"].as_str().unwrap_or_default().to_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::future::{join, join_all};
    use futures_util::{FutureExt as _, StreamExt as _};
    use leasehold_conformance::TcpProxy;
    use leasehold_test_servers::{NatsServers, eventually, throughout};
    use serde_json::json;

    use super::*;
    use crate::bucket::Bucket;

    /// What no busy machine needs.
    const LIMIT: Duration = Duration::from_secs(60);

    fn links_to(url: &str) -> Arc<Links> {
        let place = Place::of_url(url).expect("a URL");
        Arc::new(Links::new(place, Handle::current(), Arc::default()))
    }

    /// The library and the proxy keep what can't be sent.
    #[tokio::test]
    async fn lost_connection_sends_nothing_later() {
        let server = NatsServers::start("");
        let address = ([127, 0, 0, 1], server.port(0)).into();
        let proxy = TcpProxy::start(address).await.expect("a proxy");
        let links = links_to(&format!("nats://{}", proxy.address()));
        let link = links.link().await.expect("connected");
        let bucket = Bucket("leasehold".to_owned());
        bucket.prepare(&link).await.expect("a bucket");
        proxy.freeze(true);
        let write = |number| {
            let subject = format!("$KV.leasehold.{number}");
            Box::pin(link.ask(subject, HeaderMap::new(), vec![0; 500_000]))
        };
        let mut writes: Vec<_> = (0..60).map(write).collect();
        for write in &mut writes {
            assert!(write.as_mut().now_or_never().is_none());
        }
        proxy.cut();
        proxy.freeze(false);
        let written = links.runtime().timeout(LIMIT, join_all(writes)).await;
        let written = written.expect("each write ends");
        assert!(written.iter().all(Result::is_err));
        let connected = async || links.link().await.is_ok();
        eventually("there is another connection", connected).await;
        throughout(Duration::from_secs(3), "nothing is written", async || {
            let link = links.link().await.expect("connected");
            let asking = bucket.ask(&link, "STREAM.INFO", json!({}));
            let info = links.runtime().timeout(LIMIT, asking).await;
            let info = info.expect("in time").expect("an answer");
            info.ok().expect("a bucket")["state"]["messages"] == 0
        })
        .await;
    }

    /// Neither is one call's complaint another one's, nor does a later event bring back an old one.
    #[tokio::test]
    async fn refusal_of_one_subject_is_not_another_ones() {
        let server = NatsServers::start(
            "authorization { users [ { user: a, password: a, permissions: { publish: { deny: [\"slower\"] } } }, { user: b, password: b } ] }",
        );
        let host = server.url().replace("nats://", "");
        let links = links_to(&format!("nats://a:a@{host}"));
        let link = links.link().await.expect("connected");
        let other = links_to(&format!("nats://b:b@{host}"));
        let other = other.link().await.expect("connected");
        let mut requests = other.subscribe("slow".to_owned()).await.expect("may");
        // It is confirmed when another request has no responders.
        let nobody = other.ask("nobody".to_owned(), HeaderMap::new(), "").await;
        assert!(matches!(nobody, Err(BackendError::Unavailable { .. })));
        let asking = link.ask("slow".to_owned(), HeaderMap::new(), "");
        let answering = async {
            let request = requests.next().await.expect("a request");
            let refused = link.ask("slower".to_owned(), HeaderMap::new(), "").await;
            let is_named = matches!(&refused, Err(error @ BackendError::Rejected { .. }) if error.to_string().contains("slower"));
            assert!(is_named, "{:?}", refused.err());
            other
                .tell(
                    request.reply.expect("a request").to_string(),
                    "{}".to_owned(),
                )
                .await;
        };
        let (asked, ()) = join(asking, answering).await;
        assert!(asked.is_ok(), "{:?}", asked.err());
    }

    #[tokio::test]
    async fn connection_without_events_is_lost() {
        let server = NatsServers::start("");
        let links = links_to(&server.url());
        links.link().await.expect("connected");
        assert!(matches!(links.open_one(), Ok(Some(_))));
        if let Current::Open(link) = &mut *links.current() {
            link.lost = watch::channel(false).1;
        }
        assert!(matches!(links.open_one(), Ok(None)));
    }
}
