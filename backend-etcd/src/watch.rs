//! A subscription to the texts to one session.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{BackendError, Runtime, TokioRuntime, bounds};
use leasehold_store::Pushed;
use tonic::{Status, Streaming};

use crate::client::{Client, is_refusal, not_written};
use crate::rpc::{
    NO_DELETE, RANGE, RangeRequest, RangeResponse, WatchCreateRequest, WatchResponse,
};

/// The pause between attempts to subscribe again. While the server refuses, it doubles up to the maximum.
const PAUSE: Duration = Duration::from_millis(250);
const MAX_PAUSE: Duration = Duration::from_secs(5);

pub(crate) struct Watch {
    client: Arc<Client>,
    runtime: TokioRuntime,
    key: Vec<u8>,
    range_end: Vec<u8>,
    /// The revision to go on with after a loss, so nothing is missed that etcd still has. 0 for that of the next change.
    next: i64,
    /// `None` while the subscription is lost.
    answers: Option<Streaming<WatchResponse>>,
    pause: Duration,
    pushed: VecDeque<Pushed>,
}

impl Watch {
    /// Subscribes to all keys in this range. They are confirmed when it returns.
    pub(crate) async fn start(
        client: Arc<Client>,
        runtime: TokioRuntime,
        (key, range_end): (Vec<u8>, Vec<u8>),
    ) -> Result<Self, BackendError> {
        let mut watch = Self {
            client,
            runtime,
            key,
            range_end,
            next: 0,
            answers: None,
            pause: PAUSE,
            pushed: VecDeque::new(),
        };
        match watch.open().await {
            Ok(()) => Ok(watch),
            Err(status) => Err(not_written(status)),
        }
    }

    /// The next text, or that some may have been missed.
    pub(crate) async fn next(mut self) -> Option<(Pushed, Self)> {
        loop {
            if let Some(pushed) = self.pushed.pop_front() {
                return Some((pushed, self));
            }
            let Some(answers) = &mut self.answers else {
                self.open_again().await;
                continue;
            };
            match answers.message().await {
                Ok(Some(answer)) if !answer.canceled => self.read(answer),
                ended => {
                    self.answers = None;
                    // The server has canceled it, because it doesn't keep the revision any more.
                    if matches!(ended, Ok(Some(_))) {
                        self.next = 0;
                    }
                    let listening = false;
                    self.pushed.push_back(Pushed::Missed { listening });
                }
            }
        }
    }

    async fn open_again(&mut self) {
        let runtime = self.runtime.clone();
        match runtime.timeout(bounds::CONNECT_TIMEOUT, self.open()).await {
            Some(Ok(())) => {
                self.pause = PAUSE;
                let listening = true;
                self.pushed.push_front(Pushed::Missed { listening });
            }
            Some(Err(status)) if is_refusal(&status) => {
                runtime.sleep(self.pause).await;
                self.pause = (self.pause * 2).min(MAX_PAUSE);
            }
            _ => runtime.sleep(PAUSE).await,
        }
    }

    async fn open(&mut self) -> Result<(), Status> {
        match self.subscribe().await {
            // etcd gives no other reason for a login that has ended. A read renews it, or is refused too.
            Err(status) if is_refusal(&status) => {
                let _: RangeResponse = self.client.call(RANGE, self.range()).await?;
                self.subscribe().await
            }
            answer => answer,
        }
    }

    /// A request that needs the same right.
    fn range(&self) -> RangeRequest {
        RangeRequest {
            key: self.key.clone(),
            range_end: self.range_end.clone(),
            limit: 1,
            keys_only: true,
        }
    }

    async fn subscribe(&mut self) -> Result<(), Status> {
        let (key, range_end) = (self.key.clone(), self.range_end.clone());
        let answers = self.client.watch(WatchCreateRequest {
            key,
            range_end,
            start_revision: self.next,
            filters: vec![NO_DELETE],
        });
        let mut answers = answers.await?;
        match answers.message().await? {
            Some(answer) if answer.canceled => {
                self.next = 0;
                Err(Status::permission_denied(answer.cancel_reason))
            }
            Some(answer) if answer.created => {
                if self.next == 0 {
                    self.next = answer.header.unwrap_or_default().revision + 1;
                }
                self.answers = Some(answers);
                Ok(())
            }
            _ => Err(Status::unavailable("no subscription")),
        }
    }

    fn read(&mut self, answer: WatchResponse) {
        for change in answer.events.into_iter().filter_map(|event| event.kv) {
            self.next = change.mod_revision + 1;
            // Another program's value is no text, which is a reason to ask.
            let text = String::from_utf8(change.value).unwrap_or_default();
            self.pushed.push_back(Pushed::Text(text));
        }
    }
}
