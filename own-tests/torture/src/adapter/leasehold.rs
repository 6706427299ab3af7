//! The adapter of leasehold, also with one rule broken on purpose.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::backend::LockBackend;
use leasehold::fred_rs::FredBackend;
use leasehold::postgres::PostgresBackend;
use leasehold::quorum::Quorum;
use leasehold::redis_rs::{Options, RedisBackend};
use leasehold::{
    ConnectOptions, Error, Guard, LockClient, MultiGuard, Mutex, Outcome, ReadGuard, Upgrade,
    WriteGuard,
};

use crate::Failure;
use crate::adapter::{Adapter, planted};
use crate::protocol::{Acquire, Mode};

/// How late the copy of a release is.
const LATE: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    RedisRs,
    Fred,
    Postgres,
    Mysql,
    Etcd,
    Nats,
    Sqlite,
    S3,
    Quorum,
}

/// What is broken on purpose. Each must be convicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// A user who never looks at the deadline: assumption A4.
    IgnoresItsDeadline,
    /// A copy of each release that arrives late, and deletes the key whoever holds it: S3.
    ReleasesAnyone,
    /// A counter in the process instead of the server's tokens: rule 15.
    CountsItsOwnTokens,
    /// A user who remembers until when a guard is valid, on a clock that stands still during suspend: decision 0002.
    ForgetsSuspend,
    /// A user who believes in a guard for half a lease after its deadline: A4.
    BelievesTooLong,
    /// Readers under a key of their own, so that a writer doesn't see them: S1.
    ReadsPassAWriter,
    /// A user who takes a refused upgrade for a granted one: rule 6.
    UpgradesBesideReaders,
    /// Acquires always end without the lock. It breaks no promise of those that it gives, and shows none.
    NeverGrants,
    /// A machine whose clock runs at half its rate, which the controller gives it: A3.
    HasASlowClock,
    /// A grant that nobody seems to hear is published and taken back: decision 0037. Needs the mutants.
    TakesGrantsBack,
    /// The same, and subscriptions in a cluster don't follow their slots: decision 0038. Needs the mutants.
    SubscribesAtTheFormerPrimary,
    /// Two calls for one attempt of a quorum may decide differently: decision 0040. Needs the mutants.
    DecidesTwice,
}

pub(crate) struct Leasehold {
    locks: LockClient,
    /// For a broken lock that talks to the server by itself.
    url: String,
    broken: Option<Broken>,
    /// The locks that the process takes at the same time.
    others: usize,
    counted: Cell<u64>,
    /// The reentrant handles. Each is one owner.
    handles: RefCell<BTreeMap<String, Mutex>>,
}

trait AnyGuard: Any {
    /// Of several keys, that of the first one.
    fn token(&self) -> u64;
    fn is_valid(&self) -> bool;
    fn valid_for(&self) -> Duration;
    fn release(&self) -> Releasing<'_>;
}

type Releasing<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;

impl<K: 'static> AnyGuard for Guard<K> {
    fn token(&self) -> u64 {
        self.fencing_token().get()
    }

    fn is_valid(&self) -> bool {
        Self::is_valid(self)
    }

    fn valid_for(&self) -> Duration {
        Self::valid_for(self)
    }

    fn release(&self) -> Releasing<'_> {
        Box::pin(Self::release(self))
    }
}

impl AnyGuard for MultiGuard {
    fn token(&self) -> u64 {
        let first = self.fencing_tokens().next();
        first.expect("there is a key").1.get()
    }

    fn is_valid(&self) -> bool {
        Self::is_valid(self)
    }

    fn valid_for(&self) -> Duration {
        Self::valid_for(self)
    }

    fn release(&self) -> Releasing<'_> {
        Box::pin(async { Ok(Self::release(self).await?) })
    }
}

pub(crate) struct Held {
    guard: Box<dyn AnyGuard>,
    key: String,
    lease: Duration,
    token: u64,
    /// Until when the guard is valid, on a clock that stands still during suspend.
    until: Cell<Instant>,
}

pub(crate) async fn connect(
    backend: Backend,
    urls: &[String],
    lease: Duration,
) -> Result<Arc<dyn LockBackend>, Failure> {
    // There is at least one.
    let first = &urls[0];
    Ok(match backend {
        Backend::RedisRs => Arc::new(RedisBackend::connect(first).await?),
        Backend::Fred => Arc::new(FredBackend::connect(first).await?),
        Backend::Postgres => Arc::new(match urls {
            [direct, pooled] => match std::process::id() % 3 {
                0 => PostgresBackend::connect(direct).await?,
                1 => PostgresBackend::connect(pooled).await?,
                _ => {
                    let options = leasehold::postgres::Options::new().direct_url(direct);
                    PostgresBackend::connect_with(pooled, options).await?
                }
            },
            _ => PostgresBackend::connect(first).await?,
        }),
        // Without the feature of the service, the error names it.
        Backend::Mysql | Backend::Etcd | Backend::Nats | Backend::Sqlite | Backend::S3 => {
            ConnectOptions::new().backend(first).await?
        }
        Backend::Quorum => {
            // One of the servers may be down.
            let server = |url: &String| -> Result<RedisBackend, Failure> {
                let client = redis::Client::open(url.as_str())?;
                Ok(RedisBackend::from_client(&client, Options::new())?)
            };
            let servers = urls.iter().map(server).collect::<Result<Vec<_>, _>>()?;
            // The topology starts them with append-only files, and the nemesis kills only their processes.
            let quorum = Quorum::new(servers)?.max_lease(lease)?;
            Arc::new(quorum.restarts_keep_data(true))
        }
    })
}

impl Leasehold {
    /// Connects as the documentation shows.
    pub(crate) async fn connect(
        backend: Backend,
        urls: &[String],
        lease: Duration,
        broken: Option<Broken>,
    ) -> Result<Self, Failure> {
        broken.map_or(Ok(()), planted::plant)?;
        let others = if backend == Backend::Quorum { 2 } else { 0 };
        let backend = connect(backend, urls, lease).await?;
        Ok(Self {
            locks: LockClient::new(backend),
            url: urls[0].clone(),
            broken,
            others,
            counted: Cell::new(0),
            handles: RefCell::default(),
        })
    }

    /// Takes two other locks meanwhile, if the backend is a quorum. What several tasks of a process ask for at
    /// once goes to its servers together, and may outlive the call of one of them.
    fn take_others(&self, lease: Duration, wait: Duration) -> Result<(), Error> {
        for number in 0..self.others {
            let name = format!("beside-{}-{number}", std::process::id());
            let mutex = self.locks.mutex(name)?.lease(lease);
            // Its guard is dropped at once. Only the locks that the controller has asked for are judged.
            tokio::spawn(async move { mutex.try_lock_for(wait).await.map(drop) });
        }
        Ok(())
    }

    fn held(&self, ask: &Acquire, outcome: Outcome<impl AnyGuard>) -> Option<Held> {
        self.counted.set(self.counted.get() + 1);
        let guard = outcome.into_guard()?;
        let token = match self.broken {
            Some(Broken::NeverGrants) => return None,
            Some(Broken::CountsItsOwnTokens) => self.counted.get(),
            _ => guard.token(),
        };
        let until = Cell::new(Instant::now() + guard.valid_for());
        Some(Held {
            guard: Box::new(guard),
            key: ask.key.clone(),
            lease: ask.lease(),
            token,
            until,
        })
    }

    fn mutex(&self, ask: &Acquire) -> Result<Mutex, Error> {
        let mutex = self.locks.mutex(&ask.key)?.lease(ask.lease());
        if !ask.reentrant {
            return Ok(mutex);
        }
        let mut handles = self.handles.borrow_mut();
        Ok(match handles.get(&ask.key) {
            Some(handle) => handle.clone(),
            None => (handles.entry(ask.key.clone()))
                .or_insert(mutex.reentrant()?)
                .clone(),
        })
    }
}

impl Adapter for Leasehold {
    type Held = Held;

    async fn acquire(&self, ask: &Acquire) -> Result<Option<Held>, Failure> {
        // A wait of zero tries once.
        let (key, lease, wait) = (&ask.key, ask.lease(), ask.wait());
        Ok(match ask.mode {
            _ if !ask.also.is_empty() => {
                let keys = self.locks.mutexes([key].into_iter().chain(&ask.also))?;
                self.held(ask, keys.lease(lease).try_lock_for(wait).await?)
            }
            Mode::Mutex => {
                let mutex = self.mutex(ask)?;
                self.take_others(lease, wait)?;
                self.held(ask, mutex.try_lock_for(wait).await?)
            }
            Mode::Read => {
                let lock = match self.broken {
                    Some(Broken::ReadsPassAWriter) => format!("{key} for readers"),
                    _ => key.clone(),
                };
                let lock = self.locks.rw_lock(lock)?.lease(lease);
                self.held(ask, lock.try_read_for(wait).await?)
            }
            Mode::Write => {
                let lock = self.locks.rw_lock(key)?.lease(lease);
                self.held(ask, lock.try_write_for(wait).await?)
            }
            Mode::Permit(permits) => {
                let semaphore = self.locks.semaphore(key, permits)?.lease(lease);
                self.held(ask, semaphore.try_acquire_for(wait).await?)
            }
        })
    }

    fn token(&self, held: &Held) -> Option<u64> {
        Some(held.token)
    }

    async fn check(&self, held: &Held) -> Result<bool, Failure> {
        if held.guard.is_valid() {
            held.until.set(Instant::now() + held.guard.valid_for());
            return Ok(true);
        }
        Ok(match self.broken {
            Some(Broken::IgnoresItsDeadline) => true,
            Some(Broken::ForgetsSuspend) => Instant::now() < held.until.get(),
            Some(Broken::BelievesTooLong) => Instant::now() < held.until.get() + held.lease / 2,
            _ => false,
        })
    }

    async fn release(&self, held: Held) -> Result<bool, Failure> {
        let released = was_held(held.guard.release().await)?;
        if self.broken == Some(Broken::ReleasesAnyone) {
            let redis = redis::Client::open(self.url.as_str())?;
            tokio::spawn(delete_late(redis, held.key));
        }
        Ok(released)
    }

    async fn convert(&self, mut held: Held, to: Mode) -> Result<(Held, bool), Failure> {
        let guard: Box<dyn Any> = held.guard;
        let mut converted = true;
        held.guard = if to == Mode::Read {
            let writer = guard.downcast::<WriteGuard>();
            Box::new(writer.map_err(|_| "not a writer")?.downgrade().await?)
        } else {
            let reader = guard.downcast::<ReadGuard>();
            match reader.map_err(|_| "not a reader")?.try_upgrade().await? {
                Upgrade::Upgraded(writer) => Box::new(writer),
                Upgrade::NotSoleHolder(reader) => {
                    converted = self.broken == Some(Broken::UpgradesBesideReaders);
                    Box::new(reader)
                }
            }
        };
        held.token = held.guard.token();
        Ok((held, converted))
    }
}

/// Whether the release found the lock held.
pub(super) fn was_held<T>(release: Result<T, Error>) -> Result<bool, Error> {
    match release {
        Ok(_) => Ok(true),
        Err(Error::Lost { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn delete_late(redis: redis::Client, key: String) {
    tokio::time::sleep(LATE).await;
    // An error only means that this copy gets lost.
    if let Ok(mut connection) = redis.get_multiplexed_async_connection().await {
        let mut delete = redis::cmd("DEL");
        delete.arg(format!("leasehold:{{{key}}}"));
        let _ = delete.exec_async(&mut connection).await;
    }
}
