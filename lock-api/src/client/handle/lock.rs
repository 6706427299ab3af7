//! The lock that every handle wraps: key, kind, owner and options.

use std::time::Duration;

use crate::client::acquire::request::{Ask, Owner, WaitLimit};
use crate::client::acquire::wait::acquire;
use crate::client::core::ClientHandle;
use crate::client::error::Error;
use crate::client::guard::Guard;
use crate::client::outcome::Outcome;
use crate::client::state::settings::LockOptions;
use crate::id::{Key, OwnerId};
use crate::reply::Refused;
use crate::request::{Kind, LockSpec, Mode};
use crate::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub(crate) client: Arc<ClientHandle>,
    pub(crate) key: Key,
    pub(crate) spec: LockSpec,
    owner: Owner,
    pub(crate) options: LockOptions,
}

impl Lock {
    pub(crate) fn new(
        client: &Arc<ClientHandle>,
        key: &str,
        kind: Kind,
        permits: u32,
    ) -> Result<Self, Error> {
        client.ensure_open()?;
        match kind {
            Kind::Mutex => {}
            Kind::RwLock => Error::require(client.capabilities.rw_locks, "reader/writer locks")?,
            Kind::Semaphore => Error::require(client.capabilities.semaphores, "semaphores")?,
        }
        let key = Key::new(key)?;
        let spec = match kind {
            Kind::Mutex => LockSpec::mutex(),
            Kind::RwLock => LockSpec::rw_lock(),
            Kind::Semaphore => LockSpec::semaphore(permits).map_err(|error| error.on(&key))?,
        };
        Ok(Self {
            client: Arc::clone(client),
            key,
            spec,
            owner: Owner::Fresh,
            options: client.settings.options.clone(),
        })
    }

    /// Gives the handle and its clones one owner.
    pub(crate) fn reentrant(mut self) -> Result<Self, Error> {
        Error::require(self.client.capabilities.reentrancy, "reentrant locks")?;
        if matches!(self.owner, Owner::Fresh) {
            let id = OwnerId::from_u64(self.client.runtime.random_u64());
            self.owner = Owner::reentrant(id);
        }
        Ok(self)
    }

    /// Takes the lock. Checks the input before any I/O.
    async fn acquire<K>(&self, mode: Mode, limit: WaitLimit) -> Result<Outcome<Guard<K>>, Error> {
        let outcome = acquire(self.ask(mode, &self.options)?, limit).await?;
        Ok(outcome.map(Guard::new))
    }

    /// Checks the input and returns the request.
    pub(crate) fn ask<'a>(
        &'a self,
        mode: Mode,
        options: &'a LockOptions,
    ) -> Result<Ask<'a>, Error> {
        options
            .check(self.client.capabilities)
            .and_then(|()| self.spec.check_mode(mode))
            .map_err(|error| error.on(&self.key))?;
        Ok(Ask {
            client: &self.client,
            key: &self.key,
            spec: self.spec,
            mode,
            owner: &self.owner,
            options,
        })
    }

    /// Returns how much of the capacity is free now.
    pub(crate) async fn available(&self) -> Result<u32, Error> {
        let asked = self.spec;
        let reply = self.client.inspect(&self.key).await?.reply;
        match reply.spec {
            Some(lives_with) if lives_with != asked => Err(Error::Refused {
                key: self.key.clone(),
                asked,
                reason: Refused::Mismatch { lives_with },
            }),
            _ => Ok(asked.capacity().saturating_sub(reply.weight)),
        }
    }

    /// Takes the lock if it is free within `time`.
    pub(crate) async fn acquire_within<K>(
        &self,
        mode: Mode,
        time: Duration,
    ) -> Result<Outcome<Guard<K>>, Error> {
        self.acquire(mode, WaitLimit::Within(time)).await
    }

    pub(crate) async fn wait_for<K>(&self, mode: Mode) -> Result<Guard<K>, Error> {
        match self.acquire(mode, WaitLimit::Forever).await? {
            Outcome::Acquired(guard) => Ok(guard),
            // It can't happen without a deadline. An error is better than a panic.
            Outcome::Contended(_) => Err(Error::unavailable("the wait ended without the lock")),
        }
    }
}
