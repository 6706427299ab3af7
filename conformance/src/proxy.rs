//! A backend that forwards to another one, counts the calls, and can delay notifications and
//! replies.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll as Ready, Waker};

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Key, LockBackend, LockClient, Notification, Notifications,
    Poll, PollReply, SessionId, Stamped, forward_lock_backend,
};

use crate::failure::Failure;
use crate::world::World;

/// How the proxy treats notifications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pushes {
    #[default]
    Pass,
    /// Delivers each twice, and again at [`ProxyBackend::let_pushes_through`].
    Double,
    /// Holds them back until [`ProxyBackend::let_pushes_through`].
    Keep,
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
    heard: VecDeque<Notification>,
    kept: Vec<Notification>,
    deaf: bool,
    keeps_replies: bool,
    wakers: Vec<Waker>,
}

impl State {
    fn take(&mut self, notification: Notification) {
        match self.pushes {
            Pushes::Pass => self.heard.push_back(notification),
            Pushes::Double => {
                self.heard.extend([notification, notification]);
                self.kept.push(notification);
            }
            Pushes::Keep => self.kept.push(notification),
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
    pub(crate) fn asked(&self) -> usize {
        self.with(|state| state.acquired.len() + state.polled as usize)
    }

    pub(crate) fn polled(&self) -> u32 {
        self.with(|state| state.polled)
    }

    pub(crate) fn set_pushes(&self, pushes: Pushes) {
        self.with(|state| state.pushes = pushes);
    }

    pub(crate) fn let_pushes_through(&self) {
        self.with(|state| {
            state.pushes = Pushes::Pass;
            state.heard.extend(std::mem::take(&mut state.kept));
        });
    }

    /// Delivers a notification to the client.
    pub(crate) fn push(&self, notification: Notification) {
        self.with(|state| state.heard.push_back(notification));
    }

    /// Makes later subscriptions fake: they seem to succeed, but deliver nothing.
    pub(crate) fn fake_subscriptions(&self) {
        self.with(|state| state.deaf = true);
    }

    /// Holds back the replies to acquires, or delivers them again.
    pub(crate) fn keep_replies(&self, keep: bool) {
        self.with(|state| state.keeps_replies = keep);
    }

    async fn replies_pass(&self) {
        poll_fn(|cx| self.ready(cx, |state| (!state.keeps_replies).then_some(()))).await;
    }

    /// Returns what `look` finds, or registers to be woken at the next change.
    fn ready<T>(&self, cx: &Context<'_>, look: impl FnOnce(&mut State) -> Option<T>) -> Ready<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match look(&mut state) {
            Some(found) => Ready::Ready(found),
            None => {
                state.wakers.push(cx.waker().clone());
                Ready::Pending
            }
        }
    }

    fn called(&self) {
        self.with(|state| state.calls += 1);
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockBackend for ProxyBackend {
    forward_lock_backend!(|it| it.inner; capabilities runtime close);
    forward_lock_backend! {
        |it| { it.called(); &it.inner };
        hello renew release convert inspect force_release
    }

    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        self.called();
        let deaf = self.with(|state| {
            state.listens += 1;
            state.deaf
        });
        if deaf {
            return Ok(stream::pending().boxed());
        }
        let mut pushed = self.inner.listen(session).await?;
        let proxy = self.clone();
        Ok(Box::pin(stream::poll_fn(move |cx| {
            loop {
                match pushed.poll_next_unpin(cx) {
                    Ready::Ready(Some(notification)) => {
                        proxy.with(|state| state.take(notification))
                    }
                    Ready::Ready(None) => return Ready::Ready(None),
                    Ready::Pending => break,
                }
            }
            proxy.ready(cx, |state| state.heard.pop_front()).map(Some)
        })))
    }

    async fn acquire(&self, request: &Acquire) -> Result<Stamped<AcquireReply>, BackendError> {
        self.with(|state| {
            state.calls += 1;
            state.acquired.push(request.key.clone());
        });
        let reply = self.inner.acquire(request).await;
        self.replies_pass().await;
        reply
    }

    async fn acquire_all(
        &self,
        batch: &[Acquire],
    ) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        self.with(|state| {
            state.calls += 1;
            let keys = batch.iter().map(|request| request.key.clone());
            state.acquired.extend(keys);
        });
        let replies = self.inner.acquire_all(batch).await;
        self.replies_pass().await;
        replies
    }

    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        self.with(|state| {
            state.calls += 1;
            state.polled += u32::try_from(batch.len()).unwrap_or(u32::MAX);
        });
        self.inner.poll(batch).await
    }
}
