//! The lock that every handle wraps: key, kind, owner and options.

use crate::client::acquire::request::{Ask, Owner, WaitLimit};
use crate::client::acquire::wait::acquire;
use crate::client::core::ClientHandle;
use crate::client::error::{Error, Outcome};
use crate::client::guard::Guard;
use crate::client::state::settings::Options;
use crate::error::InvalidInput;
use crate::id::{Key, OwnerId};
use crate::request::{Kind, Mode};
use crate::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub(crate) client: Arc<ClientHandle>,
    pub(crate) key: Key,
    kind: Kind,
    permits: u32,
    owner: Owner,
    pub(crate) options: Options,
}

impl Lock {
    pub(crate) fn new(
        client: &Arc<ClientHandle>,
        key: &str,
        kind: Kind,
        permits: u32,
        reentrant: bool,
    ) -> Result<Self, Error> {
        client.ensure_open()?;
        let capabilities = client.capabilities;
        let unsupported = match kind {
            Kind::RwLock if !capabilities.rw_locks => Some("reader/writer locks"),
            Kind::Semaphore if !capabilities.semaphores => Some("semaphores"),
            _ if reentrant && !capabilities.reentrancy => Some("reentrant locks"),
            Kind::Mutex | Kind::RwLock | Kind::Semaphore => None,
        };
        if let Some(what) = unsupported {
            return Err(Error::Unsupported { what });
        }
        let owner = if reentrant {
            Owner::reentrant(OwnerId::from_u64(client.runtime.random_u64()))
        } else {
            Owner::Fresh
        };
        let lock = Self {
            client: Arc::clone(client),
            key: Key::new(key)?,
            kind,
            permits,
            owner,
            options: Options::from_settings(&client.settings),
        };
        lock.options.spec(kind, permits, &client.settings)?;
        Ok(lock)
    }

    pub(crate) const fn permits(&self) -> u32 {
        self.permits
    }

    /// Takes the lock. Checks the input before any I/O.
    pub(crate) async fn acquire<K>(
        &self,
        mode: Mode,
        limit: WaitLimit,
    ) -> Result<Outcome<Guard<K>>, Error> {
        let outcome = acquire(self.ask(mode, &self.options)?, limit).await?;
        Ok(outcome.map(Guard::new))
    }

    /// Checks the input and returns the request.
    pub(crate) fn ask<'a>(
        &'a self,
        mode: Mode,
        options: &'a Options,
    ) -> Result<Ask<'a>, InvalidInput> {
        let spec = options.spec(self.kind, self.permits, &self.client.settings)?;
        spec.check_mode(mode)?;
        Ok(Ask {
            client: &self.client,
            key: &self.key,
            spec,
            mode,
            owner: &self.owner,
            options,
        })
    }

    /// Takes the lock. Waits without a time limit.
    pub(crate) async fn wait_for<K>(&self, mode: Mode) -> Result<Guard<K>, Error> {
        match self.acquire(mode, WaitLimit::Forever).await? {
            Outcome::Acquired(guard) => Ok(guard),
            // Neither can happen without a deadline. An error is better than a panic.
            Outcome::Held(_) | Outcome::TimedOut(_) => Err(Error::Unavailable {
                reason: "the wait ended without the lock".into(),
                cause: None,
            }),
        }
    }
}
