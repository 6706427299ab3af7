//! What a tutorial's lock does, and the backend around it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use leasehold_api::{
    Acquire, AcquireReply, Acquired, BackendError, Capabilities, ClockId, Contended, EndReason,
    FencingToken, HolderStatus, Key, LockBackend, Mode, Operation, Poll, PollReply, Queued,
    Release, ReleaseReply, Renew, RenewReply, Runtime, ServerTime, SessionId, Stamp, Stamped,
    TokioRuntime, bounds,
};
use redis::{Cmd, FromRedisValue, RedisError, cmd};

use crate::store::{Seen, Store, failed};

/// How often a blocked caller tries again, as in most tutorials.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// One attempt to hold a key, as a tutorial sees it.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) store: Store,
    pub(crate) key: String,
    /// The identifier that a tutorial draws for each acquire.
    pub(crate) id: String,
    /// The identifier of a caller that may acquire again while it holds the key.
    pub(crate) owner: String,
    pub(crate) lease: Duration,
    pub(crate) reads: bool,
}

impl Attempt {
    /// Sends a command, and reads the clock and the key's time to live in the same step.
    pub(crate) async fn see<T: FromRedisValue>(
        &self,
        command: &Cmd,
    ) -> Result<Seen<T>, RedisError> {
        self.store.see(&self.key, command).await
    }

    /// The lease as `PX` takes it, rounded up.
    pub(crate) fn lease_ms(&self) -> u64 {
        u64::try_from(self.lease.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
    }

    /// The key of another value that belongs to the lock.
    pub(crate) fn key_of(&self, what: &str) -> String {
        format!("{}:{what}", self.key)
    }

    /// `SET key id NX PX lease`.
    pub(crate) async fn set_nx_px(&self) -> Result<Seen<Option<u32>>, RedisError> {
        let mut set = cmd("SET");
        set.arg(&self.key).arg(&self.id);
        set.arg("NX").arg("PX").arg(self.lease_ms());
        let seen: Seen<Option<String>> = self.see(&set).await?;
        Ok(seen.map(|ok| ok.map(|_| 1)))
    }

    /// Compares the identifier and deletes the key, in a script.
    pub(crate) async fn compare_and_delete(&self) -> Result<Freed, RedisError> {
        let deleted = self.store.compare_and_delete(&self.key, &self.id).await?;
        Ok(Freed::if_true(deleted))
    }
}

/// The answer to a release.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Freed {
    /// The key is free.
    Yes,
    /// The caller still holds it this often.
    StillHeld(u32),
    /// The caller does not hold it.
    NotMine,
}

impl Freed {
    pub(crate) fn if_true(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::NotMine }
    }
}

/// A lock as a tutorial writes it, as far as it differs from `SET key id NX PX lease` with a script that
/// compares and deletes. Where the tutorial has a lease in seconds, the specimen counts in milliseconds,
/// because the cases do.
#[async_trait]
pub(crate) trait HandWritten: fmt::Debug + Send + Sync + 'static {
    /// Tries once. Returns how many holds the caller has, or `None` if somebody else has the key.
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        attempt.set_nx_px().await
    }

    /// Releases what the attempt holds.
    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        attempt.compare_and_delete().await
    }

    /// Whether the attempt holds the key. A lock without an owner cannot tell.
    async fn find(&self, _attempt: &Attempt) -> Result<Option<Seen<u32>>, RedisError> {
        Ok(None)
    }

    /// Extends the lease. `None` from the outside if the lock has no renewal, from the inside if
    /// the key is not the caller's.
    async fn renew(&self, _attempt: &Attempt) -> Result<Option<Seen<bool>>, RedisError> {
        Ok(None)
    }
}

/// What each session has sent, in all clients of a case.
pub(crate) type Watermarks = Arc<Mutex<BTreeMap<(Key, SessionId), u64>>>;

/// A tutorial's lock as a backend. It adds what the tutorial does not speak of: stamps, the delivery
/// window and watermarks (rule 12). So the cases show the faults that the tutorial *has*.
pub(crate) struct HandWrittenBackend {
    pub(crate) store: Store,
    pub(crate) lock: Box<dyn HandWritten>,
    pub(crate) capabilities: Capabilities,
    pub(crate) prefix: String,
    /// `None` for a specimen that shows what happens without them.
    pub(crate) watermarks: Option<Watermarks>,
    pub(crate) waiting: Mutex<BTreeMap<Operation, Attempt>>,
    pub(crate) runtime: Arc<TokioRuntime>,
    pub(crate) closed: AtomicBool,
}

impl fmt::Debug for HandWrittenBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HandWrittenBackend")
            .field(&self.lock)
            .finish()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stamped<T>(at: ServerTime, reply: T) -> Stamped<T> {
    let clock = ClockId::new(1);
    Stamped {
        stamp: Stamp { clock, at },
        reply,
    }
}

/// The token of a lock without fencing tokens: any number above 0.
const NO_FENCE: FencingToken = FencingToken::new(1);

/// A lock without a lease promises the caller the time that it asked for.
fn acquired(seen: Seen<u32>, attempt: &Attempt) -> Acquired {
    Acquired {
        token: NO_FENCE,
        holds: seen.value,
        remaining: seen.lasts.unwrap_or(attempt.lease),
    }
}

fn queued(waiter_remaining: Duration) -> Queued {
    Queued {
        ahead: 0,
        poll_after: TRY_AGAIN_AFTER,
        waiter_remaining,
    }
}

impl HandWrittenBackend {
    fn check_open(&self) -> Result<(), BackendError> {
        match self.closed.load(Ordering::Relaxed) {
            true => Err(BackendError::Closed),
            false => Ok(()),
        }
    }

    fn attempt(&self, key: &Key, operation: Operation, mode: Mode, lease: Duration) -> Attempt {
        let session: String = operation
            .session
            .as_bytes()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        Attempt {
            store: self.store.clone(),
            key: format!("{}{}", self.prefix, key.as_str()),
            id: format!("{session}-{}", operation.sequence),
            owner: format!("{session}/{}", operation.owner.as_u64()),
            lease,
            reads: mode == Mode::Shared,
        }
    }

    /// Notes that the session has sent this sequence. Returns whether it is new.
    fn note(&self, key: &Key, operation: Operation) -> bool {
        let Some(watermarks) = &self.watermarks else {
            return true;
        };
        let mut all = locked(watermarks);
        let highest = all.entry((key.clone(), operation.session)).or_default();
        let new = operation.sequence > *highest;
        *highest = operation.sequence.max(*highest);
        new
    }

    async fn acquire_one(&self, request: &Acquire) -> Result<Stamped<AcquireReply>, BackendError> {
        self.check_open()?;
        let attempt = self.attempt(&request.key, request.operation, request.mode, request.lease);
        let now = self.store.time().await.map_err(failed)?;
        let latest = now.saturating_add(bounds::DELIVERY_WINDOW);
        if request.deliver_before < now || request.deliver_before > latest {
            return Ok(stamped(now, AcquireReply::TooLate));
        }
        if !self.note(&request.key, request.operation) {
            return Ok(match self.lock.find(&attempt).await.map_err(failed)? {
                Some(seen) => stamped(seen.at, AcquireReply::Acquired(acquired(seen, &attempt))),
                None => stamped(now, AcquireReply::Stale),
            });
        }
        let seen = self.lock.acquire(&attempt).await.map_err(failed)?;
        // An attempt that was refused saw the key as it was when the step began.
        let at = if seen.value.is_some() {
            seen.at
        } else {
            seen.began
        };
        let reply = match (seen.value, request.wait) {
            (Some(holds), _) => AcquireReply::Acquired(acquired(seen.map(|_| holds), &attempt)),
            (None, Some(_)) => {
                locked(&self.waiting).insert(request.operation, attempt);
                AcquireReply::Queued(queued(request.spec.waiter_lease()))
            }
            (None, None) => AcquireReply::Contended(Contended {
                retry_after: seen
                    .lasts
                    .map_or(TRY_AGAIN_AFTER, |it| it.min(request.lease)),
                holder: None,
            }),
        };
        Ok(stamped(at, reply))
    }

    async fn poll_one(&self, request: &Poll) -> Result<Stamped<PollReply>, BackendError> {
        self.check_open()?;
        let waiting = locked(&self.waiting).get(&request.operation).cloned();
        let Some(attempt) = waiting else {
            let now = self.store.time().await.map_err(failed)?;
            return Ok(stamped(now, PollReply::Gone(EndReason::Unknown)));
        };
        if let Some(seen) = self.lock.find(&attempt).await.map_err(failed)? {
            return Ok(stamped(
                seen.at,
                PollReply::Acquired(acquired(seen, &attempt)),
            ));
        }
        let seen = self.lock.acquire(&attempt).await.map_err(failed)?;
        let reply = match seen.value {
            Some(holds) => PollReply::Acquired(acquired(seen.map(|_| holds), &attempt)),
            None => PollReply::Queued(queued(bounds::DEFAULT_WAITER_LEASE)),
        };
        Ok(stamped(seen.at, reply))
    }

    async fn renew_one(&self, request: &Renew) -> Result<Stamped<RenewReply>, BackendError> {
        self.check_open()?;
        let attempt = self.attempt(
            &request.key,
            request.operation,
            Mode::Exclusive,
            request.lease,
        );
        let Some(seen) = self.lock.renew(&attempt).await.map_err(failed)? else {
            return Err(BackendError::unsupported("renewal"));
        };
        let reply = match seen.value {
            true => RenewReply::Renewed {
                token: NO_FENCE,
                remaining: seen.lasts.unwrap_or(request.lease),
            },
            false => RenewReply::Lost(EndReason::Unknown),
        };
        Ok(stamped(seen.at, reply))
    }

    async fn release_one(&self, request: &Release) -> Result<Stamped<ReleaseReply>, BackendError> {
        self.check_open()?;
        self.note(&request.key, request.operation);
        let waited = locked(&self.waiting).remove(&request.operation);
        let (waits, attempt) = match waited {
            Some(attempt) => (true, attempt),
            None => {
                // Whether it reads shows in the value that the lock finds.
                let lease = bounds::DEFAULT_LEASE;
                let attempt = self.attempt(&request.key, request.operation, Mode::Exclusive, lease);
                (false, attempt)
            }
        };
        // Read after the release, it could be later than the next holder's acquire.
        let now = self.store.time().await.map_err(failed)?;
        let freed = self.lock.release(&attempt).await.map_err(failed)?;
        let reply = match freed {
            Freed::Yes => ReleaseReply::Released {
                holds_left: 0,
                holder: None,
            },
            Freed::StillHeld(holds_left) => ReleaseReply::Released {
                holds_left,
                holder: Some(HolderStatus {
                    mode: Mode::Exclusive,
                    token: NO_FENCE,
                    remaining: attempt.lease,
                }),
            },
            Freed::NotMine if waits => ReleaseReply::Left,
            Freed::NotMine => ReleaseReply::NotHeld(EndReason::Unknown),
        };
        Ok(stamped(now, reply))
    }
}

#[async_trait]
impl LockBackend for HandWrittenBackend {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        self.runtime.clone()
    }

    async fn hello(&self) -> Result<Stamp, BackendError> {
        self.check_open()?;
        let now = self.store.time().await.map_err(failed)?;
        Ok(stamped(now, ()).stamp)
    }

    async fn close(&self) -> Result<(), BackendError> {
        self.closed.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        let replies = stream::iter(batch).then(|request| self.acquire_one(request));
        replies.collect().await
    }

    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        let replies = stream::iter(batch).then(|request| self.poll_one(request));
        replies.collect().await
    }

    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        let replies = stream::iter(batch).then(|request| self.renew_one(request));
        replies.collect().await
    }

    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>> {
        let replies = stream::iter(batch).then(|request| self.release_one(request));
        replies.collect().await
    }
}
