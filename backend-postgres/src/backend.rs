//! The backend: a store, and a second one for renewals.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use leasehold_api::{LockBackend, TokioRuntime, forward_lock_backend};
use leasehold_store::StoreBackend;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use crate::connection::{Managed, Shared};
use crate::options::{ConnectError, Options};
use crate::store::PostgresStore;

/// The application name of the connections, unless the URL has one.
const APPLICATION: &str = "leasehold";

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
    shared: Arc<Shared>,
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
    /// If you drop the future, the connection is closed.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::connect_with(url, Options::new()).await
    }

    /// Connects to the server of a URL. The text may also be `host=/run/postgresql user=locks`.
    ///
    /// # Errors
    /// - [`ConnectError::Url`] if the URL cannot be read.
    /// - [`ConnectError::Invalid`] if an option is out of range, or the URL asks for TLS.
    /// - [`ConnectError::Failed`] if the server cannot be reached, refuses the user, or lacks the
    ///   [`SCHEMA`](crate::SCHEMA).
    ///
    /// # Cancel safety
    /// If you drop the future, the connection is closed.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn connect_with(url: &str, options: Options) -> Result<Self, ConnectError> {
        options.check()?;
        let mut config: Config = url.parse().map_err(ConnectError::Url)?;
        if config.get_ssl_mode() == SslMode::Require {
            let problem = "this version has no TLS".to_owned();
            let what = "sslmode";
            return Err(leasehold_api::InvalidInput::Setting { what, problem }.into());
        }
        if config.get_application_name().is_none() {
            config.application_name(APPLICATION);
        }
        let shared = Arc::new(Shared {
            config,
            options,
            runtime: TokioRuntime::current(),
            closed: watch::Sender::new(false),
        });
        let store = |handle| PostgresStore::new(Managed::new(Arc::clone(&shared), handle));
        let commands = store(Handle::current());
        commands.warm_up().await?;
        let mut backend = StoreBackend::new(commands).call_timeout(shared.options.call_timeout)?;
        if let Some(thread) = TokioRuntime::renewal_thread() {
            backend = backend.renewals(store(thread));
        }
        Ok(Self { backend, shared })
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockBackend for PostgresBackend {
    forward_lock_backend!(|postgres| postgres.backend; all);
}
