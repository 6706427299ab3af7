//! Calls to one of the servers, and what their errors mean.

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, Shared};
use futures_util::stream::{StreamExt, once, pending};
use http::uri::{Authority, PathAndQuery};
use leasehold_api::{BackendError, Certificates, InvalidInput, TokioRuntime, bounds, tls_problem};
use percent_encoding::percent_decode_str;
use prost::Message;
use tokio::runtime::Handle;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, ConnectError, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::connector::{Connector, Tls};
use crate::rpc::{
    AUTHENTICATE, AuthenticateRequest, AuthenticateResponse, WATCH, WatchCreateRequest,
    WatchRequest, WatchResponse,
};

/// How often a connection with a subscription is tested. A server takes it for an attack below 5 s.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(3);
const PORT: u16 = 2379;
/// The name of the token in a request.
const TOKEN: &str = "token";

/// The servers of a URL, and who connects.
#[derive(Clone)]
pub(crate) struct Target {
    servers: Vec<Connector>,
    tls: Option<Tls>,
    login: Option<AuthenticateRequest>,
    pub(crate) max_clock_skew: Option<Duration>,
}

impl Target {
    /// Reads a URL. Errors don't quote it: it may contain a password.
    pub(crate) fn of(url: &str, certificates: &Certificates) -> Result<Self, InvalidInput> {
        let invalid =
            "it is not etcd://user:password@host:port,host:port, or etcds:// for all of them";
        let invalid = || InvalidInput::setting("URL", invalid);
        let (scheme, rest) = url.split_once("://").ok_or_else(invalid)?;
        let tls = match scheme {
            "etcds" => Some(Tls::new(certificates)?),
            "etcd" => {
                certificates.check_unused("they need etcds:// in the URL")?;
                None
            }
            _ => return Err(invalid()),
        };
        let (login, servers) = match rest.rsplit_once('@') {
            Some((login, servers)) => (Some(login), servers),
            None => (None, rest),
        };
        // Behind the password, which may have a question mark.
        let (servers, skew) = match servers.split_once('?') {
            Some((servers, query)) => (servers, Some(skew_of(query)?)),
            None => (servers, None),
        };
        let servers = servers.strip_suffix('/').unwrap_or(servers);
        let login = login.map(|login| login_of(login).ok_or_else(invalid));
        let connector = |server| {
            let endpoint = endpoint(server, tls.is_some())?;
            Some(Connector::new(endpoint, tls.clone()))
        };
        let servers: Option<Vec<_>> = servers.split(',').map(connector).collect();
        Ok(Self {
            servers: servers.ok_or_else(invalid)?,
            tls,
            login: login.transpose()?,
            max_clock_skew: skew,
        })
    }
}

fn skew_of(query: &str) -> Result<Duration, InvalidInput> {
    let skew = query.strip_prefix("max_clock_skew=");
    let skew = skew.and_then(|skew| humantime::parse_duration(skew).ok());
    skew.ok_or_else(|| InvalidInput::setting("URL", "its query is not max_clock_skew=5m"))
}

fn login_of(login: &str) -> Option<AuthenticateRequest> {
    let decoded = |text| percent_decode_str(text).decode_utf8().ok();
    // Perhaps a second server has a login too: all but the last one would be a part of the password.
    let (name, password) = login.split_once(':').filter(|_| !login.contains('@'))?;
    let (name, password) = (decoded(name)?.into(), decoded(password)?.into());
    Some(AuthenticateRequest { name, password })
}

fn endpoint(server: &str, has_tls: bool) -> Option<Endpoint> {
    let authority: Authority = server.parse().ok()?;
    let host = authority.host();
    let port = match authority.port_u16() {
        None if server == host => PORT,
        port => port?,
    };
    let endpoint = Endpoint::from_shared(format!("http://{host}:{port}")).ok()?;
    let endpoint = endpoint.http2_keep_alive_interval(PING_EVERY);
    let endpoint = endpoint.keep_alive_timeout(PING_TIMEOUT);
    Some(match has_tls {
        // Each request says that it came over TLS, which a server may compare.
        true => endpoint.origin(format!("https://{host}:{port}").parse().ok()?),
        false => endpoint,
    })
}

type Token = MetadataValue<Ascii>;
/// A login that goes on if all who wait for it give up.
type Login = Shared<BoxFuture<'static, Result<Token, Status>>>;

/// A connection to one of the servers at a time.
pub(crate) struct Client {
    target: Target,
    /// The tokio runtime that the connections work on.
    home: Handle,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How many connections there were. The number chooses the server.
    count: usize,
    channel: Option<Channel>,
    /// The login that has the token, or will have it.
    login: Option<Login>,
    is_closed: bool,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The target contains a password.
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(target: Target, home: Handle) -> Self {
        Self {
            target,
            home,
            state: Mutex::default(),
        }
    }

    /// Sends a request that only reads. After any error but a refusal, sends it again, once for each server.
    pub(crate) async fn read<Q, A>(
        self: &Arc<Self>,
        path: &'static str,
        request: Q,
    ) -> Result<A, BackendError>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let mut tries = self.target.servers.len();
        loop {
            match self.call(path, request.clone()).await {
                Err(status) if tries > 0 && !is_refusal(&status) => tries -= 1,
                Err(status) => return Err(not_written(status)),
                Ok(answer) => return Ok(answer),
            }
        }
    }

    /// Sends a request once, and again if it was refused because the login has ended.
    pub(crate) async fn call<Q, A>(
        self: &Arc<Self>,
        path: &'static str,
        request: Q,
    ) -> Result<A, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let signed = self.sign(Request::new(request.clone())).await?;
        let token = signed.metadata().get(TOKEN).cloned();
        match (self.send(path, signed).await, token) {
            (Err(status), Some(token)) if has_logged_out(&status) => {
                self.log_out(&token);
                let signed = self.sign(Request::new(request)).await?;
                self.send(path, signed).await
            }
            (answer, _) => answer,
        }
    }

    async fn send<Q, A>(&self, path: &'static str, request: Request<Q>) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let (channel, doubt) = self.channel()?;
        let mut grpc = Grpc::new(channel);
        let answer = async {
            ready(&mut grpc).await?;
            let (path, codec) = (PathAndQuery::from_static(path), ProstCodec::default());
            grpc.unary(request, path, codec).await
        };
        doubt.answered(answer.await.map(tonic::Response::into_inner))
    }

    /// Subscribes to changes. The request stays open, for the server ends the subscription with it.
    pub(crate) async fn watch(
        self: &Arc<Self>,
        create: WatchCreateRequest,
    ) -> Result<Streaming<WatchResponse>, Status> {
        let create_request = Some(create);
        let request = once(async move { WatchRequest { create_request } });
        let request = self.sign(Request::new(request.chain(pending()))).await?;
        let (channel, doubt) = self.channel()?;
        let mut grpc = Grpc::new(channel);
        let answer = async {
            ready(&mut grpc).await?;
            let (path, codec) = (PathAndQuery::from_static(WATCH), ProstCodec::default());
            grpc.streaming(request, path, codec).await
        };
        doubt.answered(answer.await.map(tonic::Response::into_inner))
    }

    /// Adds the login, and that a server without a leader has to refuse the request.
    async fn sign<Q>(self: &Arc<Self>, mut request: Request<Q>) -> Result<Request<Q>, Status> {
        let metadata = request.metadata_mut();
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(login) = &self.target.login {
            metadata.insert(TOKEN, self.token(login).await?);
        }
        Ok(request)
    }

    /// The token of the login, or of a new one, which all calls wait for.
    async fn token(self: &Arc<Self>, login: &AuthenticateRequest) -> Result<Token, Status> {
        let log_in = || self.spawn_login(login.clone());
        let login = self.state().login.get_or_insert_with(log_in).clone();
        login.await
    }

    fn spawn_login(self: &Arc<Self>, login: AuthenticateRequest) -> Login {
        let client = Arc::clone(self);
        let task = self.home.spawn(async move {
            let runtime = TokioRuntime::new(client.home.clone());
            let answer = client.send(AUTHENTICATE, Request::new(login));
            let answer = runtime.timeout(bounds::CONNECT_TIMEOUT, answer).await;
            let late = || Err(Status::deadline_exceeded("no login in time"));
            let token = answer.unwrap_or_else(late).and_then(token_of);
            if token.is_err() {
                client.state().login = None;
            }
            token
        });
        let ended = |_| Err(closed());
        task.map(move |token| token.unwrap_or_else(ended))
            .boxed()
            .shared()
    }

    /// Forgets this token, unless there is a newer login already.
    fn log_out(&self, token: &Token) {
        let is_its = |login: &mut Login| matches!(login.peek(), Some(Ok(known)) if known == token);
        self.state().login.take_if(is_its);
    }

    fn channel(&self) -> Result<(Channel, Doubt<'_>), Status> {
        let mut state = self.state();
        if state.is_closed {
            return Err(closed());
        }
        let server = self.server(state.count);
        let channel = state.channel.get_or_insert_with(|| {
            let _home = self.home.enter();
            server.connect()
        });
        let (channel, count) = (channel.clone(), state.count);
        Ok((
            channel,
            Doubt {
                client: self,
                count,
            },
        ))
    }

    /// The server of a connection with this number.
    fn server(&self, count: usize) -> &Connector {
        &self.target.servers[count % self.target.servers.len()]
    }

    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.channel = None;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error of a call that wrote nothing.
pub(crate) fn not_written(status: Status) -> BackendError {
    if status.source().is_some_and(|source| source.is::<Closed>()) {
        return BackendError::Closed;
    }
    if let Some(problem) = tls_problem(&status) {
        return BackendError::rejected(problem).with_source(status);
    }
    if is_refusal(&status) && status.code() != Code::NotFound {
        let reason = format!("etcd refuses: {}", status.message());
        return BackendError::rejected(reason).with_source(status);
    }
    let reason = match was_not_sent(&status) {
        true => "etcd can't be reached",
        false => "etcd has failed the call",
    };
    BackendError::unavailable(reason).with_source(status)
}

/// The error of a write. Unless etcd has refused it, or it was not sent, perhaps it was applied.
pub(crate) fn perhaps_written(status: Status) -> BackendError {
    if is_refusal(&status) || was_not_sent(&status) {
        return not_written(status);
    }
    BackendError::outcome_unknown("the call failed").with_source(status)
}

/// The client is closed, or the runtime of its connections has ended. Nothing was sent.
#[derive(Debug)]
struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the client is closed")
    }
}

impl Error for Closed {}

fn token_of(answer: AuthenticateResponse) -> Result<Token, Status> {
    Token::try_from(answer.token).map_err(|_| Status::unauthenticated("not a token"))
}

fn closed() -> Status {
    Status::from_error(Box::new(Closed))
}

/// Waits until the task of the connection takes a request. The task ends only with its runtime.
async fn ready(grpc: &mut Grpc<Channel>) -> Result<(), Status> {
    grpc.ready().await.map_err(|_| closed())
}

/// Leaves a connection without an answer: the next call takes the next server. A silent one would be silent again.
struct Doubt<'a> {
    client: &'a Client,
    count: usize,
}

impl Doubt<'_> {
    fn answered<A>(self, answer: Result<A, Status>) -> Result<A, Status> {
        let answer = answer.map_err(|status| match &self.client.target.tls {
            Some(tls) => tls.explain(status),
            None => status,
        });
        match &answer {
            Err(status) if !is_refusal(status) => self.failed(&not_written(status.clone())),
            _ => std::mem::forget(self),
        }
        answer
    }

    /// Only then the pace is told: a caller that gives up says nothing about the server.
    fn failed(self, error: &BackendError) {
        if self.client.state().count == self.count {
            let runtime = TokioRuntime::new(self.client.home.clone());
            self.client.server(self.count).left(&runtime, error);
        }
    }
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        let mut state = self.client.state();
        if state.count == self.count {
            state.count += 1;
            state.channel = None;
        }
    }
}

/// Whether the server has refused a request, and executed nothing. One for which it has no space may have been executed.
pub(crate) fn is_refusal(status: &Status) -> bool {
    let is_answer = status.source().is_none();
    let is_too_large = status
        .message()
        .starts_with("grpc: received message larger");
    is_answer
        && match status.code() {
            Code::InvalidArgument
            | Code::NotFound
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::Unimplemented
            | Code::Unauthenticated => true,
            Code::ResourceExhausted => is_too_large,
            _ => false,
        }
}

/// Whether the server wants a new login: the token has expired, or users have changed.
fn has_logged_out(status: &Status) -> bool {
    let is_old = status.message().ends_with("revision of auth store is old");
    is_refusal(status) && (status.code() == Code::Unauthenticated || is_old)
}

fn was_not_sent(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<ConnectError>() || error.is::<Closed>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use leasehold_test_servers::{EtcdServer, eventually};

    use super::*;

    /// Otherwise, many clients whose calls are shorter than a login would log in forever.
    #[tokio::test]
    async fn login_goes_on_without_its_callers() {
        let server = EtcdServer::start();
        for command in [
            "user add root:root",
            "user grant-role root root",
            "auth enable",
        ] {
            let words: Vec<_> = command.split(' ').collect();
            server.execute(&words);
        }
        let url = server.url().replace("etcd://", "etcd://root:root@");
        let target = Target::of(&url, &Certificates::new()).expect("a URL");
        let client = Client::new(target, Handle::current());
        let client = Arc::new(client);
        let login = client.target.login.as_ref().expect("a login");
        // Each caller gives up at once.
        let has_token = async || matches!(client.token(login).now_or_never(), Some(Ok(_)));
        assert!(!has_token().await);
        eventually("the client is logged in", has_token).await;
    }
}
