//! A store without a clock, in memory and in virtual time, and the network to it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_channel::mpsc::{UnboundedSender, unbounded};
use futures_channel::oneshot;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use leasehold_api::{BackendError, Runtime, SessionId};
use leasehold_store::{Object, Observed, Pushed, Put, StoreBackend, Tag, TagStore};
use tokio::time::Instant;

use crate::machine::{Machine, Program};

/// What happens to a write, in 100.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// A call is not executed.
    pub(crate) unavailable: u64,
    /// A write is applied, and its answer is lost.
    pub(crate) lost: u64,
    /// A write arrives up to half an hour later, as from a server that was stopped. Its answer is lost.
    pub(crate) late: u64,
    /// A call takes up to a second.
    pub(crate) slow: u64,
}

/// The times of day of the machines.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clocks {
    /// How far they are apart: each is never further off than half of this.
    pub(crate) apart: Duration,
    /// What the programs are told of it.
    pub(crate) declared: Option<Duration>,
    /// Some programs are told nothing, and some clocks are twice as far off, which their programs are told.
    pub(crate) differ: bool,
}

impl Clocks {
    /// Those of a machine.
    pub(crate) fn of_machine(self, random: u64) -> (Duration, Option<Duration>) {
        match random % 4 {
            0 if self.differ => (self.apart, None),
            1 if self.differ => (self.apart * 2, self.declared.map(|it| it * 2)),
            _ => (self.apart, self.declared),
        }
    }
}

#[derive(Debug)]
pub(crate) struct World {
    inner: Mutex<Inner>,
    pub(crate) started: Instant,
    pub(crate) pushes: bool,
    pub(crate) removes: bool,
    pub(crate) clocks: Clocks,
}

#[derive(Debug, Default)]
struct Inner {
    objects: BTreeMap<String, Object>,
    tag: u64,
    listeners: BTreeMap<SessionId, Vec<UnboundedSender<Pushed>>>,
    random: u64,
    faults: Faults,
    removed: u64,
}

impl World {
    pub(crate) fn new(seed: u64, faults: Faults) -> Arc<Self> {
        Self::with_clocks(seed, faults, Clocks::default())
    }

    pub(crate) fn with_clocks(seed: u64, faults: Faults, clocks: Clocks) -> Arc<Self> {
        let inner = Inner {
            random: seed,
            faults,
            ..Inner::default()
        };
        Arc::new(Self {
            inner: Mutex::new(inner),
            started: Instant::now(),
            pushes: seed.is_multiple_of(2),
            removes: seed % 4 < 2,
            clocks,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// How many objects were removed.
    pub(crate) fn removed(&self) -> u64 {
        self.lock().removed
    }

    pub(crate) fn random(&self) -> u64 {
        let mut inner = self.lock();
        inner.random = inner.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = inner.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn up_to(&self, limit: Duration) -> Duration {
        let micros = u64::try_from(limit.as_micros()).expect("short");
        Duration::from_micros(self.random() % (micros + 1))
    }

    pub(crate) fn get(&self, name: &str) -> Option<Object> {
        self.lock().objects.get(name).cloned()
    }

    /// Replaces an object, whatever its tag is.
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) {
        let (name, bytes) = (name.to_owned(), bytes.to_vec());
        let expected = self.get(&name).map(|object| object.tag);
        let texts = Vec::new();
        let sent = Sent {
            name,
            expected,
            unchanged: None,
            bytes,
            texts,
        };
        self.apply(&sent);
    }

    async fn travel(&self) {
        let slow = self.random() % 100 < self.lock().faults.slow;
        let limit = Duration::from_millis(if slow { 500 } else { 2 });
        tokio::time::sleep(self.up_to(limit)).await;
    }

    /// Applies a write, if the tag is the expected one.
    fn apply(&self, sent: &Sent) -> Option<Tag> {
        let mut inner = self.lock();
        let found = inner.objects.get(&sent.name).map(|object| &object.tag);
        if found != sent.expected.as_ref() {
            return None;
        }
        if let Some((other, expected)) = &sent.unchanged {
            let found = inner.objects.get(other).map(|object| &object.tag);
            if found != expected.as_ref() {
                return None;
            }
        }
        inner.tag += 1;
        let tag = Tag::new(inner.tag.to_be_bytes());
        let object = Object::new(sent.bytes.clone(), tag.clone());
        inner.objects.insert(sent.name.clone(), object);
        for (to, text) in &sent.texts {
            for listener in inner.listeners.get(to).into_iter().flatten() {
                // Fails if the session is gone.
                let _ = listener.unbounded_send(Pushed::Text(text.clone()));
            }
        }
        Some(tag)
    }
}

/// A write on its way.
#[derive(Debug)]
struct Sent {
    name: String,
    expected: Option<Tag>,
    unchanged: Option<(String, Option<Tag>)>,
    bytes: Vec<u8>,
    texts: Vec<(SessionId, String)>,
}

/// The connection of a program.
#[derive(Debug)]
pub(crate) struct Connection(Arc<Machine>);

impl Connection {
    pub(crate) fn backend(machine: &Arc<Machine>) -> StoreBackend<Observed<Self>> {
        let observed = Observed::new(Self(Arc::clone(machine)));
        StoreBackend::new(observed.max_clock_skew(machine.declared))
    }

    fn draws(&self, share: impl Fn(&Faults) -> u64) -> bool {
        let drawn = self.0.world.random() % 100;
        drawn < share(&self.0.world.lock().faults)
    }

    /// Does something on the server, also if the machine is stopped meanwhile.
    async fn send<T: Send + 'static>(
        &self,
        work: impl FnOnce(&World) -> T + Send + 'static,
    ) -> Result<T, BackendError> {
        let world = Arc::clone(&self.0.world);
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            world.travel().await;
            let done = work(&world);
            world.travel().await;
            // Nobody may wait for it any more.
            let _ = answer.send(done);
        });
        answered
            .await
            .map_err(|_| BackendError::outcome_unknown("no answer"))
    }

    fn refuse_some(&self) -> Result<(), BackendError> {
        match self.draws(|faults| faults.unavailable) {
            true => Err(BackendError::unavailable("no connection")),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl TagStore for Connection {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(Program(Arc::clone(&self.0)))
    }

    async fn read(&self, name: &str) -> Result<Option<Object>, BackendError> {
        self.refuse_some()?;
        let name = name.to_owned();
        self.send(move |world| world.get(&name)).await
    }

    async fn write(&self, put: Put<'_>) -> Result<Option<Tag>, BackendError> {
        self.refuse_some()?;
        let sent = Sent {
            name: put.name.to_owned(),
            expected: put.expected.cloned(),
            unchanged: put
                .unchanged
                .map(|(name, tag)| (name.to_owned(), tag.cloned())),
            bytes: put.bytes.to_vec(),
            texts: put.texts.to_vec(),
        };
        if self.draws(|faults| faults.late) {
            let world = Arc::clone(&self.0.world);
            let delay = world.up_to(Duration::from_secs(1_800));
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                world.apply(&sent);
            });
            return Err(BackendError::outcome_unknown("no answer"));
        }
        let lost = self.draws(|faults| faults.lost);
        let tag = self.send(move |world| world.apply(&sent)).await?;
        match lost {
            true => Err(BackendError::outcome_unknown("the answer was lost")),
            false => Ok(tag),
        }
    }

    async fn names(
        &self,
        beginning: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<String>, BackendError> {
        let (beginning, after) = (beginning.to_owned(), after.to_owned());
        let list = move |world: &World| {
            let inner = world.lock();
            let names = inner.objects.keys().filter(|name| **name > after);
            let names = names.filter(|name| name.starts_with(&beginning));
            names.take(limit).cloned().collect()
        };
        self.send(list).await
    }

    fn can_remove(&self) -> bool {
        self.0.world.removes
    }

    async fn remove(&self, name: &str, tag: &Tag) -> Result<(), BackendError> {
        let (name, tag) = (name.to_owned(), tag.clone());
        let remove = move |world: &World| {
            let mut inner = world.lock();
            if inner.objects.get(&name).is_some_and(|it| it.tag == tag) {
                inner.objects.remove(&name);
                inner.removed += 1;
            }
        };
        self.send(remove).await
    }

    fn can_listen(&self) -> bool {
        self.0.world.pushes
    }

    async fn listen(&self, session: SessionId) -> Result<BoxStream<'static, Pushed>, BackendError> {
        let (sender, receiver) = unbounded();
        let listen = move |world: &World| {
            world
                .lock()
                .listeners
                .entry(session)
                .or_default()
                .push(sender);
        };
        self.send(listen).await?;
        Ok(receiver.boxed())
    }
}

/// Runs a test in virtual time.
pub(crate) fn block_on<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a tokio runtime starts");
    runtime.block_on(test)
}
