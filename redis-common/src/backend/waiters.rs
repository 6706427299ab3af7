//! Waiters in a cluster: subscriptions before requests that say that their session listens.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Key, Poll, PollReply, Release, Renew, Runtime, SessionId,
};

use super::Backend;
use crate::connection::Cluster;
use crate::script::reply::Answer;

/// When a client polls that must find out what happened to its waiter.
const SOON: Duration = Duration::from_millis(1);

/// A request of a batch.
pub(super) trait Keyed: Clone + Sync {
    fn key(&self) -> &Key;

    /// The session, if the request says that it listens.
    fn listener(&self) -> Option<SessionId> {
        None
    }

    /// A copy that doesn't say that its session listens.
    fn without_listening(&self) -> Self {
        self.clone()
    }
}

impl Keyed for Acquire {
    fn key(&self) -> &Key {
        &self.key
    }

    fn listener(&self) -> Option<SessionId> {
        let listens = self.wait.is_some_and(|wait| wait.listening);
        listens.then_some(self.operation.session)
    }

    fn without_listening(&self) -> Self {
        let mut copy = self.clone();
        if let Some(wait) = &mut copy.wait {
            wait.listening = false;
        }
        copy
    }
}

impl Keyed for Poll {
    fn key(&self) -> &Key {
        &self.key
    }

    fn listener(&self) -> Option<SessionId> {
        self.listening.then_some(self.operation.session)
    }

    fn without_listening(&self) -> Self {
        let mut copy = self.clone();
        copy.listening = false;
        copy
    }
}

impl Keyed for Renew {
    fn key(&self) -> &Key {
        &self.key
    }
}

impl Keyed for Release {
    fn key(&self) -> &Key {
        &self.key
    }
}

impl Backend {
    /// The request, or a copy that doesn't say that its session listens.
    pub(super) fn listening_if_subscribed<'a, E: Keyed>(
        &self,
        cluster: &Cluster,
        request: &'a E,
    ) -> Cow<'a, E> {
        match request.listener() {
            Some(session) if !self.listens(cluster, session, request.key()) => {
                Cow::Owned(request.without_listening())
            }
            _ => Cow::Borrowed(request),
        }
    }

    fn listens(&self, cluster: &Cluster, session: SessionId, key: &Key) -> bool {
        let channel = self.protocol.shard_channel(key, &session);
        cluster.listens(session, &self.protocol.key(key), &channel)
    }

    /// Subscribes a session to the channel of a key, within half a call's time. Returns whether it
    /// listens.
    async fn subscribe(&self, cluster: &Arc<Cluster>, session: SessionId, key: &Key) -> bool {
        if self.listens(cluster, session, key) {
            return true;
        }
        let channel = self.protocol.shard_channel(key, &session);
        let limit = self.shared.options.call_timeout / 2;
        let key = self.protocol.key(key);
        cluster.subscribe(session, &key, channel, limit).await
    }

    /// Subscribes the sessions whose waiters are new, and lets the server know.
    ///
    /// An acquire doesn't wait for a subscription, because most of them get the key at once.
    pub(super) async fn subscribe_waiters(
        &self,
        cluster: &Arc<Cluster>,
        batch: &[Acquire],
        answers: &mut [Answer<AcquireReply>],
        limit: Duration,
    ) {
        let waiters = batch
            .iter()
            .zip(answers)
            .map(|(request, answer)| async move {
                let Ok(answer) = answer else { return };
                let AcquireReply::Queued(queued) = &mut answer.reply else {
                    return;
                };
                let Some(session) = request.listener() else {
                    return;
                };
                if self.listens(cluster, session, &request.key)
                    || !self.subscribe(cluster, session, &request.key).await
                {
                    return;
                }
                let (key, operation) = (request.key.clone(), request.operation);
                let poll = [Poll::new(key, operation, true)];
                let polled = self.poll_once(&poll);
                let Some(Ok(polled)) = polled.await.into_iter().next() else {
                    return;
                };
                match polled.reply {
                    PollReply::Queued(still) => {
                        answer.stamp = polled.stamp;
                        answer.reply = AcquireReply::Queued(still);
                    }
                    // The client's own poll finds out, and knows that a grant must be confirmed.
                    PollReply::Acquired(_) | PollReply::Gone(_) => queued.poll_after = SOON,
                }
            });
        self.shared.runtime.timeout(limit, join_all(waiters)).await;
    }

    /// Polls, after subscribing the sessions that listen, both within the call timeout. If a slot has
    /// moved meanwhile, does both again at its new node.
    pub(super) async fn poll_in_cluster(
        &self,
        cluster: &Arc<Cluster>,
        batch: &[Poll],
    ) -> Vec<Answer<PollReply>> {
        let began = self.shared.runtime.now();
        let limit = self.shared.options.call_timeout;
        let polling = async || {
            self.subscribe_all(cluster, batch).await;
            self.poll_once(batch).await
        };
        let nodes = || -> Vec<_> {
            let keys = batch.iter().map(|poll| self.protocol.key(&poll.key));
            keys.map(|key| cluster.node_of_key(&key)).collect()
        };
        let before = nodes();
        let Some(polled) = self.shared.runtime.timeout(limit, polling()).await else {
            let unknown = || Err(BackendError::outcome_unknown("no answer in time"));
            return batch.iter().map(|_| unknown()).collect();
        };
        let stays = |(before, after): (&Option<Arc<_>>, &Option<Arc<_>>)| match (before, after) {
            (Some(before), Some(after)) => Arc::ptr_eq(before, after),
            _ => false,
        };
        if before.iter().zip(&nodes()).all(stays) {
            return polled;
        }
        let left = limit.saturating_sub(self.shared.runtime.now().saturating_since(began));
        let again = self.shared.runtime.timeout(left, polling()).await;
        again.unwrap_or(polled)
    }

    async fn subscribe_all(&self, cluster: &Arc<Cluster>, batch: &[Poll]) {
        let listeners = batch
            .iter()
            .filter_map(|poll| Some((poll.listener()?, &poll.key)));
        join_all(listeners.map(|(session, key)| self.subscribe(cluster, session, key))).await;
    }
}
