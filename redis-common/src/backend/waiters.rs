//! Waiters in a cluster: subscriptions before requests that say that their session listens.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_api::{Acquire, AcquireReply, Key, Poll, PollReply, Release, Renew, SessionId};

use super::{Backend, all_unknown};
use crate::connection::Cluster;
use crate::script::reply::Answer;

/// When a client polls that must find out what happened to its waiter.
const SOON: Duration = Duration::from_millis(1);

pub(super) trait Keyed: Clone + Sync {
    fn key(&self) -> &Key;

    /// The session, and whether the request says that it listens.
    fn listener(&mut self) -> Option<(SessionId, &mut bool)> {
        None
    }
}

impl Keyed for Acquire {
    fn key(&self) -> &Key {
        &self.key
    }

    fn listener(&mut self) -> Option<(SessionId, &mut bool)> {
        let wait = self.wait.as_mut()?;
        Some((self.operation.session, &mut wait.listening))
    }
}

impl Keyed for Poll {
    fn key(&self) -> &Key {
        &self.key
    }

    fn listener(&mut self) -> Option<(SessionId, &mut bool)> {
        Some((self.operation.session, &mut self.listening))
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
    /// A copy that says that its session listens only if it is subscribed.
    pub(super) fn listening_if_subscribed<E: Keyed>(&self, cluster: &Cluster, request: &E) -> E {
        let mut copy = request.clone();
        if let Some((session, listening)) = copy.listener() {
            *listening = *listening && self.listens(cluster, session, request.key());
        }
        copy
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
                let (key, operation) = (&request.key, request.operation);
                if !request.wait.is_some_and(|wait| wait.listening)
                    || self.listens(cluster, operation.session, key)
                    || !self.subscribe(cluster, operation.session, key).await
                {
                    return;
                }
                let poll = [Poll::new(key.clone(), operation, true)];
                let Some(Ok(polled)) = self.poll_once(&poll).await.pop() else {
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
        self.shared.timeout(limit, join_all(waiters)).await;
    }

    /// Polls, after subscribing the sessions that listen, both within the call timeout. If a slot has
    /// moved meanwhile, does both again at its new node.
    pub(super) async fn poll_in_cluster(
        &self,
        cluster: &Arc<Cluster>,
        batch: &[Poll],
    ) -> Vec<Answer<PollReply>> {
        let began = self.shared.now();
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
        let Some(polled) = self.shared.timeout(limit, polling()).await else {
            return all_unknown(batch);
        };
        let stays = |(before, after): (&Option<Arc<_>>, &Option<Arc<_>>)| match (before, after) {
            (Some(before), Some(after)) => Arc::ptr_eq(before, after),
            _ => false,
        };
        if before.iter().zip(&nodes()).all(stays) {
            return polled;
        }
        let left = self.shared.left_of_call(began);
        let again = self.shared.timeout(left, polling()).await;
        again.unwrap_or(polled)
    }

    async fn subscribe_all(&self, cluster: &Arc<Cluster>, batch: &[Poll]) {
        let listeners = batch.iter().filter(|poll| poll.listening);
        let subscribed = listeners.map(|it| self.subscribe(cluster, it.operation.session, &it.key));
        join_all(subscribed).await;
    }
}
