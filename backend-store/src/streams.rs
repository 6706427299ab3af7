//! The streams of `listen`, which end when the backend is closed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::unfold;
use leasehold_api::Notifications;

/// The streams that have not ended. Each stream owns the handle that ends it.
#[derive(Debug, Default)]
pub(crate) struct Streams(Mutex<Vec<Weak<AbortHandle>>>);

impl Streams {
    fn handles(&self) -> MutexGuard<'_, Vec<Weak<AbortHandle>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a stream. Returns one with the same items, which [`end`](Self::end) ends.
    pub(crate) fn add(&self, stream: Notifications) -> Notifications {
        let (end, ends) = AbortHandle::new_pair();
        let end = Arc::new(end);
        let mut handles = self.handles();
        // A client that subscribes again leaves its last stream behind.
        handles.retain(|other| other.strong_count() > 0);
        handles.push(Arc::downgrade(&end));
        let next = async |(mut stream, end): (Abortable<Notifications>, Arc<AbortHandle>)| {
            Some((stream.next().await?, (stream, end)))
        };
        Box::pin(unfold((Abortable::new(stream, ends), end), next).fuse())
    }

    /// Ends all streams.
    pub(crate) fn end(&self) {
        let handles = std::mem::take(&mut *self.handles());
        for end in handles {
            if let Some(end) = end.upgrade() {
                end.abort();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::stream::{empty, pending};

    use super::*;

    #[test]
    fn streams_that_are_gone_are_forgotten() {
        let streams = Streams::default();
        for _ in 0..100 {
            drop(streams.add(Box::pin(pending())));
        }
        let mut ended = streams.add(Box::pin(empty()));
        assert_eq!(ended.next().now_or_never(), Some(None));
        let mut open = streams.add(Box::pin(pending()));
        assert_eq!(streams.handles().len(), 1);
        assert_eq!(open.next().now_or_never(), None);
        streams.end();
        assert_eq!(open.next().now_or_never(), Some(None));
        assert_eq!(streams.handles().len(), 0);
    }
}
