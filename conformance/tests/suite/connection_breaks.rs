//! Tests the suite with backends that go wrong with connections, subscriptions, closing and clocks:
//! each backend breaks one rule, and the named cases must fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::assert_each_fails;
use crate::support::{Reference, Server};
use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Contended, InspectReply, Key, LockBackend, Notification,
    Notifications, Poll, PollReply, Release, ReleaseReply, SessionId, Stamped, Wait,
    forward_lock_backend,
};

breaks! {
    /// Reads the clock, then waits for the lock of the store.
    ReadsTheClockEarly: "rule 1", "exclusion::holds_follow_each_other_on_the_servers_clock";
    CloseDoesNothing: "trait contract", "closing::calls_after_close_return_closed";
    CloseStopsTheServer: "trait contract", "closing::closing_harms_no_other_client";
    StreamsOutliveClose: "trait contract", "closing::calls_after_close_return_closed";
    HidesGaps: "rule 11", "outages::cut_subscription_reports_the_gap",
        "outages::pushes_arrive_again_after_a_cut";
    /// If one stream of a session is dropped, the others get nothing any longer.
    DroppedStreamSilencesAll: "rule 8", "notifications::ended_subscription_leaves_the_other";
    NeverReconnects: "L4", "outages::calls_work_again_after_a_cut",
        "outages::calls_work_again_after_a_silence";
    /// Tries again after its time limit.
    OutlivesItsLimit: "L4", "outages::call_to_a_silent_server_ends";
    /// An acquire that arrives after its release takes effect.
    LateAcquiresCount: "rule 12", "outages::calls_work_again_after_a_silence";
    /// An acquire that was paused takes effect after its window.
    WindowsNeverEnd: "rule 12", "stalls::stalled_acquire_takes_nothing_after_its_window";
    /// Queues each waiter as one that listens.
    QueuesEverybodyAsListening: "rule 9", "unreachable::waiter_that_never_listened_is_never_unreachable";
    /// Takes each waiter that polls for one that listens.
    PollsAlwaysListen: "rule 9", "unreachable::poll_says_whether_it_listens";
    /// An unreachable waiter loses its place at its next poll.
    DropsUnreachableWaiters: "rule 9", "unreachable::its_ticket_is_kept";
    /// A key with waiters is not free, even if none of them can be reached.
    UnreachableWaitersKeepTheKey: "rule 9", "unreachable::all_unreachable_counts_as_free",
        "unreachable::marked_unreachable_at_most_twice";
    HidesUnreachable: "rule 9", "unreachable::unreachable_is_shown";
}

#[test]
fn each_break_fails_its_case() {
    assert_each_fails(BREAKS, |how| {
        Arc::new(Reference::wrapped(Arc::new(move |inner, server| {
            Arc::new(Broken {
                inner,
                server: Arc::clone(server),
                how,
                failed: AtomicBool::new(false),
                dropped: Arc::default(),
            })
        })))
    });
}

#[derive(Debug)]
struct Broken {
    inner: Arc<dyn LockBackend>,
    server: Arc<Server>,
    how: Break,
    /// A call has failed.
    failed: AtomicBool,
    /// A stream was dropped.
    dropped: Arc<AtomicBool>,
}

/// Notes that it was dropped.
struct NotesDrop(Arc<AtomicBool>);

impl Drop for NotesDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Broken {
    async fn pause(&self) {
        self.inner.runtime().sleep(Duration::from_millis(1)).await;
    }

    /// Whether a waiter of the key is unreachable.
    async fn has_unreachable(&self, key: &Key) -> bool {
        let view = self.inner.inspect(key).await.expect("an inspection");
        view.reply.waiters.iter().any(|waiter| waiter.unreachable)
    }

    fn check(&self) -> Result<(), BackendError> {
        if self.how == Break::NeverReconnects && self.failed.load(Ordering::Relaxed) {
            return Err(BackendError::unavailable("the connection was lost"));
        }
        Ok(())
    }

    fn note<T>(&self, result: &Result<T, BackendError>) {
        self.failed.fetch_or(result.is_err(), Ordering::Relaxed);
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockBackend for Broken {
    forward_lock_backend!(
        |it| it.inner;
        capabilities runtime hello clock read_clock renew convert force_release list write_note
    );

    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        let notifications = self.inner.listen(session).await?;
        if self.how == Break::HidesGaps {
            let told = |it: &Notification| !matches!(it, Notification::Missed { .. });
            return Ok(notifications
                .filter(move |it| std::future::ready(told(it)))
                .boxed());
        }
        if self.how == Break::DroppedStreamSilencesAll {
            let drops = NotesDrop(Arc::clone(&self.dropped));
            let heard = move |_: &Notification| !drops.0.load(Ordering::Relaxed);
            return Ok(notifications
                .filter(move |it| std::future::ready(heard(it)))
                .boxed());
        }
        if self.how == Break::StreamsOutliveClose {
            return Ok(notifications.chain(stream::pending()).boxed());
        }
        Ok(notifications)
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        if let Err(error) = self.check() {
            return vec![Err(error)];
        }
        let mut early = None;
        if self.how == Break::ReadsTheClockEarly {
            early = self.inner.hello().await.ok();
            self.pause().await;
        }
        let mut batch = batch.to_vec();
        let request = &mut batch[0];
        if self.how == Break::WindowsNeverEnd {
            self.pause().await;
            let now = self.inner.hello().await.expect("it works").at;
            request.deliver_before = now.saturating_add(Duration::from_secs(5));
        }
        if self.how == Break::QueuesEverybodyAsListening && request.wait.is_some() {
            request.wait = Some(Wait::new(true));
        }
        if self.how == Break::UnreachableWaitersKeepTheKey
            && self.has_unreachable(&request.key).await
        {
            let reply = AcquireReply::Contended(Contended {
                retry_after: Duration::ZERO,
                holder: None,
            });
            let stamp = self.inner.hello().await;
            return vec![stamp.map(|stamp| Stamped { stamp, reply })];
        }
        let batch = &batch[..];
        let mut replies = self.inner.acquire(batch).await;
        for _ in 0..9 {
            if self.how == Break::OutlivesItsLimit && replies[0].is_err() {
                replies = self.inner.acquire(batch).await;
            }
        }
        self.note(&replies[0]);
        if self.how == Break::LateAcquiresCount && replies[0].is_err() {
            self.server
                .notes
                .lock()
                .expect("no panic")
                .extend(batch.to_vec());
        }
        if let (Ok(reply), Some(early)) = (&mut replies[0], early) {
            reply.stamp = early;
        }
        replies
    }

    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        let mut batch = batch.to_vec();
        let poll = &mut batch[0];
        poll.listening |= self.how == Break::PollsAlwaysListen;
        let drops = self.how == Break::DropsUnreachableWaiters;
        if drops && poll.listening && self.has_unreachable(&poll.key).await {
            let release = Release::new(poll.key.clone(), poll.operation);
            let replies = self.inner.poll(&batch).await;
            if matches!(&replies[0], Ok(it) if matches!(it.reply, PollReply::Queued(_))) {
                drop(self.inner.release(&[release]).await);
                return self.inner.poll(&batch).await;
            }
            return replies;
        }
        self.inner.poll(&batch).await
    }

    async fn inspect(&self, key: &Key) -> Result<Stamped<InspectReply>, BackendError> {
        let mut view = self.inner.inspect(key).await?;
        if self.how == Break::HidesUnreachable {
            let waiters = &mut view.reply.waiters;
            waiters.iter_mut().for_each(|it| it.unreachable = false);
        }
        Ok(view)
    }

    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>> {
        if let Err(error) = self.check() {
            return vec![Err(error)];
        }
        let replies = self.inner.release(batch).await;
        self.note(&replies[0]);
        let late = std::mem::take(&mut *self.server.notes.lock().expect("no panic"));
        for mut acquire in late {
            // As if the key had no watermark.
            acquire.operation.sequence += 1_000;
            drop(self.inner.acquire(&[acquire]).await);
        }
        replies
    }

    async fn close(&self) -> Result<(), BackendError> {
        match self.how {
            Break::CloseDoesNothing => Ok(()),
            Break::CloseStopsTheServer => {
                self.server.freeze(true);
                self.inner.close().await
            }
            _ => self.inner.close().await,
        }
    }
}
