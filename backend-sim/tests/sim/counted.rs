//! A backend that counts the live tasks of its client.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{BoxFuture, LockBackend, Moment, Runtime, forward_lock_backend};
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
    forward_lock_backend! {
        |it| it.inner;
        capabilities hello clock read_clock listen acquire poll renew release convert inspect
        force_release list write_note close
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime) as Arc<dyn Runtime>
    }
}
