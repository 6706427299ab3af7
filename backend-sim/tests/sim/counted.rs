//! A backend that counts the live tasks of its client.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, BoxFuture, Capabilities, ClockId, Convert, ConvertReply,
    ForceRelease, ForceReply, InspectReply, Key, List, Listed, LockBackend, Moment, Note,
    NoteReply, Notifications, Poll, PollReply, Release, ReleaseReply, Renew, RenewReply, Runtime,
    SessionId, Stamp, Stamped,
};
use leasehold_sim::SimBackend;

#[derive(Clone, Debug)]
pub(crate) struct Counted {
    inner: SimBackend,
    runtime: Arc<CountedTasks>,
}

impl Counted {
    pub(crate) fn new(inner: SimBackend) -> Self {
        let runtime = CountedTasks {
            inner: inner.runtime(),
            alive: Arc::new(()),
        };
        let runtime = Arc::new(runtime);
        Self { inner, runtime }
    }

    /// The number of spawned tasks that have not ended.
    pub(crate) fn tasks(&self) -> usize {
        Arc::strong_count(&self.runtime.alive) - 1
    }
}

#[derive(Debug)]
struct CountedTasks {
    inner: Arc<dyn Runtime>,
    alive: Arc<()>,
}

impl CountedTasks {
    fn counted(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        let alive = Arc::clone(&self.alive);
        Box::pin(async move {
            task.await;
            drop(alive);
        })
    }
}

impl Runtime for CountedTasks {
    fn now(&self) -> Moment {
        self.inner.now()
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.inner.sleep(duration)
    }
    fn spawn(&self, future: BoxFuture<'static, ()>) {
        self.inner.spawn(self.counted(future));
    }
    fn spawn_on_renewal_thread(&self, future: BoxFuture<'static, ()>) {
        self.inner.spawn_on_renewal_thread(self.counted(future));
    }
    fn fill_random(&self, bytes: &mut [u8]) {
        self.inner.fill_random(bytes);
    }
    fn process_id(&self) -> u32 {
        self.inner.process_id()
    }
    fn default_label(&self) -> String {
        self.inner.default_label()
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockBackend for Counted {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime) as Arc<dyn Runtime>
    }
    async fn hello(&self) -> Result<Stamp, BackendError> {
        self.inner.hello().await
    }
    fn clock(&self, key: &Key) -> Option<ClockId> {
        self.inner.clock(key)
    }
    fn clock_address(&self, clock: ClockId) -> Option<String> {
        self.inner.clock_address(clock)
    }
    async fn read_clock(&self, key: &Key) -> Result<Stamp, BackendError> {
        self.inner.read_clock(key).await
    }
    async fn self_check(&self, key: &Key) -> Result<(), BackendError> {
        self.inner.self_check(key).await
    }
    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        self.inner.listen(session).await
    }
    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        self.inner.acquire(batch).await
    }
    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        self.inner.poll(batch).await
    }
    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        self.inner.renew(batch).await
    }
    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>> {
        self.inner.release(batch).await
    }
    async fn convert(&self, request: &Convert) -> Result<Stamped<ConvertReply>, BackendError> {
        self.inner.convert(request).await
    }
    async fn inspect(&self, key: &Key) -> Result<Stamped<InspectReply>, BackendError> {
        self.inner.inspect(key).await
    }
    async fn force_release(
        &self,
        request: &ForceRelease,
    ) -> Result<Stamped<ForceReply>, BackendError> {
        self.inner.force_release(request).await
    }
    async fn list(&self, request: &List) -> Result<Listed, BackendError> {
        self.inner.list(request).await
    }
    async fn write_note(&self, request: &Note) -> Result<Stamped<NoteReply>, BackendError> {
        self.inner.write_note(request).await
    }
    async fn close(&self) -> Result<(), BackendError> {
        self.inner.close().await
    }
}
