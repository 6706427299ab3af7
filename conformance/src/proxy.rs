//! A backend that forwards to another one, counts the calls, can delay notifications and
//! replies, and can refuse releases.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll as Ready, Waker};

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Key, LockBackend, LockClient, Notification, Notifications,
    Poll, PollReply, Release, ReleaseReply, SessionId, Stamped, forward_lock_backend,
};

use crate::failure::Failure;
use crate::world::World;

/// How the proxy treats notifications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pushes {
    #[default]
    Pass,
    /// Delivers each twice, and a third time at [`ProxyBackend::deliver_held_pushes`].
    Duplicate,
    /// Holds them back until [`ProxyBackend::deliver_held_pushes`].
    Hold,
}

/// A backend between a client and its real backend.
#[derive(Clone, Debug)]
pub(crate) struct ProxyBackend {
    inner: Arc<dyn LockBackend>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    listens: u32,
    calls: u32,
    acquired: Vec<Key>,
    /// The number of polled attempts.
    polled: u32,
    pushes: Pushes,
    /// Notifications to deliver next.
    deliverable: VecDeque<Notification>,
    held_back: Vec<Notification>,
    fake_subscriptions: bool,
    holds_replies: bool,
    refuses_releases: bool,
    wakers: Vec<Waker>,
}

impl State {
    fn take(&mut self, notification: Notification) {
        match self.pushes {
            Pushes::Pass => self.deliverable.push_back(notification),
            Pushes::Duplicate => {
                self.deliverable.extend([notification, notification]);
                self.held_back.push(notification);
            }
            Pushes::Hold => self.held_back.push(notification),
        }
    }
}

impl World {
    /// Connects a new client through a proxy.
    pub(crate) async fn client_on_proxy(&self) -> Result<(LockClient, ProxyBackend), Failure> {
        let proxy = ProxyBackend {
            inner: self.backend().await?,
            state: Arc::default(),
        };
        Ok((LockClient::new(proxy.clone()), proxy))
    }
}

impl ProxyBackend {
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut state);
        let woken = std::mem::take(&mut state.wakers);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        result
    }

    /// The number of subscriptions.
    pub(crate) fn listens(&self) -> u32 {
        self.with(|state| state.listens)
    }

    /// The number of calls so far.
    pub(crate) fn calls(&self) -> u32 {
        self.with(|state| state.calls)
    }

    /// The keys of all attempts, in the order of sending.
    pub(crate) fn acquired(&self) -> Vec<Key> {
        self.with(|state| state.acquired.clone())
    }

    /// The number of attempts and polls.
    pub(crate) fn attempts_and_polls(&self) -> usize {
        self.with(|state| state.acquired.len() + state.polled as usize)
    }

    pub(crate) fn polled(&self) -> u32 {
        self.with(|state| state.polled)
    }

    pub(crate) fn set_pushes(&self, pushes: Pushes) {
        self.with(|state| state.pushes = pushes);
    }

    pub(crate) fn deliver_held_pushes(&self) {
        self.with(|state| {
            state.pushes = Pushes::Pass;
            state
                .deliverable
                .extend(std::mem::take(&mut state.held_back));
        });
    }

    /// Delivers a notification to the client.
    pub(crate) fn push(&self, notification: Notification) {
        self.with(|state| state.deliverable.push_back(notification));
    }

    /// Makes later subscriptions fake: they succeed, but deliver nothing.
    pub(crate) fn fake_subscriptions(&self) {
        self.with(|state| state.fake_subscriptions = true);
    }

    /// Sets whether the replies to acquires are held back.
    pub(crate) fn hold_replies(&self, hold: bool) {
        self.with(|state| state.holds_replies = hold);
    }

    /// Sets whether the server refuses every release, as if the client had no right to it.
    pub(crate) fn refuse_releases(&self, refuse: bool) {
        self.with(|state| state.refuses_releases = refuse);
    }

    async fn replies_pass(&self) {
        poll_fn(|cx| self.ready(cx, |state| (!state.holds_replies).then_some(()))).await;
    }

    /// Returns the result of `find`, or registers the task to be woken at the next change.
    fn ready<T>(&self, cx: &Context<'_>, find: impl FnOnce(&mut State) -> Option<T>) -> Ready<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match find(&mut state) {
            Some(found) => Ready::Ready(found),
            None => {
                state.wakers.push(cx.waker().clone());
                Ready::Pending
            }
        }
    }

    fn count_call(&self) {
        self.with(|state| state.calls += 1);
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockBackend for ProxyBackend {
    forward_lock_backend!(|it| it.inner; capabilities runtime clock close);
    forward_lock_backend! {
        |it| { it.count_call(); &it.inner };
        hello read_clock renew convert inspect force_release list write_note
    }

    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        self.count_call();
        let fake_subscriptions = self.with(|state| {
            state.listens += 1;
            state.fake_subscriptions
        });
        if fake_subscriptions {
            return Ok(stream::pending().boxed());
        }
        let mut pushed = self.inner.listen(session).await?;
        let proxy = self.clone();
        Ok(Box::pin(stream::poll_fn(move |cx| {
            loop {
                match pushed.poll_next_unpin(cx) {
                    Ready::Ready(Some(notification)) => {
                        proxy.with(|state| state.take(notification));
                    }
                    Ready::Ready(None) => return Ready::Ready(None),
                    Ready::Pending => break,
                }
            }
            proxy
                .ready(cx, |state| state.deliverable.pop_front())
                .map(Some)
        })))
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        self.with(|state| {
            state.calls += 1;
            let keys = batch.iter().map(|request| request.key.clone());
            state.acquired.extend(keys);
        });
        let replies = self.inner.acquire(batch).await;
        self.replies_pass().await;
        replies
    }

    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>> {
        self.count_call();
        if self.with(|state| state.refuses_releases) {
            let refused = || Err(BackendError::rejected("the client has no right to release"));
            return batch.iter().map(|_| refused()).collect();
        }
        self.inner.release(batch).await
    }

    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        self.with(|state| {
            state.calls += 1;
            state.polled += u32::try_from(batch.len()).unwrap_or(u32::MAX);
        });
        self.inner.poll(batch).await
    }
}
