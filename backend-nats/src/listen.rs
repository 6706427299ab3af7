//! Subscriptions.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Message, Subscriber};
use futures_util::StreamExt as _;
use futures_util::stream::unfold;
use leasehold_api::{BackendError, ClockId, Notification, Notifications, Runtime, bounds};
use leasehold_store::messages;

use crate::connection::{Link, Links};

/// The shortest pause before a subscription that was lost is made again. The longest one is twice as long.
const PAUSE: Duration = Duration::from_millis(125);

/// Where the messages to a session go.
pub(crate) struct Channel {
    pub(crate) links: Arc<Links>,
    pub(crate) subject: String,
}

struct Listening {
    channel: Channel,
    subscription: Option<(Link, Subscriber)>,
    ready: VecDeque<Notification>,
}

/// Subscribes. The stream subscribes again when the connection was lost.
pub(crate) async fn subscribe(channel: Channel) -> Result<Notifications, BackendError> {
    let mut listening = Listening {
        channel,
        subscription: None,
        ready: VecDeque::new(),
    };
    listening.open().await?;
    Ok(Box::pin(unfold(listening, async |mut listening| {
        let next = listening.next().await;
        Some((next, listening))
    })))
}

impl Listening {
    /// Subscribes, and waits for a message to itself, which the server sends when it has.
    async fn open(&mut self) -> Result<(), BackendError> {
        let Channel { links, subject } = &self.channel;
        let link = links.link().await?;
        let opening = async {
            let mut subscriber = link.subscribe(subject.clone()).await?;
            link.tell(subject.clone(), String::new()).await;
            let first = link.until_lost(subscriber.next()).await.flatten();
            let lost = || BackendError::unavailable("the connection was lost");
            Ok::<_, BackendError>((first.ok_or_else(lost)?, subscriber))
        };
        let named = format!("\"{subject}\"");
        let (first, subscriber) = link.unless_refused(&named, opening).await??;
        self.ready.extend(read(&first));
        self.subscription = Some((link, subscriber));
        Ok(())
    }

    async fn next(&mut self) -> Notification {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return ready;
            }
            match &mut self.subscription {
                Some((link, subscriber)) => {
                    match link.until_lost(subscriber.next()).await.flatten() {
                        Some(message) => self.ready.extend(read(&message)),
                        None => {
                            self.subscription = None;
                            return Notification::Missed { listening: false };
                        }
                    }
                }
                None => {
                    let runtime = self.channel.links.runtime().clone();
                    let opened = runtime.timeout(bounds::CONNECT_TIMEOUT, self.open()).await;
                    if matches!(opened, Some(Ok(()))) {
                        return Notification::Missed { listening: true };
                    }
                    let part = (runtime.random_u64() % 100) as u32;
                    runtime.sleep(PAUSE + PAUSE * part / 100).await;
                }
            }
        }
    }
}

/// The notifications in a message. An empty one is a subscriber's to itself.
fn read(message: &Message) -> Vec<Notification> {
    let text = str::from_utf8(&message.payload);
    let of_text = |text: &str| match text.split_once(' ') {
        None if text.is_empty() => Some(Vec::new()),
        Some((clock, text)) => messages::decode(text, ClockId::new(clock.parse().ok()?)),
        None => None,
    };
    // It may have been a grant.
    let unreadable = || vec![Notification::Missed { listening: true }];
    text.ok().and_then(of_text).unwrap_or_else(unreadable)
}
