//! The adapter of locks as tutorials write them. They are used as the tutorials do: try, pause, try again;
//! work; release, also if the lease is over.

use std::cell::Cell;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::backend::LockBackend;
use leasehold_api::{
    AcquireReply, Key, LockSpec, Mode as LockMode, Operation, OwnerId, Release, ReleaseReply,
    SessionId,
};
use leasehold_specimens::Specimen;

use super::Adapter;
use crate::Failure;
use crate::protocol::Acquire;

const RETRY: Duration = Duration::from_millis(100);
/// How long an attempt may be on its way.
const DELIVERED_WITHIN: Duration = Duration::from_secs(9);

pub(crate) struct Tutorial {
    backend: Arc<dyn LockBackend>,
    session: SessionId,
    attempts: Cell<u64>,
}

pub(crate) struct Held {
    release: Release,
    until: Instant,
}

impl Tutorial {
    pub(crate) async fn connect(specimen: &'static Specimen, url: &str) -> Result<Self, Failure> {
        let clients = specimen.clients(url, "tutorial:");
        let mut session = [0; 16];
        session[..4].copy_from_slice(&std::process::id().to_be_bytes());
        Ok(Self {
            backend: clients.connect().await?,
            session: SessionId::from_bytes(session),
            attempts: Cell::new(0),
        })
    }

    fn operation(&self) -> Operation {
        let sequence = self.attempts.get() + 1;
        self.attempts.set(sequence);
        Operation {
            session: self.session,
            sequence,
            owner: OwnerId::from_u64(sequence),
        }
    }

    async fn attempt(&self, key: &Key, lease: Duration) -> Result<Option<Held>, Failure> {
        let operation = self.operation();
        let before = self.backend.hello().await?.at;
        let before = before.saturating_add(DELIVERED_WITHIN);
        let (spec, mode) = (LockSpec::mutex(), LockMode::Exclusive);
        let request =
            leasehold_api::Acquire::new(key.clone(), spec, mode, operation, lease, before)?;
        let until = Instant::now() + lease;
        let answer = self.backend.acquire(from_ref(&request)).await.remove(0)?;
        let held = matches!(answer.reply, AcquireReply::Acquired(_));
        Ok(held.then(|| Held {
            release: Release::new(key.clone(), operation),
            until,
        }))
    }
}

impl Adapter for Tutorial {
    type Held = Held;

    async fn acquire(&self, ask: &Acquire) -> Result<Option<Held>, Failure> {
        let key = Key::new(&*ask.key)?;
        let until = Instant::now() + ask.wait();
        loop {
            let held = self.attempt(&key, ask.lease()).await?;
            if held.is_some() || Instant::now() + RETRY >= until {
                return Ok(held);
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn check(&self, held: &Held) -> Result<bool, Failure> {
        Ok(Instant::now() < held.until)
    }

    async fn release(&self, held: Held) -> Result<bool, Failure> {
        let answer = self.backend.release(&[held.release]).await.remove(0)?;
        Ok(matches!(answer.reply, ReleaseReply::Released { .. }))
    }
}
