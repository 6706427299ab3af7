//! The backend: a store, and a second one for renewals.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join;
use leasehold_api::{
    BackendError, BoxFuture, ConnectError, InvalidInput, LockBackend, Runtime, TokioRuntime,
    forward_lock_backend,
};
use leasehold_store::StoreBackend;
use tokio::runtime::Handle;
use tokio_postgres::config::{SslMode, SslNegotiation};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Config, NoTls, Socket};

use crate::connection::{Connection, ManagedConnection};
use crate::connector::{Connector, config_of, connector_of};
use crate::listen;
use crate::options::Options;
use crate::pooler;
use crate::shared::{Endpoint, Shared};
use crate::store::PostgresStore;

/// A [`LockBackend`] on a PostgreSQL server, with all capabilities but
/// [`batches`](leasehold_api::Capabilities::batches).
///
/// It has two connections, and one for each session that listens. Lost connections are replaced. Renewals
/// have a connection on a separate thread, so that a program that blocks its runtime keeps its locks.
///
/// # Cancel safety
/// Dropping the future of a command abandons the call. The server may still execute it.
pub struct PostgresBackend {
    backend: StoreBackend<PostgresStore>,
    pub(crate) shared: Arc<Shared>,
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The configuration contains a password.
        f.debug_struct("PostgresBackend")
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

impl PostgresBackend {
    /// Connects to the server of a URL, such as `postgres://user:password@host/database`, with the default
    /// options.
    ///
    /// # Errors
    /// The errors of [`connect_with`](Self::connect_with).
    ///
    /// # Cancel safety
    /// If you drop the future, the connections are closed.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Examples
    /// ```no_run
    /// use leasehold_postgres::PostgresBackend;
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let url = "postgres://locks:secret@db.example/shop?sslmode=require";
    /// let backend = PostgresBackend::connect(url).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::connect_with(url, Options::new()).await
    }

    /// Connects to the server of a URL. The text may also be `host=/run/postgresql user=locks`. See
    /// [TLS](crate#tls) for the values of `sslmode`. A URL with `pgbouncer=true` is that of a
    /// [pooler](Options::pooled()).
    ///
    /// # Errors
    /// - [`ConnectError::Invalid`] if a URL cannot be read, an option is out of range, a certificate cannot be
    ///   used, or the URL requires TLS and the feature `tls-rustls` is off or this machine has no root
    ///   certificates.
    /// - [`ConnectError::Backend`] if the server cannot be reached, refuses the user, has a certificate that
    ///   is not valid, or lacks the [`SCHEMA`](crate::SCHEMA), or if a
    ///   [connection pooler](crate#connection-poolers) shares its connections and the URL doesn't say so. With
    ///   [`Options::direct_url`], also if that server cannot be used, is not the one behind the pooler, has another
    ///   database, or is a pooler that shares connections.
    ///
    /// Each connection, with its TLS handshake, is limited by
    /// [`connect_timeout`](Options::connect_timeout). A server that can't be reached is tried again for
    /// [`initial_connect_timeout`](Options::initial_connect_timeout).
    ///
    /// # Cancel safety
    /// If you drop the future, the connections are closed.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Examples
    /// ```no_run
    /// use leasehold_postgres::{Options, PostgresBackend};
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let options = Options::new().key_prefix("billing:");
    /// let backend = PostgresBackend::connect_with("host=/run/postgresql dbname=shop", options).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect_with(url: &str, options: Options) -> Result<Self, ConnectError> {
        Self::start(of_url(url, options)?).await
    }

    /// Connects with a configuration and a maker of TLS streams of your own. These are the two values that
    /// a pool of `deadpool-postgres` or `bb8-postgres` is made from, and any TLS library works:
    /// `postgres-openssl`, `postgres-native-tls`, `tokio-postgres-rustls`, or [`NoTls`].
    ///
    /// The backend opens its own connections, because a subscription and the renewals each need one. Whether
    /// certificates are verified is up to the maker of TLS streams.
    ///
    /// # Errors
    /// Those of [`connect_with`](Self::connect_with). [`ConnectError::Invalid`] also if the options have
    /// certificates: give them to your TLS library.
    ///
    /// # Cancel safety
    /// If you drop the future, the connections are closed.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Examples
    /// ```no_run
    /// use leasehold_postgres::tokio_postgres::{Config, NoTls};
    /// use leasehold_postgres::{Options, PostgresBackend};
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut config = Config::new();
    /// config.host("db.example").user("locks").dbname("shop").password(std::env::var("PASSWORD")?);
    /// // let pool = deadpool_postgres::Manager::new(config.clone(), NoTls) …
    /// let backend = PostgresBackend::from_config(config, NoTls, Options::new()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn from_config<T>(
        config: Config,
        tls: T,
        options: Options,
    ) -> Result<Self, ConnectError>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        options.check()?;
        let certificates = &options.certificates;
        certificates.check_unused("give them to the maker of TLS streams")?;
        let connector = connector_of(tls);
        let endpoint = |config| Endpoint::new(config, Arc::clone(&connector));
        let direct = direct_config(&options)?.map(endpoint);
        Self::start(Shared::new(endpoint(config), direct, options)).await
    }

    /// Creates a backend for the server of a URL that need not be reachable yet. The first call connects.
    ///
    /// Use it where a program must start without the server, for example for one of the servers of a quorum.
    /// The URL is that of [`connect_with`](Self::connect_with), which also finds a wrong password, a missing
    /// schema and a [connection pooler](crate#connection-poolers) at once. Here the first call reports the
    /// former two, and a pooler that shares connections is not noticed, neither at the URL, unless that has
    /// `pgbouncer=true`, nor at [`Options::direct_url`].
    ///
    /// # Errors
    /// [`ConnectError::Invalid`], as [`connect_with`](Self::connect_with).
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Examples
    /// ```no_run
    /// use leasehold_postgres::{Options, PostgresBackend};
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let backend = PostgresBackend::connect_lazy("postgres://locks@db.example/shop", Options::new())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect_lazy(url: &str, options: Options) -> Result<Self, ConnectError> {
        let shared = of_url(url, options)?;
        TokioRuntime::check_clock()?;
        Self::on(shared, None)
    }

    /// Boxed, so that its code is compiled once, here. Each crate that awaits an `async fn` compiles it again, with
    /// all that it awaits.
    #[inline(never)]
    fn start(shared: Arc<Shared>) -> BoxFuture<'static, Result<Self, ConnectError>> {
        Box::pin(async move {
            TokioRuntime::check_clock()?;
            let (handle, thread) = (Handle::current(), TokioRuntime::renewal_thread());
            let open = open_in_time(&shared, &handle, thread.as_ref().unwrap_or(&handle)).await?;
            Self::on(shared, Some(open))
        })
    }

    /// `open` has the connections for commands and renewals, if they are open already.
    fn on(
        shared: Arc<Shared>,
        open: Option<(Connection, Connection)>,
    ) -> Result<Self, ConnectError> {
        let (handle, thread) = (Handle::current(), TokioRuntime::renewal_thread());
        let (commands, renewals) = open.unzip();
        let store = |handle, open| {
            let connection = ManagedConnection::new(Arc::clone(&shared), handle, open);
            PostgresStore::new(connection)
        };
        let commands = store(handle, commands);
        let mut backend = StoreBackend::new(commands).call_timeout(shared.options.call_timeout)?;
        if let Some(thread) = thread {
            backend = backend.renewals(store(thread, renewals));
        }
        Ok(Self { backend, shared })
    }
}

/// Opens the connections, and tries again after transient errors, for
/// [`initial_connect_timeout`](Options::initial_connect_timeout). An attempt that has begun is not cut short,
/// because only its own error says what is wrong.
async fn open_in_time(
    shared: &Arc<Shared>,
    commands: &Handle,
    renewals: &Handle,
) -> Result<(Connection, Connection), BackendError> {
    let limit = shared.options.initial_connect_timeout;
    let until = shared.runtime.now().saturating_add(limit);
    let (pace, runtime) = (&shared.endpoint.pace, &shared.runtime);
    loop {
        let opening = open_two(shared, commands, renewals);
        let error = match pace.connect(runtime, Duration::MAX, opening).await {
            Err(error) if error.is_transient() => error,
            done => return done,
        };
        let pause = pace.pause_left(runtime.now());
        if runtime.now().saturating_add(pause) >= until {
            return Err(error);
        }
        runtime.timer(pause).await;
    }
}

/// Opens a connection for commands and one for renewals. Before it changes any setting, it checks that no
/// pooler shares them, unless it knows of one.
async fn open_two(
    shared: &Arc<Shared>,
    commands: &Handle,
    renewals: &Handle,
) -> Result<(Connection, Connection), BackendError> {
    let endpoint = &shared.endpoint;
    let connecting = pooler::connect_two(shared, endpoint, [commands, renewals]);
    let [(first, attempt), (second, attempt_of_second)] = connecting.await?;
    if !shared.is_pooled() {
        pooler::check(&first, &second, shared, endpoint).await?;
    }
    let both = try_join(
        Connection::prepare(first, attempt, shared),
        Connection::prepare(second, attempt_of_second, shared),
    );
    let both = shared.in_time(endpoint, "answer", both).await?;
    listen::check_direct(shared, commands, &both.0).await?;
    Ok(both)
}

/// What the connections to a URL and to [`Options::direct_url`] share.
fn of_url(url: &str, mut options: Options) -> Result<Arc<Shared>, InvalidInput> {
    options.check()?;
    let (config, pooled) = config_of("URL", url)?;
    options.pooled |= pooled;
    let direct = direct_config(&options)?;
    let configs = std::iter::once(&config).chain(&direct);
    if !configs
        .clone()
        .any(|config| config.get_ssl_mode() == SslMode::Require)
    {
        check_no_certificates(&options)?;
    }
    let endpoint = |config: Config| {
        let connector = connector(&config, &options)?;
        Ok::<_, InvalidInput>(Endpoint::new(config, connector))
    };
    let (endpoint, direct) = (endpoint(config)?, direct.map(endpoint).transpose()?);
    Ok(Shared::new(endpoint, direct, options))
}

fn direct_config(options: &Options) -> Result<Option<Config>, InvalidInput> {
    let Some(url) = &options.direct_url else {
        return Ok(None);
    };
    let setting = "direct_url";
    match config_of(setting, url.text())? {
        (config, false) => Ok(Some(config)),
        (_, true) => {
            let problem = "it leads to a pooler, says pgbouncer=true";
            Err(InvalidInput::setting(setting, problem))
        }
    }
}

fn check_no_certificates(options: &Options) -> Result<(), InvalidInput> {
    let certificates = &options.certificates;
    certificates.check_unused("they need sslmode=require in the URL")
}

/// The connector for a configuration: with TLS, unless no server can have it.
fn connector(config: &Config, options: &Options) -> Result<Connector, InvalidInput> {
    let (mode, negotiation) = (config.get_ssl_mode(), config.get_ssl_negotiation());
    if mode == SslMode::Prefer {
        // A server without TLS would be used in plain text.
        check_no_certificates(options)?;
        if negotiation == SslNegotiation::Direct {
            let problem = "direct needs sslmode=require";
            return Err(InvalidInput::setting("sslnegotiation", problem));
        }
    }
    #[cfg(feature = "tls-rustls")]
    if mode != SslMode::Disable {
        let requires_tls = mode == SslMode::Require;
        let tls = crate::tls::Tls::new(&options.certificates, requires_tls)?;
        return Ok(connector_of(tls));
    }
    if mode == SslMode::Require {
        let problem = "`require` needs the feature tls-rustls";
        return Err(InvalidInput::setting("sslmode", problem));
    }
    Ok(connector_of(NoTls))
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockBackend for PostgresBackend {
    forward_lock_backend!(|postgres| postgres.backend; all);
}
